//! Lists page by page: nothing is left out and nothing comes twice, whatever happens meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Client, Dice, Test, Worker, spawn, until, with};

/// One page, and where the next one begins.
async fn page(client: &Client, path: &str, cursor: Option<&str>) -> (Vec<Value>, Option<String>) {
    let cursor = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
    let page = client.get(&format!("{path}{cursor}")).await.ok();
    let items = page.get("runs").or_else(|| page.get("workers")).unwrap().as_array().unwrap().clone();
    assert!(page.get("next_cursor").is_none_or(Value::is_string), "{page:#}");
    (items, page["next_cursor"].as_str().map(str::to_owned))
}

/// All pages, one after the other.
async fn pages(client: &Client, path: &str) -> Vec<Vec<Value>> {
    let (mut pages, mut cursor) = (Vec::new(), None);
    loop {
        let (items, next) = page(client, path, cursor.as_deref()).await;
        pages.push(items);
        assert!(pages.len() < 1_000, "{path} does not end");
        match next {
            Some(next) => cursor = Some(next),
            None => return pages,
        }
    }
}

/// The run ids of all pages, in order.
async fn listed(client: &Client, query: &str) -> Vec<String> {
    let ids = pages(client, &format!("/v1/runs?{query}")).await.into_iter().flatten();
    ids.map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
}

/// Gives the runs, in the order of their ids, times of which three share each microsecond.
async fn crowd_together(t: &Test) {
    let times = "(SELECT dag_name, run_id, timestamptz '2026-01-01Z'
         + row_number() OVER (ORDER BY run_id) / 3 * interval '1 microsecond' AS at FROM run) v";
    for table in ["run", "run_label"] {
        let statement = format!(
            "UPDATE {table} r SET created_at = v.at FROM {times} WHERE r.dag_name = v.dag_name AND r.run_id = v.run_id"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&t.pool).await.unwrap();
    }
}

/// B133: three runs a microsecond, so that most share their time with others, by every path and page size.
#[tokio::test(flavor = "multi_thread")]
async fn runs_of_one_microsecond_are_told_apart_by_their_names() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 40})).await;
        let family = json!({"dag_name": "top", "run_id": "top"});
        for number in 0..30 {
            let body = json!({"labels": {"team": "data", "n": number.to_string()}, "root": family, "parent": family,
                "worker_selector": if number % 3 == 0 { json!({}) } else { json!({"zone": "x"}) }});
            t.client.dispatch(&format!("r{number:02}"), body).await.ok();
        }
        // Ten are the worker's: four run, three have ended, three are given to it and not acknowledged.
        let mut tasks = Vec::new();
        for _ in 0..10 {
            tasks.push(worker.take().await);
        }
        for (at, task) in tasks.iter().enumerate().take(7) {
            worker.ack(task).await.ok();
            if at < 3 {
                worker.report(task, "failed").await.ok();
            }
        }
        crowd_together(t).await;
        let all: Vec<String> = (0..30).map(|number| format!("r{number:02}")).collect();
        let own: Vec<String> = all.iter().step_by(3).cloned().collect();
        let queued = |id: &&String| !own[..7].contains(id);
        let cases: Vec<(&str, Vec<String>)> = vec![
            ("", all.clone()),
            ("dag_name=dag", all.clone()),
            ("root_run_id=top", all.clone()),
            ("parent_run_id=top", all.clone()),
            ("label=team%3Ddata", all.clone()),
            ("worker_id=w", own.clone()),
            ("status=queued", all.iter().filter(queued).cloned().collect()),
            ("status=queued&dag_name=dag", all.iter().filter(queued).cloned().collect()),
            ("status=queued&worker_id=w", own[7..].to_vec()),
            ("status=running&root_run_id=top", own[3..7].to_vec()),
            ("status=failed", own[..3].to_vec()),
            ("status=failed&label=team%3Ddata", own[..3].to_vec()),
            ("status=failed&dag_name=dag&label=team%3Ddata", own[..3].to_vec()),
            ("label=n%3D7,team%3Ddata", vec!["r07".to_owned()]),
            ("parent_run_id=top&worker_id=w", own.clone()),
            ("reason=ClaimPending", own[7..].to_vec()),
            ("reason=NoMatchingWorker", all.iter().filter(|id| !own.contains(id)).cloned().collect()),
            (
                "reason=NoMatchingWorker&status=queued&dag_name=dag",
                all.iter().filter(|id| !own.contains(id)).cloned().collect(),
            ),
            ("reason=NoMatchingWorker&status=running", vec![]),
            ("created_after=2026-01-01T00:00:00.000005Z", all[14..].to_vec()),
            ("created_after=2026-01-01T00:00:00.000004001Z", all[14..].to_vec()),
            ("created_before=2026-01-01T00:00:00.000005Z", all[..14].to_vec()),
            ("created_before=2026-01-01T00:00:00.000004001Z", all[..14].to_vec()),
            (
                "created_after=2026-01-01T00:00:00.000003Z&created_before=2026-01-01T00:00:00.000004Z",
                all[8..11].to_vec(),
            ),
            ("label=team%3Ddata&created_after=2026-01-01T00:00:00.000009Z", all[26..].to_vec()),
        ];
        for (query, expected) in &cases {
            let backwards: Vec<String> = expected.iter().rev().cloned().collect();
            for limit in [1, 7] {
                assert_eq!(
                    listed(&t.client, &format!("{query}&limit={limit}&order=oldest")).await,
                    *expected,
                    "{query}"
                );
            }
            for limit in [2, 500] {
                assert_eq!(listed(&t.client, &format!("{query}&limit={limit}")).await, backwards, "{query}");
            }
        }
        // The last page says that it is the last, also when it is full.
        for (limit, sizes) in [(10, vec![10, 10, 10]), (29, vec![29, 1]), (30, vec![30]), (31, vec![30])] {
            let pages = pages(&t.client, &format!("/v1/runs?limit={limit}")).await;
            assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        }
        for task in &tasks[3..7] {
            worker.report(task, "succeeded").await.ok();
        }
    })
    .await;
}

