//! Labels: what workers offer, what runs ask for, and how both may be written.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::{WorkerId, is_invisible};

/// Most labels a worker or a run may carry.
pub const MAX_LABELS: usize = 64;

/// Sorted `key=value` pairs, each under the rules of [`check_key`] and [`check_value`].
pub type Labels = BTreeMap<String, String>;

/// The name of [`Labels`] in the interface's description, which cannot see through an alias.
#[derive(Debug, utoipa::ToSchema)]
#[schema(as = Labels)]
pub struct LabelsSchema(pub BTreeMap<String, String>);

/// Why labels were refused: which entry, and which rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLabel {
    /// The key as sent, or none when there are too many.
    pub key: Option<String>,
    /// A sentence that follows the entry's name.
    pub detail: String,
}

/// Checks a whole map of labels.
///
/// # Errors
/// Every entry that breaks a rule, and one more when there are more than `max`.
pub fn check(labels: &Labels, max: usize) -> Result<(), Vec<InvalidLabel>> {
    let mut invalid = Vec::new();
    if labels.len() > max {
        invalid
            .push(InvalidLabel { key: None, detail: format!("must have at most {max} entries, has {}", labels.len()) });
    }
    for (key, value) in labels {
        if let Err(detail) = check_key(key).and_then(|()| check_value(value)) {
            invalid.push(InvalidLabel { key: Some(key.clone()), detail });
        }
    }
    if invalid.is_empty() { Ok(()) } else { Err(invalid) }
}

/// Checks a label's key: 1 to 63 of `A-Z a-z 0-9 . _ / -`.
///
/// # Errors
/// The rule that is broken.
pub fn check_key(key: &str) -> Result<(), String> {
    if !(1..=63).contains(&key.len()) {
        return Err(format!("a label's key must have 1 to 63 characters, has {}", key.len()));
    }
    match key.chars().find(|c| !(c.is_ascii_alphanumeric() || "._/-".contains(*c))) {
        Some(bad) => Err(format!("a label's key may contain A-Z a-z 0-9 . _ / - only, has {bad:?}")),
        None => Ok(()),
    }
}

/// Checks a label's value: up to 128 bytes, printable, without commas and without blanks at the ends. Empty is a value.
///
/// # Errors
/// The rule that is broken.
pub fn check_value(value: &str) -> Result<(), String> {
    if value.len() > 128 {
        return Err(format!("a label's value must have at most 128 bytes, has {}", value.len()));
    }
    if let Some(bad) = value.chars().find(|c| is_invisible(*c)) {
        return Err(format!("a label's value must be printable, has {bad:?}"));
    }
    if value.contains(',') {
        return Err("a label's value must not contain commas".into());
    }
    if value.trim() != value {
        return Err("a label's value must not begin or end with blanks".into());
    }
    Ok(())
}

/// The first label of `bounds` that `labels` lack or contradict.
#[must_use]
pub fn unmet<'a>(bounds: &'a Labels, labels: &Labels) -> Option<(&'a String, &'a String)> {
    bounds.iter().find(|(key, value)| labels.get(*key) != Some(*value))
}

/// A label as the term it is matched by.
#[must_use]
pub fn term(key: &str, value: &str) -> String {
    format!("{key}={value}")
}

/// What a worker offers, as matching sees it: its labels, the keys it keeps for those who ask for them, and its id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LabelSet {
    /// The labels offered.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
    /// Keys that a selector must mention, else this worker is no match.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub exclusive: BTreeSet<String>,
    /// The worker, since a selector may name one.
    pub worker_id: WorkerId,
}

impl LabelSet {
    /// The canonical form: equal label sets have equal text.
    #[must_use]
    pub fn canonical(&self) -> String {
        // Strings, maps and sets of strings are always JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The labels as terms, for the index that finds candidates.
    #[must_use]
    pub fn terms(&self) -> Vec<String> {
        self.labels.iter().map(|(key, value)| term(key, value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_follow_the_contract() {
        for good in ["a", "topology.kubernetes.io/zone", "A-1_b"] {
            assert!(check_key(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a=b", "a,b", "ä", &"k".repeat(64)] {
            assert!(check_key(bad).is_err(), "{bad}");
        }
        for good in ["", "b", "a b", "größe", "a=b", &"v".repeat(128)] {
            assert!(check_value(good).is_ok(), "{good}");
        }
        for bad in ["b\n", " b", "b ", "a,b", "a\u{0}", &"v".repeat(129)] {
            assert!(check_value(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bounds_are_met_by_the_same_labels_and_any_more() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let bounds = labels(&[("gpu", ""), ("zone", "b")]);
        assert_eq!(unmet(&bounds, &labels(&[("zone", "b"), ("gpu", ""), ("x", "y")])), None);
        assert_eq!(unmet(&labels(&[]), &labels(&[])), None);
        for (offered, key) in [
            (&[("zone", "b")][..], "gpu"),
            (&[("gpu", "")], "zone"),
            (&[("gpu", ""), ("zone", "a")], "zone"),
            (&[("gpu", ""), ("Zone", "b")], "zone"),
        ] {
            assert_eq!(unmet(&bounds, &labels(offered)).unwrap().0, key, "{offered:?}");
        }
    }

    #[test]
    fn every_bad_entry_is_named() {
        let labels =
            Labels::from([("a b".into(), "x".into()), ("zone".into(), "b\n".into()), ("ok".into(), "1".into())]);
        let invalid = check(&labels, 2).expect_err("two entries and the count are wrong");
        assert_eq!(invalid.iter().map(|i| i.key.as_deref()).collect::<Vec<_>>(), [None, Some("a b"), Some("zone")]);
    }
}
