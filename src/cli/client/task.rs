//! A task as a poll brings it.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, de::Error as _};
use serde_json::value::RawValue;

use super::Secret;

/// A claim, with everything needed to do the work.
#[derive(Deserialize)]
#[serde(try_from = "BTreeMap<String, Box<RawValue>>")]
pub struct Task {
    /// The DAG's name.
    pub dag_name: String,
    /// The run's id.
    pub run_id: String,
    /// The attempt claimed.
    pub attempt_id: String,
    /// From 1.
    pub attempt_number: u64,
    /// `start`, `retry` or `resume`.
    pub operation: String,
    /// Proves the claim.
    pub token: Secret,
    /// Rises with each claim of the run.
    pub fence: u64,
    /// How long the claim waits for its ack.
    pub ack_within_seconds: f64,
    /// The whole task as it was sent, byte for byte in its values, but for the token.
    pub document: String,
}

impl fmt::Debug for Task {
    /// Says which task it is and leaves out what it carries: the payload belongs in no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("dag_name", &self.dag_name)
            .field("run_id", &self.run_id)
            .field("attempt_id", &self.attempt_id)
            .finish_non_exhaustive()
    }
}

impl TryFrom<BTreeMap<String, Box<RawValue>>> for Task {
    type Error = serde_json::Error;

    fn try_from(mut fields: BTreeMap<String, Box<RawValue>>) -> Result<Self, Self::Error> {
        let token = fields.remove("token").ok_or_else(|| serde_json::Error::missing_field("token"))?;
        let token = serde_json::from_str(token.get())?;
        Ok(Self {
            dag_name: field(&fields, "dag_name")?,
            run_id: field(&fields, "run_id")?,
            attempt_id: field(&fields, "attempt_id")?,
            attempt_number: field(&fields, "attempt_number")?,
            operation: field(&fields, "operation")?,
            token,
            fence: field(&fields, "fence")?,
            ack_within_seconds: field(&fields, "ack_within_seconds")?,
            document: serde_json::to_string(&fields)?,
        })
    }
}

fn field<T: for<'de> Deserialize<'de>>(
    fields: &BTreeMap<String, Box<RawValue>>,
    name: &'static str,
) -> Result<T, serde_json::Error> {
    let raw = fields.get(name).ok_or_else(|| serde_json::Error::missing_field(name))?;
    serde_json::from_str(raw.get())
}

#[cfg(test)]
mod tests {
    use crate::cli::client::PollAnswer;

    #[test]
    fn a_task_keeps_its_numbers_and_loses_its_token() {
        let poll: PollAnswer = serde_json::from_str(
            r#"{"tasks":[{"dag_name":"etl","run_id":"r1","attempt_id":"a1","attempt_number":2,"operation":"retry",
                "token":"swordfish","fence":7,"ack_within_seconds":15,"params":{"big":12345678901234567890123},"new":1}]}"#,
        )
        .expect("a poll's answer");
        let task = &poll.tasks[0];
        assert_eq!((task.attempt_number, task.fence), (2, 7));
        assert!(task.document.contains("12345678901234567890123"));
        assert!(!task.document.contains("swordfish"));
        assert!(!format!("{task:?}").contains("swordfish"));
    }

    #[test]
    fn a_task_without_a_token_is_refused() {
        let error = serde_json::from_str::<PollAnswer>(r#"{"tasks":[{"dag_name":"etl"}]}"#).expect_err("no token");
        assert!(error.to_string().contains("token"));
    }
}
