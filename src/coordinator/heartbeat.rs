//! Heartbeat: a session's sign of life, with what it offers now and what it runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::error::Fault;
use super::shared::{Answers, Shared};
use super::{Coordinator, Error};
use crate::domain::Timestamp;
use crate::domain::labels::{LabelSet, Labels};
use crate::domain::refusal::Refusal;
use crate::domain::session::{Offer, Session};
use crate::ids::{AttemptId, NamespaceId, SessionKey, Token};
use crate::store::beats::{Heard, Named};
use crate::store::signs::Wait;
use crate::store::{self, Class, Conn, Db};

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
    /// Takes a beat. One that brings nothing new shares its statements with others, and writes one row of its own; other
    /// labels, slots or a wish to drain lock the session, and its parked polls look by them at once.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`].
    pub async fn heartbeat_worker(&self, namespace: NamespaceId, beat: Beat) -> Result<BeatAnswer, Error> {
        let named = beat.attempts.as_ref().map(|named| named.iter().map(|(id, token)| (*id, token.digest())).collect());
        let named = Named { session: beat.session.clone(), attempts: named };
        self.0.beats.ask(self, namespace, Arc::new(Saying { beat, named })).await
    }

    /// What is to be said to a beat of this session.
    async fn answer_beat(&self, namespace: NamespaceId, session: Session, named: &Named) -> Result<BeatAnswer, Fault> {
        let mut conn = self.0.db.conn().await?;
        let mut answers = hear(&mut conn, namespace, vec![(session, named)]).await?;
        Ok(answers.remove(0))
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

/// A beat, and what it says of attempts as the store knows them.
pub(super) struct Saying {
    beat: Beat,
    named: Named,
}

impl Saying {
    /// Whether it says of what its session offers what was said before.
    async fn offers_as_before(
        &self,
        coordinator: &Coordinator,
        conn: &mut Conn,
        namespace: NamespaceId,
        session: &Session,
    ) -> store::Result<bool> {
        let Beat { labels, slots, draining, .. } = &self.beat;
        if slots.is_some_and(|slots| slots != session.slots) || draining.is_some_and(|wish| wish != session.draining) {
            return Ok(false);
        }
        let Some(labels) = labels else { return Ok(true) };
        let offered = coordinator.0.catalog.label_set(conn, namespace, session.label_set_no).await?;
        Ok(offered.labels == *labels)
    }
}

impl Shared for Arc<Saying> {
    type Key = SessionKey;
    type Answer = BeatAnswer;
    const CLASS: Class = Class::Sign;

    fn key(&self) -> SessionKey {
        self.beat.session.clone()
    }

    async fn together(
        coordinator: &Coordinator,
        namespace: NamespaceId,
        all: &[Self],
    ) -> Result<Answers<BeatAnswer>, Fault> {
        let places: HashMap<SessionKey, usize> =
            all.iter().enumerate().map(|(at, saying)| (saying.key(), at)).collect();
        let keys: Vec<SessionKey> = all.iter().map(Self::key).collect();
        let mut conn = coordinator.0.db.conn().await?;
        // Before any of them is touched: a sign of life would open, for a moment, a presence with what it no longer offers.
        let mut plain = Vec::with_capacity(all.len());
        for (session, now) in store::signs::recent(&mut conn, namespace, &keys).await? {
            if all[places[&session.key]].offers_as_before(coordinator, &mut conn, namespace, &session).await? {
                plain.push((session, now));
            }
        }
        let touched = store::signs::touch(&mut conn, namespace, plain, Wait::ForNobody).await?;
        let at: Vec<usize> = touched.iter().map(|session| places[&session.key]).collect();
        let beats = touched.into_iter().zip(&at).map(|(session, at)| (session, &all[*at].named)).collect();
        let mut answers: Answers<BeatAnswer> = all.iter().map(|_| None).collect();
        for (at, answer) in at.iter().zip(hear(&mut conn, namespace, beats).await?) {
            answers[*at] = Some(Ok(answer));
        }
        Ok(answers)
    }

    async fn alone(&self, coordinator: &Coordinator, namespace: NamespaceId) -> Result<BeatAnswer, Fault> {
        let Beat { labels, slots, draining, .. } = &self.beat;
        let session = if labels.is_some() || slots.is_some() || draining.is_some() {
            coordinator.change_offer(namespace, &self.beat).await?
        } else {
            coordinator.alive(namespace, &self.beat.session).await?
        };
        coordinator.answer_beat(namespace, session, &self.named).await
    }
}

/// Reads what these sessions are to be told, and notes what they say of their attempts.
async fn hear(
    conn: &mut Conn,
    namespace: NamespaceId,
    beats: Vec<(Session, &Named)>,
) -> store::Result<Vec<BeatAnswer>> {
    let named: Vec<&Named> = beats.iter().map(|(_, named)| *named).collect();
    let heard = store::beats::heard(conn, namespace, &named).await?;
    let news: Vec<&Named> =
        named.iter().zip(&heard).filter(|(_, heard)| heard.is_news).map(|(named, _)| *named).collect();
    if !news.is_empty() {
        store::beats::note(conn, namespace, &news).await?;
    }
    let answer = |((session, _), heard): ((Session, &Named), Heard)| BeatAnswer {
        lease_until: session.lease_until(),
        lease: session.lease_ttl,
        cancel: heard.cancel,
        lost: heard.lost,
        drain: session.present_from.is_none(),
    };
    Ok(beats.into_iter().zip(heard).map(answer).collect())
}
