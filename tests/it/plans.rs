//! The plans of the hot statements: by index, and at a cost that does not grow with what waits.
//!
//! The statements are the recorded ones, so that what is explained is what runs. Each is explained with the plan made
//! for its values and with the generic one, after an ANALYZE that saw nothing claimed.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use roadstead::ids::{NamespaceId, SelectorNo};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::harness::{Test, with};

const FEW: i64 = 2_000;
const MANY: i64 = 200_000;

/// How much more the same statement may read when a hundred times as much waits.
const GROWTH: f64 = 1.5;

/// The recorded statements by the name in their opening comment.
fn statements() -> HashMap<String, String> {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let files = fs::read_dir(recorded).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    files
        .map(|text| {
            let query = serde_json::from_str::<Value>(&text).unwrap()["query"].as_str().unwrap().to_owned();
            let name = query[3..query.find(" */").unwrap()].to_owned();
            (name, query)
        })
        .collect()
}

/// Waiting runs `n` of them, all asking for selector `no`, each dispatched `age` ago with this wait.
async fn fill(t: &Test, no: i64, n: i64, age: &str, wait: &str) {
    for statement in [
        "INSERT INTO run (namespace_id, dag_name, run_id, status, version, attempt_id, attempt_number, operation, fence,
             selector_no, wait, start_timeout, priority, labels, request_digest, queued_at, created_at, updated_at)
         SELECT 1, 'dag', NO || '-' || i, 'queued', 1, md5('NO-' || i)::uuid, 1, 'start', 0, NO, interval 'WAIT',
             interval '6 days', 0, '{}', '\\x00', at, at, at
         FROM generate_series(1, N) i, LATERAL (SELECT roadstead_now() - interval 'AGE' + i * interval '1 us' AS at) t",
        "INSERT INTO attempt (namespace_id, attempt_id, dag_name, run_id, number, operation, status, queued_at)
         SELECT 1, attempt_id, dag_name, run_id, 1, 'start', 'queued', queued_at FROM run WHERE selector_no = NO",
        "INSERT INTO task (namespace_id, attempt_id, dag_name, run_id, selector_no, priority, hold_from, wait,
             hold_until, start_timeout, start_until, fence)
         SELECT 1, attempt_id, dag_name, run_id, NO, 0, queued_at, wait, queued_at + wait, start_timeout,
             queued_at + start_timeout, 0
         FROM run WHERE selector_no = NO",
        "INSERT INTO payload (namespace_id, dag_name, run_id) SELECT 1, dag_name, run_id FROM run WHERE selector_no = NO",
        "INSERT INTO event (namespace_id, dag_name, run_id, run_seq, event_id, type, occurred_at, data)
         SELECT 1, dag_name, run_id, 1, attempt_id, 'dag.run.queued', queued_at,
             '{\"run\": {\"status\": \"queued\", \"version\": 1}}'
         FROM run WHERE selector_no = NO",
        "WITH moved AS (UPDATE feed SET next_position = next_position + N WHERE namespace_id = 1
             RETURNING next_position - N AS first)
         INSERT INTO feed_entry (namespace_id, position, dag_name, run_id, run_seq)
         SELECT 1, first - 1 + row_number() OVER (ORDER BY run_id), dag_name, run_id, 1
         FROM run, moved WHERE selector_no = NO",
    ] {
        let statement = statement
            .replace("NO", &no.to_string())
            .replace("WAIT", wait)
            .replace("AGE", age)
            .replace("(1, N)", &format!("(1, {n})"))
            .replace("next_position + N ", &format!("next_position + {n} "))
            .replace("next_position - N ", &format!("next_position - {n} "));
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&t.pool).await.unwrap();
    }
    sqlx::raw_sql("VACUUM ANALYZE").execute(&t.pool).await.unwrap();
}

/// What explaining a statement showed: the blocks it read, and whether it read a whole large table.
struct Explained {
    blocks: i64,
    scans: Vec<String>,
}