/// B133: runs that were there throughout come exactly once while others arrive, start and end.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_throughout_comes_once_whatever_else_happens() {
    with(async |t| {
        let steady: BTreeSet<String> = (0..60).map(|number| format!("steady-{number:02}")).collect();
        let body = json!({"worker_selector": {"zone": "none"}, "labels": {"team": "data"}});
        for run_id in &steady {
            t.client.dispatch(run_id, body.clone()).await.ok();
        }
        let done = Arc::new(AtomicBool::new(false));
        let mut churning = Vec::new();
        for lane in 0..3 {
            let (client, done) = (t.client.clone(), Arc::clone(&done));
            churning.push(spawn(async move {
                let worker = Worker::register(&client, &format!("w{lane}"), json!({"lane": lane.to_string()})).await;
                let mut number = 0;
                while !done.load(Ordering::Relaxed) {
                    let run_id = format!("churn-{lane}-{number}");
                    let body = json!({"worker_selector": {"lane": lane.to_string()}, "labels": {"team": "data"}});
                    client.dispatch(&run_id, body).await.ok();
                    if number % 4 == 0 {
                        client.cancel(&run_id).await.ok();
                    } else {
                        worker.work_one().await;
                    }
                    number += 1;
                }
                number
            }));
        }
        for round in 0..6 {
            let order = if round % 2 == 0 { "oldest" } else { "newest" };
            for filter in ["", "&status=queued", "&dag_name=dag", "&label=team%3Ddata", "&reason=NoMatchingWorker"] {
                let seen = listed(&t.client, &format!("limit=7&order={order}{filter}")).await;
                let mut times: BTreeMap<&str, u32> = BTreeMap::new();
                for run_id in &seen {
                    *times.entry(run_id).or_default() += 1;
                }
                assert!(times.values().all(|times| *times == 1), "{filter}: some came twice: {times:?}");
                let missing: Vec<&String> = steady.iter().filter(|id| !times.contains_key(id.as_str())).collect();
                assert!(missing.is_empty(), "{filter}: {missing:?} did not come");
            }
        }
        done.store(true, Ordering::Relaxed);
        for lane in churning {
            assert!(lane.await.unwrap() > 0, "nothing happened meanwhile");
        }
    })
    .await;
}

