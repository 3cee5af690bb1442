-- The main job: a dispatched run waits for its worker.
--
-- `namespace_id` comes first in every primary key, unique key and hot index, so that a claim touches one shard of a
-- distributed Postgres. Identifiers compare bytewise (COLLATE "C"): names are exact and case-sensitive, and index
-- order does not depend on the server's locale. There are no foreign keys between hot tables: each would lock the
-- referenced row once more per dispatch; the autopsy in `tests/autopsy.sql` states what they would have stated.

-- The one clock. Every deadline is written and compared by it, never by a replica's own clock. Tests replace it.
CREATE FUNCTION roadstead_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT clock_timestamp() $$;

-- The tenant, and the counters from which selectors and label sets take their numbers under its row's lock, so that
-- numbers are commit order: who has seen the counter at n has seen every selector up to n.
CREATE TABLE namespace (
    namespace_id       bigint PRIMARY KEY,
    name               text COLLATE "C" NOT NULL UNIQUE,
    last_selector_no   bigint NOT NULL DEFAULT 0,
    last_label_set_no  bigint NOT NULL DEFAULT 0
);
INSERT INTO namespace (namespace_id, name) VALUES (1, 'default');

-- What runs require of a worker, once per distinct requirement. Tasks refer to it by number, so matching is done per
-- selector and never per task.
CREATE TABLE selector (
    namespace_id  bigint NOT NULL,
    selector_no   bigint NOT NULL,
    digest        bytea NOT NULL,                 -- SHA-256 of the canonical form
    canonical     text COLLATE "C" NOT NULL,      -- the canonical JSON form: sorted keys, absent parts absent
    terms         text[] COLLATE "C" NOT NULL,    -- its equality terms, `key=value`; the pre-filter of matching
    interned_at   timestamptz NOT NULL DEFAULT roadstead_now(),
    PRIMARY KEY (namespace_id, selector_no)
);
-- One row per canonical form. By digest, since a form may be longer than an index entry can be.
CREATE UNIQUE INDEX selector_digest ON selector (namespace_id, digest);
-- Finds the selectors that a label set may fit, among a million distinct ones.
CREATE INDEX selector_terms ON selector USING gin (terms);

-- What workers offer, interned like selectors: labels, exclusive keys and the worker's id. Whether a selector fits a
-- label set never changes, so it is decided once, in Rust, and SQL is given numbers.
CREATE TABLE label_set (
    namespace_id  bigint NOT NULL,
    label_set_no  bigint NOT NULL,
    digest        bytea NOT NULL,
    canonical     text COLLATE "C" NOT NULL,
    terms         text[] COLLATE "C" NOT NULL,    -- its labels as `key=value`
    interned_at   timestamptz NOT NULL DEFAULT roadstead_now(),
    PRIMARY KEY (namespace_id, label_set_no)
);
CREATE UNIQUE INDEX label_set_digest ON label_set (namespace_id, digest);
-- Finds the label sets that a selector may fit.
CREATE INDEX label_set_terms ON label_set USING gin (terms);

