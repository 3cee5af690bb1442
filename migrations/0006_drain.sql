-- Drain: an operator's, which outlives sessions, beside a session's own.

ALTER TABLE worker
    ADD COLUMN drain          boolean NOT NULL DEFAULT false,   -- an operator wants it given no more tasks
    ADD COLUMN drain_comment  text,                             -- why, for people
    ADD CONSTRAINT worker_drain CHECK (drain OR drain_comment IS NULL);

ALTER TABLE worker_session
    ADD COLUMN draining  boolean NOT NULL DEFAULT false;        -- it said that it wants no more tasks
UPDATE worker_session SET draining = true WHERE ended_at IS NULL AND present_from IS NULL;