/// A cursor is a place in the order, not a row: nothing has to be there any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_leads_on_from_a_run_that_has_gone_elsewhere() {
    with(async |t| {
        for number in 0..6 {
            t.client.dispatch(&format!("r{number}"), json!({"worker_selector": {"zone": "x"}})).await.ok();
        }
        let path = "/v1/runs?status=queued&order=oldest&limit=3";
        let (first, cursor) = page(&t.client, path, None).await;
        assert_eq!(first.len(), 3);
        // The run at which the page ended is queued no more, and the limit is another.
        t.client.cancel("r2").await.ok();
        t.client.cancel("r3").await.ok();
        let (second, next) = page(&t.client, "/v1/runs?order=oldest&status=queued&limit=9", cursor.as_deref()).await;
        let ids: Vec<&str> = second.iter().map(|run| run["run_id"].as_str().unwrap()).collect();
        assert_eq!((ids, next), (vec!["r4", "r5"], None));
    })
    .await;
}

/// B133: what is no cursor of this list with this filter is told as such.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_or_foreign_cursor_is_refused() {
    with(async |t| {
        for number in 0..3 {
            t.client.dispatch(&format!("r{number}"), json!({"labels": {"a": "b"}})).await.ok();
            Worker::register(&t.client, &format!("w{number}"), json!({"zone": "b"})).await;
        }
        let runs = page(&t.client, "/v1/runs?limit=1&label=a%3Db", None).await.1.unwrap();
        let workers = page(&t.client, "/v1/workers?limit=1&label=zone%3Db", None).await.1.unwrap();
        assert!(runs.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{runs}");
        let refused = async |path: String| {
            let problem = t.client.get(&path).await.problem(422, "invalid-request");
            assert_eq!(problem["errors"].as_array().unwrap().len(), 1, "{problem:#}");
            assert_eq!(
                (&problem["errors"][0]["pointer"], &problem["action"]),
                (&json!("?cursor"), &json!("fix_request"))
            );
        };
        // Written otherwise it is the same filter; another limit is no other filter.
        for same in ["label=a%3Db&order=newest", "limit=2&label=%61%3D%62"] {
            assert_eq!(page(&t.client, &format!("/v1/runs?{same}"), Some(&runs)).await.0.len(), 2);
        }
        for other in [
            "",
            "label=a%3Dc",
            "label=a%3Db&order=oldest",
            "label=a%3Db&status=queued",
            "label=a%3Db&reason=NoMatchingWorker",
            "label=a%3Db&dag_name=dag",
            "label=a%3Db&created_after=2026-01-01T00:00:00Z",
            "label=a%3Db&created_before=2096-01-01T00:00:00Z",
            "label=a%3Db&root_run_id=x",
            "label=a%3Db&parent_run_id=x",
            "label=a%3Db&worker_id=x",
        ] {
            refused(format!("/v1/runs?{other}&cursor={runs}")).await;
        }
        refused(format!("/v1/runs?label=a%3Db&cursor={workers}")).await;
        refused(format!("/v1/workers?label=zone%3Db&cursor={runs}")).await;
        refused(format!("/v1/workers?label=zone%3Dc&cursor={workers}")).await;
        refused(format!("/v1/workers?label=zone%3Db&state=stale&cursor={workers}")).await;
        // Whatever a cursor is made into, it is refused or read, and never a fault of ours.
        let mut dice = Dice::new(133);
        for _ in 0..300 {
            let mut broken: Vec<u8> = runs.clone().into_bytes();
            for _ in 0..=dice.below(3) {
                let at = usize::try_from(dice.below(broken.len() as u64)).unwrap();
                match dice.below(3) {
                    0 => broken.truncate(at.max(1)),
                    1 => broken[at] = b"AZaz09-_=~!"[usize::try_from(dice.below(11)).unwrap()],
                    _ => broken.insert(at, b'A'),
                }
            }
            let broken = String::from_utf8(broken).unwrap();
            let reply = t.client.get(&format!("/v1/runs?label=a%3Db&cursor={broken}")).await;
            assert!([200, 422].contains(&reply.status), "{broken}: {reply:?}");
        }
        refused(format!("/v1/runs?label=a%3Db&cursor={runs}&cursor={runs}")).await;
        refused("/v1/runs?cursor=".into()).await;
        let problem =
            t.client.get(&format!("/v1/runs?status=done&cursor={runs}")).await.problem(422, "invalid-request");
        assert_eq!(problem["errors"].as_array().unwrap().len(), 1, "only what is wrong is told: {problem:#}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_paged_by_name_whoever_comes_and_goes() {
    with(async |t| {
        let mut expected = BTreeMap::new();
        for number in 0..12 {
            let name = format!("w{number:02}");
            let worker =
                Worker::register(&t.client, &name, json!({"zone": if number % 2 == 0 { "a" } else { "b" }})).await;
            let state = match number % 4 {
                1 => {
                    worker.leave().await.ok();
                    "ended"
                }
                2 => {
                    worker.beat(json!({"draining": true})).await.ok();
                    "draining"
                }
                _ => "healthy",
            };
            expected.insert(name, (state, if number % 2 == 0 { "a" } else { "b" }));
        }
        for state in ["", "healthy", "draining", "stale", "ended"] {
            for zone in ["", "a", "b"] {
                let of = |(name, (its, label)): (&String, &(&str, &str))| {
                    ((state.is_empty() || state == *its) && (zone.is_empty() || zone == *label)).then(|| name.clone())
                };
                let names: Vec<String> = expected.iter().filter_map(of).collect();
                let state = if state.is_empty() { String::new() } else { format!("&state={state}") };
                let zone = if zone.is_empty() { String::new() } else { format!("&label=zone%3D{zone}") };
                for limit in [1, 5, 500] {
                    let found = pages(&t.client, &format!("/v1/workers?limit={limit}{state}{zone}")).await;
                    let found: Vec<String> =
                        found.into_iter().flatten().map(|w| w["worker_id"].as_str().unwrap().to_owned()).collect();
                    assert_eq!(found, names, "{state}{zone}");
                }
            }
        }
        // The worker at which a page ended registers anew, and one comes before it.
        let (_, cursor) = page(&t.client, "/v1/workers?limit=6", None).await;
        Worker::register(&t.client, "w05", json!({})).await;
        Worker::register(&t.client, "w00-new", json!({})).await;
        let (rest, next) = page(&t.client, "/v1/workers?limit=6", cursor.as_deref()).await;
        assert_eq!((rest.len(), &rest[0]["worker_id"], next), (6, &json!("w06"), None));
    })
    .await;
}

/// A reason is found out for as many runs as a page may look at; then the page says where to read on.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_by_reason_may_be_short_and_leads_on() {
    with(async |t| {
        t.client.dispatch("wanted", json!({"worker_selector": {"zone": "b"}})).await.ok();
        for number in 0..4 {
            t.client.dispatch(&format!("other-{number}"), json!({"worker_selector": {"zone": "x"}})).await.ok();
        }
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        // Another thousand and some like the last one, behind the service's back.
        copies(t, "other-3", 1_500).await;
        let path = "/v1/runs?reason=AwaitingPoll";
        let found = pages(&t.client, path).await;
        let sizes: Vec<usize> = found.iter().map(Vec::len).collect();
        assert_eq!(sizes, [0, 1], "a page looks at a thousand runs");
        assert_eq!(reason(&found[1][0]), ("True".into(), "AwaitingPoll".into()));
        assert_eq!(pages(&t.client, "/v1/runs?reason=NoMatchingWorker&limit=500").await.concat().len(), 1_504);
        // The same of a label that few of many have.
        let found = pages(&t.client, "/v1/runs?status=queued&label=a%3Db").await;
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0]);
        sqlx::raw_sql(
            "DELETE FROM task WHERE run_id LIKE 'copy%'; DELETE FROM attempt WHERE run_id LIKE 'copy%';
             DELETE FROM run WHERE run_id LIKE 'copy%'",
        )
        .execute(&t.pool)
        .await
        .unwrap();
        worker.work_one().await;
    })
    .await;
}

