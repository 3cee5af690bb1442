//! The autopsy after each test: the promises, judged from the tables by statements and by a second, slower matcher.

use std::collections::BTreeSet;
use std::time::Duration;

use roadstead::domain::Timestamp;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Row};

use super::Test;

const STATEMENTS: &str = include_str!("../../autopsy.sql");

/// Fails the test if any promise is broken.
pub async fn check(test: &Test) {
    let mut broken = Vec::new();
    for statement in STATEMENTS.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()) {
        let found: Vec<Value> = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT to_jsonb(found) FROM ({}) found LIMIT 5",
            statement.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n")
        )))
        .fetch_all(&test.pool)
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"));
        if !found.is_empty() {
            let what = statement.lines().rfind(|line| line.starts_with("-- ")).unwrap_or(statement);
            broken.push(format!("{what}: {found:#?}"));
        }
    }
    broken.extend(overdue(test).await);
    broken.extend(not_started(test).await);
    assert!(broken.is_empty(), "the autopsy found:\n{}", broken.join("\n"));
}

/// Unclaimed tasks that expired longer ago than a sweep may take, found by stepping through every change of presence
/// with a matcher that shares nothing with the product's.
async fn overdue(test: &Test) -> Vec<String> {
    let tasks = sqlx::query(
        "SELECT t.run_id, t.hold_from, t.hold_until - t.hold_from AS wait, s.canonical, roadstead_now() AS now
         FROM task t JOIN selector s USING (namespace_id, selector_no) WHERE t.claim_until IS NULL",
    )
    .fetch_all(&test.pool)
    .await
    .unwrap();
    let stretches = sqlx::query(
        "SELECT p.from_at, p.until_at, l.canonical FROM presence p JOIN label_set l USING (namespace_id, label_set_no)
         UNION ALL
         SELECT s.present_from, s.last_seen + s.stale_after, l.canonical
         FROM worker_session s JOIN label_set l USING (namespace_id, label_set_no)
         WHERE s.present_from IS NOT NULL
         UNION ALL SELECT from_at, until_at, NULL FROM outage",
    )
    .fetch_all(&test.pool)
    .await
    .unwrap();
    let stretches: Vec<(Timestamp, Timestamp, Option<Value>)> = stretches
        .iter()
        .map(|row| {
            let offer: Option<String> = row.get(2);
            (row.get(0), row.get(1), offer.map(|offer| serde_json::from_str(&offer).unwrap()))
        })
        .collect();
    let slack = test.config.coordinator.sweep_interval * 2 + Duration::from_secs(1);
    let mut overdue = Vec::new();
    for task in tasks {
        let (run_id, from, now): (String, Timestamp, Timestamp) = (task.get(0), task.get(1), task.get(4));
        let wait: sqlx::postgres::types::PgInterval = task.get(2);
        let wait = chrono::Duration::microseconds(wait.microseconds + i64::from(wait.days) * 86_400_000_000);
        let selector: Value = serde_json::from_str(task.get(3)).unwrap();
        let fitting: Vec<_> = stretches.iter().filter(|(_, _, offer)| fits(&selector, offer.as_ref())).collect();
        let covered = |at: Timestamp| fitting.iter().any(|(from, until, _)| *from <= at && at < *until);
        // A gap can begin only where the hold does or where a stretch ends.
        let starts: BTreeSet<Timestamp> =
            fitting.iter().map(|(_, until, _)| *until).chain([from]).filter(|at| *at >= from && *at < now).collect();
        for start in starts.into_iter().filter(|at| !covered(*at)) {
            let end = fitting.iter().map(|(from, _, _)| *from).filter(|at| *at > start).min().unwrap_or(now).min(now);
            if end - start >= wait && now - (start + wait) > chrono::Duration::from_std(slack).unwrap() {
                overdue.push(format!("run {run_id} expired at {} and was not failed by {now}", start + wait));
            }
        }
    }
    overdue
}

/// Unclaimed tasks whose start clock ran out longer ago than a sweep may take. An outage stops it: so second by second of
/// outages is taken away from what has passed, the same time once, until nothing more is to be taken.
async fn not_started(test: &Test) -> Vec<String> {
    let tasks = sqlx::query(
        "SELECT run_id, start_until, start_until - start_timeout AS from_at, roadstead_now() AS now
         FROM task WHERE claim_until IS NULL AND start_until IS NOT NULL",
    )
    .fetch_all(&test.pool)
    .await
    .unwrap();
    let outages = sqlx::query("SELECT from_at, until_at FROM outage ORDER BY from_at");
    let outages: Vec<(Timestamp, Timestamp)> =
        outages.fetch_all(&test.pool).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    let slack =
        chrono::Duration::from_std(test.config.coordinator.sweep_interval * 2 + Duration::from_secs(1)).unwrap();
    let mut overdue = Vec::new();
    for task in tasks {
        let (run_id, now): (String, Timestamp) = (task.get(0), task.get(3));
        let (mut end, mut counted): (Timestamp, Timestamp) = (task.get(1), task.get(2));
        for (from, until) in &outages {
            let from = counted.max(*from);
            if from < end && from < *until {
                end += *until - from;
                counted = *until;
            }
        }
        if now - end > slack {
            overdue.push(format!("run {run_id} was to be started by {end} and was not failed by {now}"));
        }
    }
    overdue
}

fn fits(selector: &Value, offer: Option<&Value>) -> bool {
    let Some(offer) = offer else { return true };
    let empty = serde_json::Map::new();
    let wanted = selector["equal"].as_object().unwrap_or(&empty);
    wanted.iter().all(|(key, value)| offer["labels"].get(key) == Some(value))
        && selector.get("target").is_none_or(|target| *target == offer["worker_id"])
        && offer["exclusive"]
            .as_array()
            .is_none_or(|keys| keys.iter().all(|key| wanted.contains_key(key.as_str().unwrap())))
}
