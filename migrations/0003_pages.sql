-- Pages: every list reads by an index in the order of its answer, from where the page before it ended.
--
-- What each costs. A dispatch, an acknowledgement and an end each write one entry into every index of `run` whose
-- condition holds for the row then, since its status, which is indexed, has changed. So conditions are chosen such that
-- a dispatch without labels writes one entry more than before: that of `run_dag`.

-- Building an index reads a whole table, however long that takes.
SET LOCAL statement_timeout = 0;

-- listRuns by DAG, with a status or without one: the few statuses are merged in order of time. Written at a dispatch,
-- an acknowledgement and an end.
CREATE INDEX run_dag ON run (namespace_id, dag_name, status, created_at, run_id);

-- listRuns by a status in which a run has ended; `run_unfinished` has the others and stays short. Written at the end.
CREATE INDEX run_finished ON run (namespace_id, status, created_at, dag_name, run_id) WHERE finished_at IS NOT NULL;

-- listRuns by the worker that has a run, or had it last. Written at an acknowledgement and at the end.
CREATE INDEX run_worker ON run (namespace_id, worker_id, created_at, dag_name, run_id) WHERE worker_id IS NOT NULL;

-- Children and families are listed by the run id of the parent or root alone, in order of time; the DAG's name comes
-- last, so that the children of one run are told from those of its namesakes by the index alone. These take the place
-- of the two indexes by DAG name and run id, at the same cost.
DROP INDEX run_parent;
CREATE INDEX run_parent ON run (namespace_id, parent_run_id, created_at, dag_name, run_id, parent_dag_name)
    WHERE parent_run_id IS NOT NULL;
DROP INDEX run_root;
CREATE INDEX run_root ON run (namespace_id, root_run_id, created_at, dag_name, run_id, root_dag_name)
    WHERE root_run_id IS NOT NULL;

-- listRuns by label (docs/adr/0014). One row per label of a run, written at the dispatch and not by what follows: an index
-- of `run` itself would be written three times a life, and one over all labels of a row has no order.
CREATE TABLE run_label (
    namespace_id  bigint NOT NULL,
    term          text COLLATE "C" NOT NULL,       -- `key=value`
    created_at    timestamptz NOT NULL,            -- the run's
    dag_name      text COLLATE "C" NOT NULL,
    run_id        text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace_id, term, created_at, dag_name, run_id)
);
INSERT INTO run_label (namespace_id, term, created_at, dag_name, run_id)
SELECT r.namespace_id, l.key || '=' || l.value, r.created_at, r.dag_name, r.run_id
FROM run r, jsonb_each_text(r.labels) l;