/// Makes runs like this one, as if they had been dispatched since; without payload and story.
async fn copies(t: &Test, run_id: &str, n: i64) {
    for statement in [
        "INSERT INTO run SELECT (jsonb_populate_record(r, jsonb_build_object('run_id', 'copy-' || i,
             'attempt_id', md5('copy' || i)::uuid, 'created_at', r.created_at + i * interval '1 us'))).*
         FROM run r, generate_series(1, N) i WHERE r.run_id = 'ID'",
        "INSERT INTO attempt SELECT (jsonb_populate_record(a, jsonb_build_object('run_id', 'copy-' || i,
             'attempt_id', md5('copy' || i)::uuid))).*
         FROM attempt a, generate_series(1, N) i WHERE a.run_id = 'ID'",
        "INSERT INTO task (namespace_id, attempt_id, dag_name, run_id, selector_no, priority, hold_from, wait,
             hold_until, fence)
         SELECT namespace_id, md5('copy' || i)::uuid, dag_name, 'copy-' || i, selector_no, priority, hold_from, wait,
             hold_until, fence
         FROM task, generate_series(1, N) i WHERE run_id = 'ID'",
    ] {
        let statement = statement.replace("(1, N)", &format!("(1, {n})")).replace("'ID'", &format!("'{run_id}'"));
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&t.pool).await.unwrap();
    }
}