async fn explain(conn: &mut PgConnection, query: &str, mode: &str, arguments: &str) -> Explained {
    let mut tx = conn.begin().await.unwrap();
    let prepare = format!("SET LOCAL plan_cache_mode = {mode}; PREPARE explained AS {query}");
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *tx).await.unwrap();
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE explained ({arguments})");
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut *tx).await.unwrap();
    let plan: Value = sqlx::Row::get(&rows[0], 0);
    sqlx::raw_sql("DEALLOCATE explained").execute(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    let root = &plan[0]["Plan"];
    let blocks = root["Shared Hit Blocks"].as_i64().unwrap() + root["Shared Read Blocks"].as_i64().unwrap();
    let mut scans = Vec::new();
    find_scans(root, &mut scans);
    Explained { blocks, scans }
}

fn find_scans(plan: &Value, found: &mut Vec<String>) {
    let relation = plan["Relation Name"].as_str().unwrap_or_default();
    let large = ["task", "run", "run_label", "attempt", "payload", "event", "worker"].contains(&relation)
        // Every statement about sessions reads few of them, but for tests that have few.
        || relation == "worker_session" && plan["Actual Rows"].as_f64().is_some_and(|rows| rows > 1_000.0);
    if large && plan["Node Type"] == "Seq Scan" {
        found.push(relation.to_owned());
    }
    for below in plan["Plans"].as_array().into_iter().flatten() {
        find_scans(below, found);
    }
}

/// The statements of one scenario with their arguments.
type Cases = &'static [(&'static str, &'static str)];

/// Explains each statement and answers with what it read by name and mode; whole-table reads are a failure.
async fn measure(t: &Test, cases: &[(&str, &str)]) -> Vec<(String, i64)> {
    let statements = statements();
    let mut conn = t.pool.acquire().await.unwrap();
    let mut read = Vec::new();
    for (name, arguments) in cases {
        let query = statements.get(*name).unwrap_or_else(|| panic!("{name} is not recorded"));
        for mode in ["force_custom_plan", "force_generic_plan"] {
            // Once for the caches of the session, once to be counted.
            explain(&mut conn, query, mode, arguments).await;
            let explained = explain(&mut conn, query, mode, arguments).await;
            assert!(explained.scans.is_empty(), "{name} ({mode}) reads the whole of {:?}", explained.scans);
            read.push((format!("{name} ({mode}) of ({arguments})"), explained.blocks));
        }
    }
    read
}

/// Fails if a statement reads much more with much than with little; four blocks more are an index one level higher.
fn assert_flat(little: &[(String, i64)], much: &[(String, i64)]) {
    let grown: Vec<String> = little
        .iter()
        .zip(much)
        .filter(|((_, before), (_, after))| {
            #[expect(clippy::cast_precision_loss, reason = "block counts are small")]
            let allowed = (*before as f64 * GROWTH).max(*before as f64 + 4.0);
            #[expect(clippy::cast_precision_loss, reason = "block counts are small")]
            let after = *after as f64;
            after > allowed
        })
        .map(|((name, before), (_, after))| format!("{name}: {before} blocks with {FEW} rows, {after} with {MANY}"))
        .collect();
    assert!(grown.is_empty(), "cost grows with what waits:\n{}", grown.join("\n"));
}

/// Interns what the scenarios speak of: selector 1 for the crowd, selector 2 for the one task that matches label set 1.
async fn intern(t: &Test) {
    for statement in [
        "UPDATE namespace SET last_selector_no = 2, last_label_set_no = 1",
        "INSERT INTO selector (namespace_id, selector_no, digest, canonical, terms) VALUES
            (1, 1, '\\x01', '{\"equal\":{\"zone\":\"x\"}}', '{zone=x}'),
            (1, 2, '\\x02', '{\"equal\":{\"zone\":\"b\"}}', '{zone=b}')",
        "INSERT INTO label_set (namespace_id, label_set_no, digest, canonical, terms) VALUES
            (1, 1, '\\x01', '{\"labels\":{\"zone\":\"b\"},\"worker_id\":\"w\"}', '{zone=b}')",
    ] {
        sqlx::raw_sql(statement).execute(&t.pool).await.unwrap();
    }
}