-- One requested execution of a DAG: what people read. The row is updated once per change of its state.
CREATE TABLE run (
    namespace_id         bigint NOT NULL,
    dag_name             text COLLATE "C" NOT NULL,
    run_id               text COLLATE "C" NOT NULL,
    status               text COLLATE "C" NOT NULL,
    version              bigint NOT NULL,          -- rises by one with each change; the run_seq of its event
    attempt_id           uuid NOT NULL,            -- the current attempt
    attempt_number       integer NOT NULL,
    operation            text COLLATE "C" NOT NULL,
    fence                bigint NOT NULL,          -- the highest fence given out; the task of a queued run may be ahead
    selector_no          bigint NOT NULL,
    wait                 interval NOT NULL,        -- how long its task may be without a match
    priority             smallint NOT NULL,
    labels               jsonb NOT NULL,
    root_dag_name        text COLLATE "C",
    root_run_id          text COLLATE "C",
    parent_dag_name      text COLLATE "C",
    parent_run_id        text COLLATE "C",
    traceparent          text COLLATE "C",
    idempotency_key      text COLLATE "C",
    request_digest       bytea NOT NULL,           -- SHA-256 of the dispatch; tells a repeat from another request
    worker_id            text COLLATE "C",
    queued_at            timestamptz NOT NULL,
    claimed_at           timestamptz,
    started_at           timestamptz,
    finished_at          timestamptz,
    cancel_requested_at  timestamptz,
    cancel_reason        text,
    error                text,
    failure              jsonb,
    log_url              text,
    output_dropped       boolean NOT NULL DEFAULT false,
    created_at           timestamptz NOT NULL,
    updated_at           timestamptz NOT NULL,     -- of its latest version
    PRIMARY KEY (namespace_id, dag_name, run_id),
    CONSTRAINT run_status CHECK (status IN ('queued', 'running', 'waiting', 'succeeded', 'partially_succeeded',
                                            'failed', 'rejected', 'aborted')),
    CONSTRAINT run_version CHECK (version >= 1 AND attempt_number >= 1 AND fence >= 0),
    CONSTRAINT run_priority CHECK (priority BETWEEN -100 AND 100),
    -- Terminal runs, and only they, have finished.
    CONSTRAINT run_finished CHECK ((finished_at IS NOT NULL) = (status IN ('succeeded', 'partially_succeeded',
                                                                          'failed', 'rejected', 'aborted'))),
    -- A running run has a worker and has started; a queued one has neither.
    CONSTRAINT run_running CHECK (status <> 'running' OR (worker_id IS NOT NULL AND started_at IS NOT NULL)),
    CONSTRAINT run_queued CHECK (status <> 'queued' OR (worker_id IS NULL AND started_at IS NULL)),
    CONSTRAINT run_failure CHECK (failure IS NULL OR status IN ('failed', 'aborted')),
    CONSTRAINT run_root CHECK ((root_dag_name IS NULL) = (root_run_id IS NULL)),
    CONSTRAINT run_parent CHECK ((parent_dag_name IS NULL) = (parent_run_id IS NULL))
) WITH (fillfactor = 80);                          -- room for the updates of a life to stay on the page
-- listRuns without a filter, newest or oldest first.
CREATE INDEX run_created ON run (namespace_id, created_at, dag_name, run_id);
-- listRuns by status; short, because finished runs are found by time.
CREATE INDEX run_unfinished ON run (namespace_id, status, created_at, dag_name, run_id)
    WHERE finished_at IS NULL;
