-- Families: a cancel covers a run's descendants, level by level, also across a crash.

ALTER TABLE run
    ADD COLUMN cascade_since  timestamptz,         -- set with a cancel whose children have not all been told yet
    ADD COLUMN cascade_force  boolean,             -- whether what runs of them ends at once
    ADD CONSTRAINT run_cascade CHECK ((cascade_since IS NULL) = (cascade_force IS NULL)
                                  AND (cascade_since IS NULL OR cancel_requested_at IS NOT NULL));

-- Building an index reads a whole table, however long that takes.
SET LOCAL statement_timeout = 0;

-- Cancels that are not through yet, for the sweep: next to nothing.
CREATE INDEX run_cascading ON run (namespace_id, cascade_since) WHERE cascade_since IS NOT NULL;

-- The children of a run that have not ended: whom a cancel has to tell, however many have.
CREATE INDEX run_living_children ON run (namespace_id, parent_dag_name, parent_run_id, dag_name, run_id)
    WHERE parent_run_id IS NOT NULL AND finished_at IS NULL;