/// With nothing but tasks that the worker may not take, and one that it may.
const CLAIM: Cases = &[
    ("store::claim::look", "1, '{2}', 'w', 's'"),
    ("store::claim::lock", "1, ARRAY[md5('2-1')::uuid]"),
    ("store::contents::read", "1, ARRAY[md5('2-1')::uuid]"),
    ("store::contents::sizes", "1, ARRAY[md5('2-1')::uuid]"),
    (
        "store::claim::write",
        "1, ARRAY[md5('2-1')::uuid], '{w}', '{s}', '{NULL}', ARRAY['\\x00'::bytea], roadstead_now(), roadstead_now() + interval '15 s'",
    ),
    ("store::claim::claimable", "1, '{2}'"),
    ("store::signs::recent", "1, '{w}', '{s}'"),
    ("store::signs::lock_free", "1, '{w}', '{s}'"),
    ("store::attempts::of_run", "1, 'dag', '2-1', 0, 50"),
    ("store::attempts::follower", "1, 'dag', '2-1', md5('2-1')::uuid, NULL"),
    ("store::family::lock_parent", "1, 'dag', '2-1'"),
    ("store::family::children", "1, 'dag', '2-1', '', ''"),
    ("store::family::parents_among", "1, '{dag}', '{2-1}'"),
    ("store::lock::runs", "1, '{dag}', '{2-1}'"),
    ("store::lock::attempts", "1, ARRAY[md5('2-1')::uuid]"),
    ("store::lock::parked", "1, ARRAY[md5('2-1')::uuid]"),
    ("store::lock::tasks", "1, ARRAY[md5('2-1')::uuid]"),
    ("store::lock::whereabouts", "1, md5('2-1')::uuid, 1000000"),
    ("store::lock::run", "1, 'dag', '2-1'"),
    ("store::lock::attempt", "1, md5('2-1')::uuid"),
    ("store::lock::task", "1, md5('2-1')::uuid"),
    ("store::from_tasks::lock", "1, ARRAY[md5('2-1')::uuid]"),
    ("store::save::tasks (drop)", "1, ARRAY[md5('2-1')::uuid]"),
    ("store::situation::read", "1, '{1}'"),
    ("store::situation::read_all", "1, '{1,2}', '{1}', '{1,1}', '{0,1}'"),
    ("store::intern::label_sets_for (by number)", "1, '{1,2}', '{0,0}', 1"),
    ("store::session::used_slots", "1, '{w}', '{s}'"),
    ("store::worker::news", "1, 'w', 's'"),
    ("store::beats::heard", "1, '{w}', '{s}', '{true}', '{1}', ARRAY[md5('2-1')::uuid], ARRAY['\\x00'::bytea]"),
    ("store::beats::note", "1, '{w}', '{s}', '{1}', ARRAY[md5('2-1')::uuid], ARRAY['\\x00'::bytea]"),
    ("store::beats::renewed", "1, md5('2-1')::uuid, true"),
    ("store::beats::kept", "1, md5('2-1')::uuid"),
    ("store::read::runs", "1, '{dag}', '{2-1}'"),
    ("store::read::detail", "1, 'dag', '2-1', true"),
    ("store::read::versions", "1, '{dag}', '{2-1}'"),
    ("store::event::of_run", "1, 'dag', '2-1', 0, 50"),
    ("store::feed::has_unstamped", "1"),
    ("store::feed::bounds", "1"),
    ("store::feed::page", "1, 1000, 9000000000, NULL, NULL, NULL, NULL, NULL, 50"),
    ("store::feed::page", "1, 1000, 1900, 'dag.run.queued', 'dag', NULL, NULL, NULL, 50"),
    ("store::create::taken (identity)", "1, 'dag', '2-1'"),
];