-- Children of a run: for listing, and for cancelling a family.
CREATE INDEX run_parent ON run (namespace_id, parent_dag_name, parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX run_root ON run (namespace_id, root_dag_name, root_run_id) WHERE root_run_id IS NOT NULL;

-- What runs carry and lists never show: keeps the rows that change narrow. JSON is kept as text, as it was sent.
CREATE TABLE payload (
    namespace_id  bigint NOT NULL,
    dag_name      text COLLATE "C" NOT NULL,
    run_id        text COLLATE "C" NOT NULL,
    definition    text,
    params        text,
    context       text,
    output        text,
    progress      text,
    PRIMARY KEY (namespace_id, dag_name, run_id)
);

-- One dispatch of a run. Kept after its end, so that a repeated report is answered from it.
CREATE TABLE attempt (
    namespace_id   bigint NOT NULL,
    attempt_id     uuid NOT NULL,
    dag_name       text COLLATE "C" NOT NULL,
    run_id         text COLLATE "C" NOT NULL,
    number         integer NOT NULL,
    operation      text COLLATE "C" NOT NULL,
    status         text COLLATE "C" NOT NULL,
    worker_id      text COLLATE "C",               -- set at ack: the session that holds the lease
    session_id     text COLLATE "C",
    token_digest   bytea,                          -- SHA-256 of the claim's token that was acknowledged
    fence          bigint,
    queued_at      timestamptz NOT NULL,
    claimed_at     timestamptz,
    started_at     timestamptz,
    ended_at       timestamptz,
    reported       text COLLATE "C",               -- the status its worker reported at the end, to know a repeat
    ended_version  bigint,                         -- the run's version at its end, for the answer to a repeat
    error          text,
    released       bytea[] NOT NULL DEFAULT '{}',  -- SHA-256 of the tokens its claims were released with, to know repeats
    PRIMARY KEY (namespace_id, attempt_id),
    CONSTRAINT attempt_status CHECK (status IN ('queued', 'running', 'waiting', 'succeeded', 'partially_succeeded',
                                                'failed', 'rejected', 'aborted', 'lost')),
    -- A live attempt is queued or running; every other status is an end.
    CONSTRAINT attempt_ended CHECK ((ended_at IS NULL) = (status IN ('queued', 'running'))),
    CONSTRAINT attempt_ended_version CHECK ((ended_at IS NULL) = (ended_version IS NULL)),
    -- Only an acknowledged attempt runs, and it knows by whom.
    CONSTRAINT attempt_running CHECK (status <> 'running' OR (session_id IS NOT NULL AND token_digest IS NOT NULL
                                                              AND fence IS NOT NULL AND started_at IS NOT NULL))
) WITH (fillfactor = 80);
-- A run's attempts, and no number twice.
CREATE UNIQUE INDEX attempt_number ON attempt (namespace_id, dag_name, run_id, number);
-- At most one live attempt of a run (P3).
CREATE UNIQUE INDEX attempt_live ON attempt (namespace_id, dag_name, run_id) WHERE ended_at IS NULL;
-- What a session runs: its used slots, and what is lost when it ends.
CREATE INDEX attempt_session ON attempt (namespace_id, worker_id, session_id) WHERE status = 'running';

-- An attempt ends once and never changes (P5). A backstop: the rules in `src/domain` never try.
CREATE FUNCTION attempt_has_ended() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN RAISE EXCEPTION 'attempt % has ended and cannot change', OLD.attempt_id; END $$;
CREATE TRIGGER attempt_has_ended BEFORE UPDATE ON attempt
    FOR EACH ROW WHEN (OLD.ended_at IS NOT NULL) EXECUTE FUNCTION attempt_has_ended();

-- The claimable row of a queued attempt: exists only while the attempt waits, or is claimed and not acknowledged.
-- Small and hot; never rewritten because workers come, go or are busy.
CREATE TABLE task (
    namespace_id      bigint NOT NULL,
    attempt_id        uuid NOT NULL,
    dag_name          text COLLATE "C" NOT NULL,
    run_id            text COLLATE "C" NOT NULL,
    selector_no       bigint NOT NULL,
    priority          smallint NOT NULL,
    place             bigint GENERATED ALWAYS AS IDENTITY,   -- the order of age; a claim that returns keeps it
    hold_from         timestamptz NOT NULL,                  -- where the hold clock begins
    wait              interval NOT NULL,
    hold_until        timestamptz NOT NULL,                  -- hold_from + wait: nothing expires before it
    fence             bigint NOT NULL,                       -- the run's last fence; a claim takes the next
    worker_id         text COLLATE "C",                      -- the claim: by which session, …
    session_id        text COLLATE "C",
    poll_id           text COLLATE "C",                      -- … by which of its polls, …
    token_digest      bytea,                                 -- … with which token, …
    claimed_at        timestamptz,                           -- … since when and for how long
    claim_until       timestamptz,
    barred_worker     text COLLATE "C",                      -- who released it and is not offered it …
    barred_session    text COLLATE "C",
    barred_until      timestamptz,                           -- … until then
    PRIMARY KEY (namespace_id, attempt_id),
    CONSTRAINT task_hold CHECK (hold_until = hold_from + wait AND wait >= interval '0'),
    CONSTRAINT task_claim CHECK ((claim_until IS NULL) = (session_id IS NULL)
                             AND (claim_until IS NULL) = (worker_id IS NULL)
                             AND (claim_until IS NULL) = (token_digest IS NULL)
                             AND (claim_until IS NULL) = (claimed_at IS NULL))
) WITH (
    fillfactor = 70,
    -- Rows live for moments: vacuum by their number, not by a share of a table that may hold a million waiting ones.
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);
-- The claim's look: the first of each selector that the worker fits.
CREATE INDEX task_unclaimed ON task (namespace_id, selector_no, priority DESC, place) WHERE claim_until IS NULL;
-- The sweep, while a selector has no match: a skip over its distinct waits.
CREATE INDEX task_wait ON task (namespace_id, selector_no, wait, hold_until) WHERE claim_until IS NULL;
-- The sweep, as holds pass: each task is met once (docs/adr/0003).
CREATE INDEX task_hold_until ON task (namespace_id, hold_until, selector_no) WHERE claim_until IS NULL;
-- Claims that lapse.
CREATE INDEX task_claim_until ON task (namespace_id, claim_until) WHERE claim_until IS NOT NULL;
-- What a session holds unacknowledged: used slots, a repeated poll, what returns when it ends.
CREATE INDEX task_session ON task (namespace_id, worker_id, session_id) WHERE claim_until IS NOT NULL;

-- A named worker.
CREATE TABLE worker (
    namespace_id  bigint NOT NULL,
    worker_id     text COLLATE "C" NOT NULL,
    session_id    text COLLATE "C" NOT NULL,       -- its latest session
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (namespace_id, worker_id)
);

-- One life of a worker's process. The lease is the session's: one HOT update per beat keeps all its attempts, so no
-- index may name last_seen or anything else a beat writes.
CREATE TABLE worker_session (
    namespace_id   bigint NOT NULL,
    worker_id      text COLLATE "C" NOT NULL,
    session_id     text COLLATE "C" NOT NULL,
    label_set_no   bigint NOT NULL,
    slots          integer NOT NULL,
    version        text,                           -- the worker's own
    stale_after    interval NOT NULL,              -- without a sign of life for so long it is no match
    lease_ttl      interval NOT NULL,              -- and for so long it is lost
    started_at     timestamptz NOT NULL,
    last_seen      timestamptz NOT NULL,
    present_from   timestamptz,                    -- start of the open stretch of presence; null while draining
    ended_at       timestamptz,
    end_reason     text COLLATE "C",
    PRIMARY KEY (namespace_id, worker_id, session_id),
    CONSTRAINT worker_session_slots CHECK (slots >= 0),
    CONSTRAINT worker_session_end CHECK ((ended_at IS NULL) = (end_reason IS NULL)
                                     AND end_reason IN ('replaced', 'left', 'lapsed')
                                     AND (ended_at IS NULL OR present_from IS NULL)),
    CONSTRAINT worker_session_timeouts CHECK (lease_ttl > interval '0' AND stale_after > interval '0')
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- At most one life of a worker at a time; and the living ones, for the sweep and for matching by label set.
CREATE UNIQUE INDEX worker_session_alive ON worker_session (namespace_id, worker_id) WHERE ended_at IS NULL;
CREATE INDEX worker_session_label_set ON worker_session (namespace_id, label_set_no) WHERE ended_at IS NULL;
-- What sessions that have ended still hold is found from their claims and attempts, never by this table.

-- Closed stretches in which a session offered one label set, healthy and not draining. The open one is in the
-- session's row (present_from). Rows are never changed.
CREATE TABLE presence (
    namespace_id  bigint NOT NULL,
    label_set_no  bigint NOT NULL,
    until_at      timestamptz NOT NULL,
    from_at       timestamptz NOT NULL,
    worker_id     text COLLATE "C" NOT NULL,
    session_id    text COLLATE "C" NOT NULL,
    -- The stretches of some label sets since a time: the gaps of a selector.
    PRIMARY KEY (namespace_id, label_set_no, until_at, worker_id, session_id),
    CONSTRAINT presence_stretch CHECK (until_at >= from_at)
);
-- What closed since the last sweep: a selector may have lost its last match for a moment between two passes.
CREATE INDEX presence_until ON presence (namespace_id, until_at);

-- The sweep's last pass, by any replica. Nobody judges a clock across a time in which nobody swept.
CREATE TABLE sweep_stamp (
    namespace_id  bigint PRIMARY KEY,
    stamped_at    timestamptz NOT NULL
);

-- Times in which the service or its database was away. To a hold clock an outage fits every selector; nothing ends in it.
CREATE TABLE outage (
    namespace_id  bigint NOT NULL,
    from_at       timestamptz NOT NULL,
    until_at      timestamptz NOT NULL,
    PRIMARY KEY (namespace_id, from_at),
    CONSTRAINT outage_stretch CHECK (until_at > from_at)
);

-- One change of a run, committed with it; never changed.
CREATE TABLE event (
    namespace_id  bigint NOT NULL,
    dag_name      text COLLATE "C" NOT NULL,
    run_id        text COLLATE "C" NOT NULL,
    run_seq       bigint NOT NULL,                 -- the run's version: one event per change, in the run's order (P9)
    event_id      uuid NOT NULL,
    type          text COLLATE "C" NOT NULL,
    occurred_at   timestamptz NOT NULL,
    data          text NOT NULL,                   -- JSON: the run's snapshot with conditions, and what it asks for
    PRIMARY KEY (namespace_id, dag_name, run_id, run_seq)
);

-- A client's key for a dispatch (P2). Lives as long as its run.
CREATE TABLE idempotency_key (
    namespace_id    bigint NOT NULL,
    key             text COLLATE "C" NOT NULL,
    request_digest  bytea NOT NULL,
    dag_name        text COLLATE "C" NOT NULL,
    run_id          text COLLATE "C" NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (namespace_id, key)
);
