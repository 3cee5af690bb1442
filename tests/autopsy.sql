-- The autopsy: each statement finds rows that break a promise, and must find none. It runs after every integration
-- test, on the database as the service left it. The line above a statement names what a row of it would mean.

-- a terminal or running run still has a task
SELECT r.dag_name, r.run_id, r.status FROM run r
JOIN task t ON t.namespace_id = r.namespace_id AND t.dag_name = r.dag_name AND t.run_id = r.run_id
WHERE r.status <> 'queued';

-- a queued run has no task and is not parked
SELECT r.dag_name, r.run_id FROM run r
WHERE r.status = 'queued' AND NOT r.park AND NOT EXISTS (
    SELECT FROM task t WHERE t.namespace_id = r.namespace_id AND t.attempt_id = r.attempt_id);

-- a run that was handed over waits for another one
SELECT r.dag_name, r.run_id FROM run r
JOIN task t ON t.namespace_id = r.namespace_id AND t.attempt_id = r.attempt_id
WHERE r.direct AND t.claim_until IS NULL;

-- a task has no run, or is not its run's current attempt
SELECT t.dag_name, t.run_id FROM task t
LEFT JOIN run r ON r.namespace_id = t.namespace_id AND r.dag_name = t.dag_name AND r.run_id = t.run_id
WHERE r.attempt_id IS DISTINCT FROM t.attempt_id;

-- a task says otherwise than its run what is waited for
SELECT t.dag_name, t.run_id FROM task t
JOIN run r ON r.namespace_id = t.namespace_id AND r.dag_name = t.dag_name AND r.run_id = t.run_id
WHERE t.selector_no <> r.selector_no OR (t.wait <> r.wait AND NOT (r.park AND t.wait = interval '0')) OR t.priority <> r.priority OR t.fence < r.fence
   OR coalesce(t.start_timeout, interval '0') <> r.start_timeout;

-- a run and its current attempt do not stand alike
SELECT r.dag_name, r.run_id, r.status, a.status FROM run r
LEFT JOIN attempt a ON a.namespace_id = r.namespace_id AND a.attempt_id = r.attempt_id
WHERE a.number IS DISTINCT FROM r.attempt_number
   OR NOT (a.status = r.status OR (a.status = 'lost' AND r.status IN ('failed', 'aborted')) OR r.status = 'aborted');

-- a running run has no holder of its lease
SELECT r.dag_name, r.run_id FROM run r
LEFT JOIN attempt a ON a.namespace_id = r.namespace_id AND a.attempt_id = r.attempt_id
WHERE r.status = 'running' AND (a.session_id IS NULL OR a.worker_id IS DISTINCT FROM r.worker_id);

-- changes of version and events are not one to one
SELECT r.dag_name, r.run_id, r.version, count(e.run_seq) FROM run r
LEFT JOIN event e ON e.namespace_id = r.namespace_id AND e.dag_name = r.dag_name AND e.run_id = r.run_id
GROUP BY r.namespace_id, r.dag_name, r.run_id
HAVING count(e.run_seq) <> r.version OR min(e.run_seq) <> 1 OR max(e.run_seq) <> r.version;

-- an event has no run
SELECT e.dag_name, e.run_id FROM event e WHERE NOT EXISTS (
    SELECT FROM run r WHERE r.namespace_id = e.namespace_id AND r.dag_name = e.dag_name AND r.run_id = e.run_id);

-- the last event does not show the run as it is
SELECT r.dag_name, r.run_id, r.status, e.type FROM run r
JOIN event e ON e.namespace_id = r.namespace_id AND e.dag_name = r.dag_name AND e.run_id = r.run_id
            AND e.run_seq = r.version
WHERE e.data::jsonb #>> '{run,status}' <> r.status OR (e.data::jsonb #>> '{run,version}')::bigint <> r.version
   OR e.occurred_at <> r.updated_at;

-- events of a run go back in time
SELECT dag_name, run_id, run_seq FROM (
    SELECT *, lag(occurred_at) OVER (PARTITION BY namespace_id, dag_name, run_id ORDER BY run_seq) AS before FROM event) e
WHERE occurred_at < before;

-- a run left its end otherwise than by another attempt, or its end is not its last event
SELECT e.dag_name, e.run_id, e.run_seq, e.type, e.next FROM (
    SELECT *, lead(type) OVER (PARTITION BY namespace_id, dag_name, run_id ORDER BY run_seq) AS next FROM event) e
