-- Parked runs: recorded by a scheduler that keeps its own queue, and dispatched by it when their turn comes. Parked, such
-- a run is queued and has no task; its wait is kept for a retry, since the task it is given by and by waits for nobody.

ALTER TABLE run ADD COLUMN park boolean NOT NULL DEFAULT false;   -- the current attempt was recorded so
