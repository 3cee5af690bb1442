//! A parked poll in the hands of a dispatch, which is about to save its task already claimed for it.

use std::sync::Arc;

use super::{Group, Parked};
use crate::ids::{LabelSetNo, SessionKey};

/// A poll that was taken out of its group. Dropped, it goes back to its place, and its group looks again.
pub struct Reservation<T> {
    /// Whose poll.
    pub session: SessionKey,
    /// What that session offers, as far as is known here.
    pub label_set_no: LabelSetNo,
    /// Its client's name for the poll.
    pub poll_id: Option<String>,
    group: Arc<Group<T>>,
    poll: Option<Parked<T>>,
}

impl<T> Reservation<T> {
    /// Takes out the first poll that may be given what is dispatched now.
    pub(super) fn of(group: Arc<Group<T>>) -> Option<Self> {
        let poll = group.take_ready()?;
        let (session, poll_id) = (poll.session.clone(), poll.poll_id.clone());
        Some(Self { session, label_set_no: group.key.1, poll_id, group, poll: Some(poll) })
    }

    /// Answers the poll with these; returns what could not be delivered because its client has gone.
    #[must_use]
    pub fn give(mut self, tasks: Vec<T>) -> Vec<T> {
        self.settle(tasks)
    }

    /// Ends it. The group is woken in any case: it may have no poll left and want to retire, or this one again.
    fn settle(&mut self, tasks: Vec<T>) -> Vec<T> {
        let Some(poll) = self.poll.take() else { return tasks };
        let given = !tasks.is_empty();
        let gone = self.group.settle(vec![(poll, tasks)]);
        if !given || self.group.is_empty() {
            self.group.wake();
        }
        gone
    }
}

impl<T> Drop for Reservation<T> {
    fn drop(&mut self) {
        self.settle(Vec::new());
    }
}
