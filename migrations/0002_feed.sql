-- The feed: every event of a namespace, in one order that no reader sees change.
--
-- A serial drawn at insert is not commit order, and readers by it skip events. So events are written without a place,
-- noted as unstamped in the same transaction, and given their positions afterwards, by one stamper at a time and in a
-- statement that begins after the stamper's lock was had: positions are dense and become visible in their order.

-- Events without a position. In a run's order: numbers are drawn under the run's lock.
CREATE TABLE event_unstamped (
    namespace_id  bigint NOT NULL,
    unstamped_no  bigint GENERATED ALWAYS AS IDENTITY,
    dag_name      text COLLATE "C" NOT NULL,
    run_id        text COLLATE "C" NOT NULL,
    run_seq       bigint NOT NULL,
    PRIMARY KEY (namespace_id, unstamped_no)
) WITH (
    -- Rows live for milliseconds.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- The next position of each namespace; the row's lock makes one stamper of many.
CREATE TABLE feed (
    namespace_id   bigint PRIMARY KEY,
    next_position  bigint NOT NULL DEFAULT 1,
    first_position bigint NOT NULL DEFAULT 1,      -- positions below it are no longer kept
    CONSTRAINT feed_positions CHECK (first_position >= 1 AND next_position >= first_position)
);
INSERT INTO feed (namespace_id) SELECT namespace_id FROM namespace;

-- Which event has which position.
CREATE TABLE feed_entry (
    namespace_id  bigint NOT NULL,
    position      bigint NOT NULL,
    dag_name      text COLLATE "C" NOT NULL,
    run_id        text COLLATE "C" NOT NULL,
    run_seq       bigint NOT NULL,
    PRIMARY KEY (namespace_id, position),
    -- No event has two.
    CONSTRAINT feed_entry_event UNIQUE (namespace_id, dag_name, run_id, run_seq)
);

-- What was written before there was a feed, in each run's order.
INSERT INTO event_unstamped (namespace_id, dag_name, run_id, run_seq)
SELECT namespace_id, dag_name, run_id, run_seq FROM event ORDER BY occurred_at, dag_name, run_id, run_seq;