/// What each sweep asks, with tasks whose holds are far away.
const SWEEP: Cases = &[
    ("store::sweep::newly_due", "1, roadstead_now() - interval '1 s'"),
    ("store::sweep::selectors", "1, 0"),
    ("store::sweep::with_tasks", "1, '{1,2}'"),
    ("store::family::cascading", "1, NULL, ''"),
    ("store::sweep::waits", "1, '{1}'"),
    ("store::sweep::lapsed_claims", "1, '1970-01-01', md5('')::uuid"),
    ("store::sweep::ended_holders", "1"),
    ("store::sweep::silent_sessions", "1"),
    ("store::beats::doubtful", "1, 10000000"),
    ("store::sweep::start_due", "1, '1970-01-01', md5('')::uuid"),
    ("store::presence::outages", "1, '1970-01-01'"),
    ("store::sweep::held_by (claims)", "1, 'w', 's'"),
    ("store::sweep::held_by (running)", "1, 'w', 's'"),
    ("store::sweep::next_due", "1"),
    (
        "store::sweep::expired_in",
        "1, '{1}', '{7200000000}', ARRAY[roadstead_now() - interval '1 day'], '1970-01-01', md5('')::uuid",
    ),
];

/// What each sweep asks, with tasks whose holds would be over if their workers were not there, and busy.
const SWEEP_BEHIND_BUSY: Cases = &[
    ("store::sweep::newly_due", "1, roadstead_now() - interval '1 s'"),
    ("store::sweep::selectors", "1, 0"),
    ("store::sweep::waits", "1, '{1}'"),
    ("store::sweep::start_due", "1, '1970-01-01', md5('')::uuid"),
    ("store::sweep::next_due", "1"),
    ("store::presence::label_sets (present)", "1"),
    ("store::presence::label_sets (ceased)", "1, roadstead_now() - interval '1 s'"),
    ("store::presence::stretches", "1, '{2}', roadstead_now() - interval '3 hours'"),
    ("store::situation::read", "1, '{2}'"),
    ("store::claim::look", "1, '{1}', NULL, NULL"),
    (
        "store::create::create",
        "1, NULL, '\\x00', 'dag', 'new', roadstead_now(), 'queued', 1, md5('new')::uuid, 1, 'start', 1, 120000000, 0, '{}',
         NULL, NULL, NULL, NULL, NULL, roadstead_now(), NULL, NULL, NULL, md5('event')::uuid, 'dag.run.queued', '{}',
         '{team=x}', 1, NULL, NULL, 'busy', 's', 2, NULL, '\\x01', roadstead_now() + interval '15 s', '{}',
         600000000, false, false",
    ),
];

/// A worker with label set 2, which fits the crowd, present for a day and without a free slot.
async fn busy_worker(t: &Test) {
    for statement in [
        "UPDATE namespace SET last_label_set_no = 2",
        "INSERT INTO label_set (namespace_id, label_set_no, digest, canonical, terms) VALUES
            (1, 2, '\\x02', '{\"labels\":{\"zone\":\"x\"},\"worker_id\":\"busy\"}', '{zone=x}')",
        "INSERT INTO worker_session (namespace_id, worker_id, session_id, label_set_no, slots, stale_after, lease_ttl,
            started_at, last_seen, present_from)
         VALUES (1, 'busy', 's', 2, 0, '1 hour', '1 hour', roadstead_now() - interval '1 day', roadstead_now(),
            roadstead_now() - interval '1 day')",
    ] {
        sqlx::raw_sql(statement).execute(&t.pool).await.unwrap();
    }
}

