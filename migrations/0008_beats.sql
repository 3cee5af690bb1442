-- Beats: an attempt that its worker no longer names, or no longer renews, is lost though its session goes on.

ALTER TABLE attempt
    ADD COLUMN named         boolean NOT NULL DEFAULT false,  -- a beat has named it: from then on beats alone decide
    ADD COLUMN omitted_since timestamptz,                     -- the first beat that left it out since it was last named
    ADD COLUMN singly        boolean NOT NULL DEFAULT false,  -- its holder renews it by itself, and no beat has named it
    ADD COLUMN renewed_at    timestamptz,                     -- when it was last renewed so
    ADD CONSTRAINT attempt_singly CHECK (NOT singly OR (NOT named AND omitted_since IS NULL AND renewed_at IS NOT NULL));

-- What the sweep has to look at of all that runs: what was left out, which is rare, and what is renewed singly. No column
-- that a renewal writes is in it, so that a renewal stays an update of one row in its place.
CREATE INDEX attempt_watched ON attempt (namespace_id, attempt_id)
    WHERE status = 'running' AND (singly OR omitted_since IS NOT NULL);
