//! Records a dispatch: run, attempt, task, payload, event and key, in one statement; and, when a poll waits for it, the
//! claim of that poll's session.

use sqlx::PgConnection;

use super::error::{Error, Result};
use super::rows;
use crate::domain::transition::{AttemptChange, TaskChange, Transition};
use crate::domain::{Timestamp, labels};
use crate::ids::{Digest, LabelSetNo, NamespaceId, RunKey, SessionKey};

/// What a dispatch carries for its worker: opaque text, and JSON as it was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// The DAG's definition.
    pub definition: Option<String>,
    /// Its parameters, JSON.
    pub params: Option<String>,
    /// Whatever else its worker needs, JSON.
    pub context: Option<String>,
    /// What the attempt before came to, JSON.
    pub previous: Option<String>,
}

/// A dispatch's claim to be the same as another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The client's key, if it sent one.
    pub key: Option<String>,
    /// The digest of the request.
    pub digest: Digest,
}

/// A parked poll that the task may be saved already claimed for.
#[derive(Debug, Clone, Copy)]
pub struct HandOver<'a> {
    /// Whose poll.
    pub session: &'a SessionKey,
    /// What that session is believed to offer.
    pub label_set_no: LabelSetNo,
    /// Its client's name for the poll.
    pub poll_id: Option<&'a str>,
    /// The digest of the claim's token.
    pub token: Digest,
    /// Until when it must be acknowledged.
    pub until: Timestamp,
    /// The event's data if it is claimed: its snapshot says so.
    pub data: &'a str,
}

/// What became of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// Nothing: its identity or its key is taken; or it was to be claimed for the poll, and could not.
    Not,
    /// It waits, or is parked.
    Waiting,
    /// It is claimed for the poll, as of the transition's moment, with the run's first fence.
    Claimed,
}

