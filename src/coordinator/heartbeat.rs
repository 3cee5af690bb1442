//! Heartbeat: a session's sign of life, with what it offers now and what it runs.

use std::sync::Arc;
use std::time::Duration;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::Timestamp;
use crate::domain::labels::{LabelSet, Labels};
use crate::domain::refusal::Refusal;
use crate::domain::session::{Offer, Session};
use crate::ids::{AttemptId, Digest, NamespaceId, SessionKey, Token};
use crate::store::{self, Db};

/// What a session says with a beat.
#[derive(Debug, Clone)]
pub struct Beat {
    /// Which session.
    pub session: SessionKey,
    /// The attempts it runs, each with its token. One that is left out is lost after two intervals; absent says nothing
    /// of attempts.
    pub attempts: Option<Vec<(AttemptId, Token)>>,
    /// Its labels from now on; absent as before.
    pub labels: Option<Labels>,
    /// Its slots from now on; absent as before.
    pub slots: Option<i32>,
    /// Whether it wants no more tasks; absent as before.
    pub draining: Option<bool>,
}

/// What a session is told in return.
#[derive(Debug, Clone)]
pub struct BeatAnswer {
    /// When its lease ends without a further sign of life.
    pub lease_until: Timestamp,
    /// The lease's length.
    pub lease: Duration,
    /// Attempts it runs whose cancel was asked for.
    pub cancel: Vec<AttemptId>,
    /// Attempts it named and no longer holds: to be stopped.
    pub lost: Vec<AttemptId>,
    /// Whether it is given no more tasks.
    pub drain: bool,
}

impl Coordinator {
    /// Takes a beat. One that brings nothing new is one update of one row; other labels, slots or a wish to drain
    /// lock the session, and its parked polls look by them at once.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`].
    pub async fn heartbeat_worker(&self, namespace: NamespaceId, beat: Beat) -> Result<BeatAnswer, Error> {
        let beat = Arc::new(beat);
        self.shielded(move |coordinator: Self| {
            let beat = Arc::clone(&beat);
            async move { coordinator.beat_once(namespace, &beat).await }
        })
        .await
    }

    async fn beat_once(&self, namespace: NamespaceId, beat: &Beat) -> Result<BeatAnswer, Fault> {
        let session = if beat.labels.is_some() || beat.slots.is_some() || beat.draining.is_some() {
            self.change_offer(namespace, beat).await?
        } else {
            self.alive(namespace, &beat.session).await?
        };
        let mut conn = self.0.db.conn().await?;
        let cancel = store::worker::to_cancel(&mut conn, namespace, &beat.session).await?;
        let mut lost = Vec::new();
        if let Some(attempts) = &beat.attempts {
            let named: Vec<(AttemptId, Digest)> = attempts.iter().map(|(id, token)| (*id, token.digest())).collect();
            store::beats::named(&mut conn, namespace, &beat.session, &named).await?;
            if !named.is_empty() {
                lost = store::worker::not_held(&mut conn, namespace, &beat.session, &named).await?;
            }
        }
        Ok(BeatAnswer {
            lease_until: session.lease_until(),
            lease: session.lease_ttl,
            cancel,
            lost,
            drain: session.present_from.is_none(),
        })
    }

    /// Locks the session and changes what it offers.
    async fn change_offer(&self, namespace: NamespaceId, beat: &Beat) -> Result<Session, Fault> {
        let parts = &self.0;
        let unknown = |ended| Refusal::UnknownSession { session: beat.session.clone(), ended };
        // Interning comes before the transaction, by the exclusive keys that the session has now. It is only read for
        // that: a sign of life of its own would open, for a moment, a presence with the labels it no longer offers.
        let label_set_no = match &beat.labels {
            None => None,
            Some(labels) => {
                let mut conn = parts.db.conn().await?;
                let before = store::session::label_set_no(&mut conn, namespace, &beat.session).await?;
                let before = before.ok_or_else(|| unknown(None))?;
                let offered = parts.catalog.label_set(&mut conn, namespace, before).await?;
                drop(conn);
                let offer = LabelSet { labels: labels.clone(), ..LabelSet::clone(&offered) };
                Some(parts.catalog.label_set_no(&parts.db, namespace, &offer).await?)
            }
        };
        let mut tx = parts.db.begin().await?;
        let drained = store::worker::is_drained(&mut tx, namespace, &beat.session.worker_id).await?;
        let (known, now) =
            store::session::lock(&mut tx, namespace, &beat.session).await?.ok_or_else(|| unknown(None))?;
        if known.ended.is_some() {
            return Err(unknown(known.ended).into());
        }
        let label_set_no = label_set_no.unwrap_or(known.label_set_no);
        let offer = Offer {
            label_set_no,
            slots: beat.slots.unwrap_or(known.slots),
            draining: beat.draining.unwrap_or(known.draining),
            drained,
        };
        let change = known.beat(&offer, now);
        store::session::save(&mut tx, namespace, &change, now).await?;
        Db::commit(tx).await?;
        if change.session.present_from.is_none() {
            parts.matchmaker.draining(namespace, &beat.session);
        } else {
            self.offers(namespace, &beat.session, label_set_no);
        }
        self.sweep_soon();
        Ok(change.session)
    }
}