/// One row that cannot be read is one row less, and not the end of the list.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_left_out_of_lists() {
    with(async |t| {
        for number in 0..5 {
            t.client.dispatch(&format!("r{number}"), json!({"labels": {"a": "b"}})).await.ok();
        }
        for name in ["w1", "w2", "w3"] {
            Worker::register(&t.client, name, json!({})).await;
        }
        sqlx::raw_sql(
            "UPDATE run SET operation = 'dance' WHERE run_id = 'r2';
             UPDATE label_set SET canonical = '{\"labels\": 1}' WHERE canonical LIKE '%w2%'",
        )
        .execute(&t.pool)
        .await
        .unwrap();
        for query in ["order=oldest", "status=queued&order=oldest", "label=a%3Db&order=oldest&limit=1"] {
            assert_eq!(listed(&t.client, query).await, ["r0", "r1", "r3", "r4"], "{query}");
        }
        // Who asks for it by name is told the truth.
        t.client.get("/v1/dags/dag/runs/r2").await.problem(500, "internal");
        let workers = pages(&t.client, "/v1/workers?limit=1").await.concat();
        let names: Vec<&str> = workers.iter().map(|worker| worker["worker_id"].as_str().unwrap()).collect();
        assert_eq!(names, ["w1", "w3"]);
        t.client.get("/v1/workers/w2").await.problem(500, "internal");
        sqlx::raw_sql("UPDATE run SET operation = 'start' WHERE run_id = 'r2'").execute(&t.pool).await.unwrap();
        t.advance(Duration::from_secs(1)).await;
    })
    .await;
}