/// Records a new run unless its identity or its key is taken. Waits for a twin in flight. One that is delivered directly is
/// recorded claimed or not at all.
///
/// It is claimed for the poll's session if that is alive, not draining, offers what it is believed to and has a slot, all
/// judged under its lock, which nothing waits for: a session that somebody else has locked just now is passed over. The
/// slots are counted by a function, which sees what was committed before the lock; the statement itself does not.
///
/// The idempotency key is locked first, then the run: the order of every transaction.
///
/// # Errors
/// Of the database. [`Error::Statement`] never for a twin.
#[expect(clippy::too_many_lines, reason = "one statement, and what goes into it")]
pub async fn create(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    transition: &Transition,
    identity: &Identity,
    payload: &Payload,
    event: &super::event::NewEvent,
    poll: Option<HandOver<'_>>,
) -> Result<Created> {
    let hold_from = match (transition.attempt(), transition.task()) {
        (AttemptChange::Create, TaskChange::Create { hold, .. }) => Some(hold.from),
        // It is parked.
        (AttemptChange::Create, TaskChange::Keep) => None,
        _ => return Err(Error::Unreadable("only a transition that creates an attempt creates a run".into())),
    };
    let run = transition.run();
    let (root_dag, root_run) = names(run.root.as_ref());
    let (parent_dag, parent_run) = names(run.parent.as_ref());
    let labels: Vec<String> = run.labels.iter().map(|(key, value)| labels::term(key, value)).collect();
    let token = poll.map(|poll| poll.token.0);
    let created = sqlx::query!(
        r#"/* store::create::create */
        WITH s AS MATERIALIZED (
            SELECT worker_id, session_id, slots FROM worker_session
            WHERE namespace_id = $1 AND worker_id = $32::text AND session_id = $33::text AND label_set_no = $34
              AND ended_at IS NULL AND present_from IS NOT NULL AND last_seen + stale_after > roadstead_now()
            FOR NO KEY UPDATE SKIP LOCKED
        ), g AS MATERIALIZED (
            SELECT worker_id, session_id, $35::text AS poll_id, $36::bytea AS digest, $6::timestamptz AS at,
                   $37::timestamptz AS until
            FROM s WHERE slots > roadstead_used_slots($1, worker_id, session_id)
        ), k AS (
            INSERT INTO idempotency_key (namespace_id, key, request_digest, dag_name, run_id, created_at)
            SELECT $1, $2::text, $3, $4, $5, $6 WHERE $2::text IS NOT NULL AND (NOT $41 OR EXISTS (SELECT FROM g))
            ON CONFLICT DO NOTHING
            RETURNING key
        ), r AS (
            INSERT INTO run (namespace_id, dag_name, run_id, status, version, attempt_id, attempt_number, operation,
                             fence, selector_no, wait, priority, max_attempts, retry, labels, root_dag_name, root_run_id, parent_dag_name,
                             parent_run_id, traceparent, idempotency_key, request_digest, queued_at, created_at,
                             updated_at, start_timeout, park, direct)
            SELECT $1, $4, $5, $7, $8, $9, $10, $11, 0, $12, $13::bigint * interval '1 microsecond', $14, $29, $30,
                   $15, $16, $17, $18, $19, $20, $2::text, $3, $6, $6, $6, $39::bigint * interval '1 microsecond',
                   $40, $41
            WHERE ($2::text IS NULL OR EXISTS (SELECT FROM k)) AND (NOT $41 OR EXISTS (SELECT FROM g))
            ON CONFLICT DO NOTHING
            RETURNING run_id
        ), a AS (
            INSERT INTO attempt (namespace_id, attempt_id, dag_name, run_id, number, operation, status, queued_at)
            SELECT $1, $9, $4, $5, $10, $11, 'queued', $6 FROM r
        ), t AS (
            INSERT INTO task (namespace_id, attempt_id, dag_name, run_id, selector_no, priority, hold_from, wait,
                              hold_until, start_timeout, start_until, fence, worker_id, session_id, poll_id,
                              token_digest, claimed_at, claim_until)
            SELECT $1, $9, $4, $5, $12, $14, $21::timestamptz, $13::bigint * interval '1 microsecond',
                   $21::timestamptz + $13::bigint * interval '1 microsecond',
                   CASE WHEN $39::bigint > 0 THEN $39::bigint * interval '1 microsecond' END,
                   CASE WHEN $39::bigint > 0 THEN $21::timestamptz + $39::bigint * interval '1 microsecond' END,
                   (g.at IS NOT NULL)::int, g.worker_id, g.session_id, g.poll_id, g.digest, g.at, g.until
            FROM r LEFT JOIN g ON true
            WHERE $21::timestamptz IS NOT NULL
        ), p AS (
            INSERT INTO payload (namespace_id, dag_name, run_id, definition, params, context, previous)
            SELECT $1, $4, $5, $22, $23, $24, $31 FROM r
        ), l AS (
            INSERT INTO run_label (namespace_id, term, created_at, dag_name, run_id)
            SELECT $1, term, $6, $4, $5 FROM r CROSS JOIN unnest($28::text[]) AS term
        ), e AS (
            INSERT INTO event (namespace_id, dag_name, run_id, run_seq, event_id, type, occurred_at, data)
            SELECT $1, $4, $5, $8, $25, $26, $6, CASE WHEN g.at IS NULL THEN $27 ELSE $38 END
            FROM r LEFT JOIN g ON true
        ), u AS (
            INSERT INTO event_unstamped (namespace_id, dag_name, run_id, run_seq) SELECT $1, $4, $5, $8 FROM r
        )
        SELECT EXISTS (SELECT FROM r) AS "created!", EXISTS (SELECT FROM g) AS "claimed!""#,
        namespace.0,
        identity.key.as_deref(),
        &identity.digest.0[..],
        run.key.dag_name.as_str(),
        run.key.run_id.as_str(),
        transition.at(),
        run.status.as_str(),
        run.version,
        run.attempt.attempt_id.0,
        run.attempt.number,
        run.attempt.operation.as_str(),
        run.selector_no.0,
        rows::micros(run.wait),
        run.priority,
        serde_json::json!(run.labels),
        root_dag,
        root_run,
        parent_dag,
        parent_run,
        run.traceparent,
        hold_from,
        payload.definition,
        payload.params,
        payload.context,
        event.id,
        transition.event().as_str(),
        event.data,
        &labels,
        run.max_attempts,
        run.retry.as_ref().map(|retry| serde_json::json!(retry)),
        payload.previous,
        poll.map(|poll| poll.session.worker_id.as_str()),
        poll.map(|poll| poll.session.session_id.as_str()),
        poll.map(|poll| poll.label_set_no.0),
        poll.and_then(|poll| poll.poll_id),
        token.as_ref().map(|digest| &digest[..]),
        poll.map(|poll| poll.until),
        poll.map(|poll| poll.data),
        rows::micros(run.start_timeout),
        run.park,
        run.direct,
    )
    .fetch_one(conn)
    .await?;
    Ok(match (created.created, created.claimed) {
        (false, _) => Created::Not,
        (true, false) => Created::Waiting,
        (true, true) => Created::Claimed,
    })
}

/// What stands in the way of a dispatch that was not recorded.
#[derive(Debug)]
pub enum Taken {
    /// Its key, by this run, for a request with this digest.
    Key(RunKey, Digest),
    /// Its identity, by a request with this key and digest.
    Identity(Identity),
    /// Nothing any more.
    Nothing,
}

/// Finds the twin of a dispatch.
///
/// # Errors
/// Of the database.
pub async fn taken(conn: &mut PgConnection, namespace: NamespaceId, run: &RunKey, key: Option<&str>) -> Result<Taken> {
    if let Some(key) = key {
        let row = sqlx::query!(
            r#"/* store::create::taken (key) */
            SELECT request_digest, dag_name, run_id FROM idempotency_key WHERE namespace_id = $1 AND key = $2"#,
            namespace.0,
            key,
        )
        .fetch_optional(&mut *conn)
        .await?;
        if let Some(row) = row {
            return Ok(Taken::Key(rows::key(row.dag_name, row.run_id)?, rows::digest(row.request_digest)?));
        }
    }
    let row = sqlx::query!(
        r#"/* store::create::taken (identity) */
        SELECT request_digest, idempotency_key FROM run WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3"#,
        namespace.0,
        run.dag_name.as_str(),
        run.run_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(match row {
        Some(row) => Taken::Identity(Identity { key: row.idempotency_key, digest: rows::digest(row.request_digest)? }),
        None => Taken::Nothing,
    })
}

fn names(key: Option<&RunKey>) -> (Option<&str>, Option<&str>) {
    (key.map(|key| key.dag_name.as_str()), key.map(|key| key.run_id.as_str()))
}