JOIN run r ON r.namespace_id = e.namespace_id AND r.dag_name = e.dag_name AND r.run_id = e.run_id
WHERE CASE WHEN e.type IN ('dag.run.succeeded', 'dag.run.partially_succeeded', 'dag.run.failed', 'dag.run.aborted',
                           'dag.run.rejected')
           THEN coalesce(e.next, 'none') NOT IN ('none', 'dag.run.queued') OR (e.next IS NULL AND r.finished_at IS NULL)
           ELSE e.next IS NULL AND r.finished_at IS NOT NULL END;

-- attempts of a run are not numbered from 1 to the last, or one does not follow the one before it
SELECT a.dag_name, a.run_id, a.number FROM (
    SELECT *, row_number() OVER run AS at, lag(attempt_id) OVER run AS before, lag(ended_at) OVER run AS before_ended
    FROM attempt WINDOW run AS (PARTITION BY namespace_id, dag_name, run_id ORDER BY number)) a
WHERE a.number <> a.at OR (a.number > 1 AND (a.after_attempt_id IS DISTINCT FROM a.before OR a.before_ended > a.queued_at));

-- more attempts were made by themselves than the run allows
SELECT r.dag_name, r.run_id FROM run r
WHERE r.attempt_number - r.counted_from >= r.max_attempts OR EXISTS (
    SELECT FROM attempt a WHERE a.namespace_id = r.namespace_id AND a.dag_name = r.dag_name AND a.run_id = r.run_id
        AND a.number > r.counted_from AND a.request_digest IS NOT NULL);

