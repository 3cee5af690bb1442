//! A parked poll in the hands of a dispatch, which is about to save its task already claimed for it.

use std::sync::Arc;

use super::{Group, Parked};
use crate::ids::SessionKey;

/// A poll that was taken out of its group. Dropped, it goes back to its place, and its group looks again.
pub struct Reservation<T> {
    group: Arc<Group<T>>,
    poll: Option<Parked<T>>,
}

impl<T> Reservation<T> {
    /// Takes out the first poll that may be given what is dispatched now.
    pub(super) fn of(group: Arc<Group<T>>) -> Option<Self> {
        let poll = Some(group.take_ready()?);
        Some(Self { group, poll })
    }

    /// What the task must be claimed for: the session, its label set's number, and its client's name for the poll.
    #[must_use]
    pub fn asks(&self) -> Option<(&SessionKey, i64, Option<&str>)> {
        let poll = self.poll.as_ref()?;
        Some((&poll.session, self.group.key.1.0, poll.poll_id.as_deref()))
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
