//! Answers of batches: one for each item.

use serde::Deserialize;

use super::Problem;
use super::problem::Body;

/// What came of a batch, in the order of its items.
#[derive(Deserialize)]
pub(super) struct BatchAnswer {
    results: Vec<BatchResult>,
}

#[derive(Deserialize)]
struct BatchResult {
    status: u16,
    problem: Option<Body>,
}

impl BatchAnswer {
    /// Success if all were one.
    ///
    /// # Errors
    ///
    /// The first that was refused.
    pub(super) fn all(self) -> Result<(), Problem> {
        let refused = self.results.into_iter().find(|result| !(200..300).contains(&result.status));
        refused.map_or(Ok(()), |result| Err(Problem::of(result.status, result.problem.unwrap_or_default(), None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::client::Action;

    #[test]
    fn the_first_refusal_is_that_of_the_batch() {
        let answer = |text| serde_json::from_str::<BatchAnswer>(text).expect("an answer").all();
        assert_eq!(answer(r#"{"results":[{"status":201,"run":{}},{"status":200}]}"#), Ok(()));
        let refused = answer(
            r#"{"results":[{"status":201},{"status":409,"problem":{"code":"run-exists","action":"give_up"}},{"status":503}]}"#,
        );
        let refused = refused.expect_err("two of them were refused");
        assert_eq!((refused.status, refused.code.as_str(), refused.action), (409, "run-exists", Action::GiveUp));
    }
}
