-- Attempts: a run may have more than one, by a retry or a resume, or by itself while it has attempts left.

ALTER TABLE run
    ADD COLUMN max_attempts  integer NOT NULL DEFAULT 1,   -- how many attempts a dispatch may come to by itself
    ADD COLUMN counted_from  integer NOT NULL DEFAULT 1,   -- the attempt that was dispatched last: they count from it
    ADD COLUMN retry         jsonb,                        -- when there is another, and how long it backs off
    ADD CONSTRAINT run_attempts CHECK (max_attempts BETWEEN 1 AND 1000 AND counted_from BETWEEN 1 AND attempt_number);

ALTER TABLE attempt
    ADD COLUMN after_attempt_id  uuid,                     -- the attempt it follows
    ADD COLUMN log_url           text,                     -- where its log is, once it has ended
    ADD COLUMN request_digest    bytea,                    -- SHA-256 of the retry or resume that made it, to know a repeat
    ADD CONSTRAINT attempt_after CHECK (after_attempt_id IS NULL OR number > 1);

-- What the attempt before this one came to, for the worker: JSON, made here or sent by who dispatched it.
ALTER TABLE payload ADD COLUMN previous text;
