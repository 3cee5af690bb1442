-- Hand-over: a dispatch that finds a parked poll is saved already claimed for it, by the statement that records it.

-- How many slots a session uses: claims not acknowledged and attempts running. A function, and VOLATILE, because each
-- statement inside sees what was committed until then: asked after the session's row was locked, it counts the claims of
-- whoever held that lock before, which the statement around it cannot see.
CREATE FUNCTION roadstead_used_slots(of_namespace bigint, of_worker text, of_session text) RETURNS bigint
    LANGUAGE plpgsql VOLATILE
    AS $$
    BEGIN
        RETURN (SELECT count(*) FROM task t
                WHERE t.namespace_id = of_namespace AND t.worker_id = of_worker AND t.session_id = of_session
                  AND t.claim_until IS NOT NULL)
             + (SELECT count(*) FROM attempt a
                WHERE a.namespace_id = of_namespace AND a.worker_id = of_worker AND a.session_id = of_session
                  AND a.status = 'running');
    END
    $$;