async fn with_waiting(age: &'static str, wait: &'static str, busy: bool, cases: Cases) {
    let mut read = Vec::new();
    for crowd in [FEW, MANY] {
        with(async |t| {
            intern(t).await;
            if busy {
                busy_worker(t).await;
            }
            fill(t, 1, crowd, age, wait).await;
            fill(t, 2, 1, "1 s", "2 hours").await;
            read.push(measure(t, cases).await);
            // The service's own sweeper has met them all meanwhile, and failed none.
            assert_eq!(t.count("SELECT count(*) FROM task").await, crowd + 1);
        })
        .await;
    }
    assert_flat(&read[0], &read[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_costs_the_same_however_many_wait_for_others() {
    with_waiting("1 minute", "2 hours", false, CLAIM).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_costs_the_same_however_many_wait() {
    with_waiting("1 minute", "2 hours", false, SWEEP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_costs_the_same_however_many_wait_behind_busy_workers() {
    with_waiting("3 hours", "2 minutes", true, SWEEP_BEHIND_BUSY).await;
}

/// Selectors, `n` of them, and two more: one that the label set may fit by its term, and one that has expressions only, which
/// is a candidate for every label set. Who knows none finds them by the index on terms, whatever else there is; who knows
/// all but the last reads that one, however many others fit.
#[tokio::test(flavor = "multi_thread")]
async fn the_selectors_of_a_label_set_cost_the_same_to_find_however_many_there_are() {
    let mut read = Vec::new();
    for n in [FEW, MANY] {
        let mut all = Vec::new();
        for (path, crowd, known) in [("by terms", "'zone=x' || i", 0), ("by number", "'zone=b'", n + 1)] {
            with(async |t| {
                for statement in [
                    "INSERT INTO selector (namespace_id, selector_no, digest, canonical, terms)
                     SELECT 1, i, decode(md5(i::text), 'hex'), '{\"target\":\"w\"}', ARRAY[CROWD] FROM generate_series(1, N) i",
                    "INSERT INTO selector (namespace_id, selector_no, digest, canonical, terms) VALUES
                        (1, N + 1, '\\x01', '{\"equal\":{\"zone\":\"b\"}}', '{zone=b}'),
                        (1, N + 2, '\\x02', '{\"expressions\":[{\"key\":\"cores\",\"operator\":\"exists\"}]}', '{}')",
                    "UPDATE namespace SET last_selector_no = N + 2",
                    "VACUUM ANALYZE",
                ] {
                    let statement = statement.replace("CROWD", crowd).replace("(1, N)", &format!("(1, {n})"));
                    let statement = statement.replace("N + ", &format!("{n} + "));
                    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&t.pool).await.unwrap();
                }
                let terms = ["cores=8".to_owned(), "zone=b".to_owned()];
                let mut conn = t.pool.acquire().await.unwrap();
                let found = roadstead::store::intern::selectors_within(&mut conn, NamespaceId(1), &terms, known).await;
                let (last, found) = found.unwrap();
                let mut found: Vec<i64> = found.into_iter().map(|(no, _)| no.0).collect();
                found.sort_unstable();
                assert_eq!((last, found), (n + 2, (n + 1..=n + 2).filter(|no| *no > known).collect()));
                let arguments = format!("1, '{{cores=8,zone=b}}', {known}, {}", n + 2);
                all.extend(measure(t, &[(&format!("store::intern::selectors_within ({path})"), &arguments)]).await);
            })
            .await;
        }
        read.push(all);
    }
    assert_flat(&read[0], &read[1]);
}

/// The other way round: label sets, `n` of them, and the last one that a selector with expressions only, one with a term and
/// the empty one have not met yet; and one with a term that has met none.
#[tokio::test(flavor = "multi_thread")]
async fn the_label_sets_for_a_selector_cost_the_same_to_find_however_many_there_are() {
    let mut read = Vec::new();
    for n in [FEW, MANY] {
        with(async |t| {
            for statement in [
                "INSERT INTO selector (namespace_id, selector_no, digest, canonical, terms) VALUES
                    (1, 1, '\\x01', '{\"expressions\":[{\"key\":\"cores\",\"operator\":\"exists\"}]}', '{}'),
                    (1, 2, '\\x02', '{\"equal\":{\"zone\":\"b\"}}', '{zone=b}'), (1, 3, '\\x03', '{}', '{}')",
                "INSERT INTO label_set (namespace_id, label_set_no, digest, canonical, terms)
                 SELECT 1, i, decode(md5(i::text), 'hex'), '{\"worker_id\":\"w\"}', ARRAY['zone=x' || i] FROM generate_series(1, N) i",
                "INSERT INTO label_set (namespace_id, label_set_no, digest, canonical, terms) VALUES
                    (1, N + 1, '\\x01', '{\"labels\":{\"zone\":\"b\"},\"worker_id\":\"w\"}', '{zone=b}')",
                "UPDATE namespace SET last_selector_no = 3, last_label_set_no = N + 1",
                "VACUUM ANALYZE",
            ] {
                let statement = statement.replace("(1, N)", &format!("(1, {n})")).replace("N + ", &format!("{n} + "));
                sqlx::raw_sql(AssertSqlSafe(statement)).execute(&t.pool).await.unwrap();
            }
            let known = [(SelectorNo(1), n), (SelectorNo(2), n), (SelectorNo(3), n), (SelectorNo(2), 0)];
            let mut conn = t.pool.acquire().await.unwrap();
            let found = roadstead::store::intern::label_sets_for(&mut conn, NamespaceId(1), &known).await;
            let (last, found) = found.unwrap();
            let mut found: Vec<(i64, i64)> = found.into_iter().map(|(selector, set, _)| (selector.0, set.0)).collect();
            found.sort_unstable();
            assert_eq!((last, found), (n + 1, [1, 2, 2, 3].map(|selector| (selector, n + 1)).into()));
            let one_more = format!("1, '{{1,2,3}}', '{{{n},{n},{n}}}', {}", n + 1);
            let first = format!("1, '{{2}}', '{{0}}', {}", n + 1);
            let cases = [
                ("store::intern::label_sets_for (by number)", one_more.as_str()),
                ("store::intern::label_sets_for (by terms)", first.as_str()),
            ];
            read.push(measure(t, &cases).await);
        })
        .await;
    }
    assert_flat(&read[0], &read[1]);
}

/// Runs that have all been through: `n` of them, one a microsecond, a tenth each queued and running, the rest succeeded,
/// all of one DAG, one family, one worker and one label, but for the oldest, which shares nothing with them.
async fn fill_history(t: &Test, n: i64) {
    for statement in [
        "INSERT INTO run (namespace_id, dag_name, run_id, status, version, attempt_id, attempt_number, operation, fence,
             selector_no, wait, priority, labels, root_dag_name, root_run_id, parent_dag_name, parent_run_id, worker_id,
             request_digest, queued_at, started_at, finished_at, created_at, updated_at)
         SELECT 1, name, 'r' || lpad(i::text, 9, '0'), status, 1, md5('h' || i)::uuid, 1, 'start', 0, 1, '1 hour', 0,
             jsonb_build_object('team', name), name, name, name, name,
             CASE WHEN status <> 'queued' THEN name END, '\\x00', at,
             CASE WHEN status <> 'queued' THEN at END, CASE WHEN status IN ('succeeded', 'failed') THEN at END, at, at
         FROM generate_series(0, N) i, LATERAL (
             SELECT timestamptz '2026-01-01Z' + i * interval '1 us' AS at, CASE i WHEN 0 THEN 'rare' ELSE 'dag' END AS name,
                 CASE WHEN i = 0 THEN 'failed' WHEN i % 10 = 0 THEN 'queued' WHEN i % 10 = 1 THEN 'running'
                      ELSE 'succeeded' END AS status) v",
        "INSERT INTO run_label (namespace_id, term, created_at, dag_name, run_id)
         SELECT 1, 'team=' || dag_name, created_at, dag_name, run_id FROM run",
        "INSERT INTO task (namespace_id, attempt_id, dag_name, run_id, selector_no, priority, hold_from, wait,
             hold_until, fence)
         SELECT 1, attempt_id, dag_name, run_id, 1, 0, at, wait, at + wait, 0
         FROM run, LATERAL (SELECT greatest(created_at, now()) AS at) t WHERE status = 'queued'",
        "VACUUM ANALYZE",
    ] {
        let statement = statement.replace("(0, N)", &format!("(0, {n})"));
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&t.pool).await.unwrap();
    }
}

/// What people ask of a list of runs: path, status, DAG, root, parent, worker, labels. `told` when the index tells all.
const LISTS: &[(&str, bool, [&str; 6])] = &[
    ("time", true, ["", "", "", "", "", ""]),
    ("unfinished", true, ["queued", "", "", "", "", ""]),
    ("unfinished", true, ["running", "", "", "", "", ""]),
    ("unfinished", true, ["waiting", "", "", "", "", ""]),
    ("finished", true, ["succeeded", "", "", "", "", ""]),
    ("finished", true, ["failed", "", "", "", "", ""]),
    ("dag", true, ["", "dag", "", "", "", ""]),
    ("dag", true, ["", "rare", "", "", "", ""]),
    ("dag and status", true, ["succeeded", "dag", "", "", "", ""]),
    ("dag and status", true, ["failed", "dag", "", "", "", ""]),
    ("root", true, ["", "", "dag", "", "", ""]),
    ("root", true, ["", "", "rare", "", "", ""]),
    ("parent", true, ["", "", "", "dag", "", ""]),
    ("parent", true, ["", "", "", "none", "", ""]),
    ("worker", true, ["", "", "", "", "dag", ""]),
    ("worker", true, ["", "", "", "", "none", ""]),
    ("label", true, ["", "", "", "", "", "dag"]),
    ("label", true, ["", "", "", "", "", "rare"]),
    // What no index tells is checked on a window of the one that tells most.
    ("label", false, ["succeeded", "", "", "", "", "dag"]),
    ("label", false, ["failed", "", "", "", "", "dag"]),
    ("label", false, ["", "rare", "", "", "", "dag"]),
    ("unfinished", false, ["queued", "", "", "", "", "rare"]),
    ("dag and status", false, ["succeeded", "dag", "", "", "", "rare"]),
    ("parent", false, ["failed", "", "", "dag", "", ""]),
    ("root", false, ["", "rare", "dag", "", "", ""]),
    ("worker", false, ["", "", "", "rare", "dag", ""]),
];

/// Every list, in either order, from its beginning and from its middle.
fn lists(n: i64) -> Vec<List> {
    let at = |i: i64| format!("timestamptz '2026-01-01Z' + {i} * interval '1 us', 'dag', 'r{i:09}'");
    let text = |value: &str| if value.is_empty() { "NULL".to_owned() } else { format!("'{value}'") };
    let mut lists = Vec::new();
    for (path, told, filters) in LISTS {
        let [status, dag, root, parent, worker] = std::array::from_fn(|index| text(filters[index]));
        let labels =
            text(&if filters[5].is_empty() { String::new() } else { format!("{{\"team\": \"{}\"}}", filters[5]) });
        for (direction, after) in [("oldest", -1), ("oldest", n / 2), ("newest", n * 2), ("newest", n / 2)] {
            let arguments = format!("{told}, {status}, {dag}, {root}, {parent}, {worker}, {labels}, 51");
            let name = format!("store::list::keys ({path}, {direction})");
            lists.push(List { name, arguments: format!("1, {}, {arguments}", at(after)), told: *told });
        }
    }
    lists
}

/// One page to be explained.
struct List {
    name: String,
    arguments: String,
    told: bool,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_runs_costs_the_same_however_many_there_are() {
    let mut read = Vec::new();
    for n in [FEW, MANY] {
        with(async |t| {
            intern(t).await;
            fill_history(t, n).await;
            let lists = lists(n);
            let [told, checked] = [true, false].map(|told| {
                let lists = lists.iter().filter(move |list| list.told == told);
                lists.map(|list| (list.name.as_str(), list.arguments.as_str())).collect::<Vec<_>>()
            });
            read.push(measure(t, &told).await);
            // A row that has to be looked at costs its way down the primary key and itself.
            for (list, blocks) in measure(t, &checked).await {
                assert!(blocks <= 6 * roadstead::store::list::WINDOW, "{list} reads {blocks} blocks");
            }
            // They were made up, and their story is not whole.
            sqlx::raw_sql("TRUNCATE run, run_label, task").execute(&t.pool).await.unwrap();
        })
        .await;
    }
    assert_flat(&read[0], &read[1]);
    for (list, blocks) in &read[1] {
        assert!(*blocks <= 120, "{list} reads {blocks} blocks for 50 runs");
    }
}

/// Workers that were, `n` of them, and a hundred that are; half of either offer what the others do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_workers_costs_the_same_however_many_there_ever_were() {
    let mut read = Vec::new();
    for n in [FEW, MANY] {
        with(async |t| {
            intern(t).await;
            for statement in [
                "INSERT INTO worker_session (namespace_id, worker_id, session_id, label_set_no, slots, stale_after,
                    lease_ttl, started_at, last_seen, present_from, ended_at, end_reason)
                 SELECT 1, 'w' || lpad(i::text, 9, '0'), 's', 1, 1, '1 hour', '1 hour', at, at,
                     CASE WHEN alive THEN at END, CASE WHEN NOT alive THEN at END, CASE WHEN NOT alive THEN 'left' END
                 FROM generate_series(1, N) i,
                     LATERAL (SELECT clock_timestamp() AS at, i % (N / 100) = 0 AS alive) v",
                "INSERT INTO worker (namespace_id, worker_id, session_id, created_at)
                 SELECT 1, worker_id, session_id, started_at FROM worker_session",
                "VACUUM ANALYZE",
            ] {
                let statement =
                    statement.replace("(1, N)", &format!("(1, {n})")).replace("(N / 100)", &(n / 100).to_string());
                sqlx::raw_sql(AssertSqlSafe(statement)).execute(&t.pool).await.unwrap();
            }
            let (from, middle) = ("1, ''".to_owned(), format!("1, 'w{:09}'", n / 2));
            let alive = format!("{from}, false, '{{}}', 'healthy', 51");
            let alive_on = format!("{middle}, false, '{{zone=b}}', 'healthy', 51");
            let all = format!("{from}, true, '{{}}', NULL, 51");
            let all_on = format!("{middle}, true, '{{}}', NULL, 51");
            let offering = format!("{middle}, false, '{{zone=b}}', NULL, 51");
            let ended = format!("{middle}, false, '{{}}', 'ended', 51");
            read.push(
                measure(
                    t,
                    &[
                        ("store::list::workers (alive)", &alive),
                        ("store::list::workers (alive)", &alive_on),
                        ("store::list::workers (all)", &all),
                        ("store::list::workers (all)", &all_on),
                        ("store::list::workers (all)", &offering),
                        ("store::list::workers (all)", &ended),
                    ],
                )
                .await,
            );
            // What nobody offers is looked for in a window, and no further.
            let nobody = format!("{from}, false, '{{zone=x}}', NULL, 51");
            for (list, blocks) in measure(t, &[("store::list::workers (all)", &nobody)]).await {
                assert!(blocks <= 8 * roadstead::store::list::WINDOW, "{list} reads {blocks} blocks");
            }
            sqlx::raw_sql("TRUNCATE worker, worker_session").execute(&t.pool).await.unwrap();
        })
        .await;
    }
    assert_flat(&read[0], &read[1]);
}
