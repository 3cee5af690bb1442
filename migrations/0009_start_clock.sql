-- The start clock: how long a run may be queued in all, match or no match. Off where it is not asked for.

ALTER TABLE run
    ADD COLUMN start_timeout  interval NOT NULL DEFAULT interval '0',   -- the longest wait in all; 0 is without bound
    ADD CONSTRAINT run_start_timeout CHECK (start_timeout >= interval '0');

ALTER TABLE task
    ADD COLUMN start_timeout  interval,            -- the run's; where the clock began is start_until less this
    ADD COLUMN start_until    timestamptz,         -- nothing ends before it; an outage lets it run longer
    -- Both or neither: a task without them waits for as long as its hold lets it.
    ADD CONSTRAINT task_start CHECK ((start_until IS NULL) = (start_timeout IS NULL) AND start_timeout > interval '0');

-- Building an index reads a whole table, however long that takes.
SET LOCAL statement_timeout = 0;

-- The sweep, as start clocks run out, whoever matches. Written only for runs that have one.
CREATE INDEX task_start_until ON task (namespace_id, start_until, attempt_id)
    WHERE claim_until IS NULL AND start_until IS NOT NULL;
