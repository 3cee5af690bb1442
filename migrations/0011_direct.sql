-- Direct delivery: a run that is handed to a poll parked at the moment of its dispatch, or not at all. It is never queued: a
-- claim that comes to nothing fails it.

ALTER TABLE run ADD COLUMN direct boolean NOT NULL DEFAULT false;   -- the current attempt was delivered so
