//! JSON that is not ours, handed on as it came.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// Any JSON, as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawJson(pub String);

impl Serialize for RawJson {
    /// Fails when the text is no JSON, which only a fault of ours can bring about: it was checked when it came.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_a_digit_is_lost() {
        let text = r#"{"b": 123456789012345678901234567890, "a":1.0}"#;
        assert_eq!(serde_json::to_string(&RawJson(text.into())).unwrap(), text);
        assert!(serde_json::to_string(&RawJson("{".into())).is_err());
    }
}
