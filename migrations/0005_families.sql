-- Families: a cancel covers a run's descendants, level by level, also across a crash.

ALTER TABLE run
    ADD COLUMN cascade_since   timestamptz,        -- since when a cancel waits to be told to all descendants
    ADD COLUMN cascade_force   boolean,            -- whether what runs of them ends at once
    ADD COLUMN cascade_reason  text,               -- why
    ADD CONSTRAINT run_cascade CHECK ((cascade_since IS NULL) = (cascade_force IS NULL)
                                  AND (cascade_since IS NOT NULL OR cascade_reason IS NULL));

-- Building an index reads a whole table, however long that takes.
SET LOCAL statement_timeout = 0;

-- Cancels that are not through yet, for the sweep: next to nothing.
CREATE INDEX run_cascading ON run (namespace_id, cascade_since) WHERE cascade_since IS NOT NULL;

-- The children of a run, in the order of their names: whom a cancel has to tell, and through whom it goes on.
CREATE INDEX run_children ON run (namespace_id, parent_dag_name, parent_run_id, dag_name, run_id)
    WHERE parent_run_id IS NOT NULL;