-- a run ran without having been given to exactly one acknowledged claim per start
SELECT a.dag_name, a.run_id FROM attempt a
WHERE (a.started_at IS NOT NULL) <> (SELECT count(*) = 1 FROM event e
    WHERE e.namespace_id = a.namespace_id AND e.dag_name = a.dag_name AND e.run_id = a.run_id
      AND e.type = 'dag.run.running' AND (e.data::jsonb #>> '{run,attempt,attempt_id}')::uuid = a.attempt_id);

-- a run failed for a clock of its wait although somebody had acknowledged that attempt, or was running when it did
SELECT r.dag_name, r.run_id FROM run r
JOIN attempt a ON a.namespace_id = r.namespace_id AND a.attempt_id = r.attempt_id
WHERE r.failure ->> 'reason' IN ('hold_expired', 'start_timeout', 'delivery_failed') AND a.started_at IS NOT NULL;

-- a run was given to somebody, or failed for its start clock, on the wrong side of that clock's end
SELECT r.dag_name, r.run_id, r.status, q.start_until FROM run r
JOIN LATERAL (
    SELECT (data::jsonb #>> '{run,start_until}')::timestamptz AS start_until FROM event e
    WHERE e.namespace_id = r.namespace_id AND e.dag_name = r.dag_name AND e.run_id = r.run_id
      AND e.type = 'dag.run.queued'
    ORDER BY run_seq DESC LIMIT 1) q ON true
WHERE NOT EXISTS (SELECT FROM outage o WHERE o.namespace_id = r.namespace_id)
  AND (r.claimed_at >= q.start_until
    OR (r.failure ->> 'reason' = 'start_timeout' AND (q.start_until IS NULL OR r.finished_at < q.start_until)));

-- a session that has ended still holds something
SELECT s.worker_id, s.session_id FROM worker_session s
WHERE s.ended_at IS NOT NULL AND (
    EXISTS (SELECT FROM task t WHERE t.namespace_id = s.namespace_id AND t.worker_id = s.worker_id
                AND t.session_id = s.session_id AND t.claim_until IS NOT NULL)
 OR EXISTS (SELECT FROM attempt a WHERE a.namespace_id = s.namespace_id AND a.worker_id = s.worker_id
                AND a.session_id = s.session_id AND a.status = 'running'));

-- a session has more than its slots
SELECT s.worker_id, s.session_id FROM worker_session s
WHERE s.slots < (SELECT count(*) FROM attempt a WHERE a.namespace_id = s.namespace_id AND a.worker_id = s.worker_id
                     AND a.session_id = s.session_id AND a.status = 'running')
              + (SELECT count(*) FROM task t WHERE t.namespace_id = s.namespace_id AND t.worker_id = s.worker_id
                     AND t.session_id = s.session_id AND t.claim_until IS NOT NULL)
  AND s.version IS DISTINCT FROM 'fewer slots than it uses';

-- stretches of one session's presence overlap
SELECT p.worker_id, p.session_id, p.from_at, q.from_at FROM presence p
JOIN presence q ON q.namespace_id = p.namespace_id AND q.worker_id = p.worker_id AND q.session_id = p.session_id
    AND (q.from_at, q.until_at, q.label_set_no) > (p.from_at, p.until_at, p.label_set_no) AND q.from_at < p.until_at;

-- a closed presence reaches into the session's open one
SELECT p.worker_id, p.session_id FROM presence p
JOIN worker_session s ON s.namespace_id = p.namespace_id AND s.worker_id = p.worker_id AND s.session_id = p.session_id
WHERE p.until_at > s.present_from;

-- a key's run is not there
SELECT k.key FROM idempotency_key k WHERE NOT EXISTS (
    SELECT FROM run r WHERE r.namespace_id = k.namespace_id AND r.dag_name = k.dag_name AND r.run_id = k.run_id
        AND r.idempotency_key = k.key);

-- numbers were taken that nobody has
SELECT n.name FROM namespace n
WHERE n.last_selector_no <> (SELECT coalesce(max(selector_no), 0) FROM selector s WHERE s.namespace_id = n.namespace_id)
   OR n.last_label_set_no <> (SELECT coalesce(max(label_set_no), 0) FROM label_set l WHERE l.namespace_id = n.namespace_id);

-- an event is neither in the feed nor noted as unstamped, or both
SELECT e.dag_name, e.run_id, e.run_seq FROM event e
JOIN feed ON feed.namespace_id = e.namespace_id AND feed.first_position = 1
LEFT JOIN (
    SELECT namespace_id, dag_name, run_id, run_seq, count(*) AS places FROM (
        SELECT namespace_id, dag_name, run_id, run_seq FROM feed_entry
        UNION ALL SELECT namespace_id, dag_name, run_id, run_seq FROM event_unstamped) either
    GROUP BY namespace_id, dag_name, run_id, run_seq
) p ON p.namespace_id = e.namespace_id AND p.dag_name = e.dag_name AND p.run_id = e.run_id AND p.run_seq = e.run_seq
WHERE p.places IS DISTINCT FROM 1;

-- positions are not dense, or a run's are not in its order
SELECT f.position, f.run_id FROM (
    SELECT *, row_number() OVER (PARTITION BY namespace_id ORDER BY position) AS at,
           lag(run_seq) OVER (PARTITION BY namespace_id, dag_name, run_id ORDER BY position) AS before
    FROM feed_entry) f JOIN feed USING (namespace_id)
WHERE f.position <> f.at + feed.first_position - 1 OR f.run_seq <= f.before;

-- a session of the service was left in a transaction
SELECT pid, state, query FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'
  AND clock_timestamp() - state_change > interval '1 second';

-- an advisory lock was left
SELECT pid FROM pg_locks WHERE locktype = 'advisory'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- a run and the rows by which its labels are found do not say the same
SELECT r.dag_name, r.run_id, r.labels FROM run r
WHERE r.labels <> coalesce((
    SELECT jsonb_object_agg(split_part(l.term, '=', 1), substr(l.term, strpos(l.term, '=') + 1)) FROM run_label l
    WHERE l.namespace_id = r.namespace_id AND l.dag_name = r.dag_name AND l.run_id = r.run_id
      AND l.created_at = r.created_at), '{}');

-- a cancel was told and somebody below it lives who was there before
WITH RECURSIVE below(namespace_id, top, since, dag_name, run_id) AS (
    SELECT namespace_id, run_id, cancel_requested_at, dag_name, run_id FROM run
    WHERE cancel_requested_at IS NOT NULL AND cascade_since IS NULL
    UNION
    SELECT r.namespace_id, b.top, b.since, r.dag_name, r.run_id FROM below b
    JOIN run r ON r.namespace_id = b.namespace_id AND r.parent_dag_name = b.dag_name AND r.parent_run_id = b.run_id
)
SELECT b.top, b.since, r.dag_name, r.run_id, r.status FROM below b
JOIN run r ON r.namespace_id = b.namespace_id AND r.dag_name = b.dag_name AND r.run_id = b.run_id
WHERE r.finished_at IS NULL AND r.cancel_requested_at IS NULL AND r.created_at < b.since;