/// However many runs wait for however many selectors, a page asks once what they wait for.
#[tokio::test(flavor = "multi_thread")]
async fn the_selectors_of_a_page_are_judged_by_one_statement() {
    with(async |t| {
        for number in 0..20 {
            let body = json!({"worker_selector": {"zone": number.to_string()}});
            t.client.dispatch(&format!("r{number:02}"), body).await.ok();
        }
        // Each reason there is among unclaimed tasks, and a selector that two share.
        t.client.dispatch("twin", json!({"worker_selector": {"zone": "1"}})).await.ok();
        Worker::register(&t.client, "free", json!({"zone": "1"})).await;
        Worker::register(&t.client, "drained", json!({"zone": "2"})).await.beat(json!({"draining": true})).await.ok();
        let busy = Worker::register(&t.client, "busy", json!({"zone": "3"})).await;
        let task = busy.take().await;
        busy.ack(&task).await.ok();
        t.client.dispatch("after", json!({"worker_selector": {"zone": "3"}})).await.ok();

        let (tap, server, client) = t.tapped().await;
        let asked = || {
            let names = ["store::situation::read_all", "store::situation::read", "store::intern::label_sets_for"];
            names.map(|name| tap.count(name))
        };
        let before = asked();
        let (runs, _) = page(&client, "/v1/runs?status=queued&limit=500", None).await;
        let after = asked();
        let [all, single, label_sets] = [0, 1, 2].map(|at| after[at] - before[at]);
        assert_eq!((all, single), (1, 0));
        assert!(label_sets <= 1, "the sweep of the replica may have asked before; {label_sets}");
        assert_eq!(runs.len(), 21);
        for run in &runs {
            // What the page says is what the run's own read says.
            assert_eq!(client.run(run["run_id"].as_str().unwrap()).await["conditions"], run["conditions"]);
        }
        let reasons: BTreeMap<String, usize> = runs.iter().fold(BTreeMap::new(), |mut reasons, run| {
            *reasons.entry(reason(run).1).or_default() += 1;
            reasons
        });
        let expected = [("AwaitingPoll", 2), ("NoMatchingWorker", 17), ("WorkersBusy", 1), ("WorkersDraining", 1)];
        assert_eq!(reasons, expected.map(|(reason, runs)| (reason.to_owned(), runs)).into());
        server.stop().await;
        busy.report(&task, "succeeded").await.ok();
    })
    .await;
}

/// Who waits costs a share of one statement per interval, however many wait.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_waiting_reads_cost_one_statement_an_interval() {
    with(async |t| {
        for number in 0..20 {
            t.client.dispatch(&format!("r{number}"), json!({"worker_selector": {"zone": "b"}})).await.ok();
        }
        let (tap, server, client) = t.tapped().await;
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..200 {
            let (client, path) =
                (client.clone(), format!("/v1/dags/dag/runs/r{}?wait_for=finished&wait_seconds=40", number % 20));
            waiting.spawn(async move { client.get(&path).await.ok() });
        }
        let reads = |counts: &BTreeMap<String, u64>| {
            let of_reads =
                counts.iter().filter(|(name, _)| name.starts_with("store::read") || name.starts_with("store::sit"));
            of_reads.filter(|(name, _)| *name != "store::read::versions").map(|(_, count)| count).sum::<u64>()
        };
        until("all of them wait", async || tap.count("store::read::runs") >= 200).await;
        // The last of them may still be reading what the run waits for: until a whole look has passed without.
        let mut read = 0;
        while read != reads(&tap.counts()) {
            read = reads(&tap.counts());
            let looks = tap.count("store::read::versions");
            until("a whole look", async || tap.count("store::read::versions") > looks + 1).await;
        }
        let (before, began) = (tap.counts(), std::time::Instant::now());
        until("four more", async || tap.count("store::read::versions") >= before["store::read::versions"] + 4).await;
        let (after, took) = (tap.counts(), began.elapsed());
        let looks = after["store::read::versions"] - before["store::read::versions"];
        let intervals = took.as_secs_f64() / t.config.coordinator.fallback_interval.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let looks = looks as f64;
        // Each for itself, they would be two hundred times as many; on a busy machine one may be counted late.
        assert!(looks <= 2.0 * intervals + 2.0, "{looks} looks in {intervals} intervals");
        assert_eq!(reads(&after), reads(&before), "nobody reads who has nothing to tell");
        for number in 0..20 {
            t.client.cancel(&format!("r{number}")).await.ok();
        }
        while let Some(read) = waiting.join_next().await {
            assert_eq!(read.unwrap()["status"], "aborted");
        }
        server.stop().await;
    })
    .await;
}
