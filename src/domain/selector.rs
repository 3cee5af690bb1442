//! Selectors: what a run requires of a worker.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::labels::{self, LabelSet, Labels};
use crate::ids::WorkerId;

/// Most terms a selector may have.
pub const MAX_TERMS: usize = 16;

/// What a run requires: labels that must be equal, and possibly one certain worker.
///
/// Expressions will join as a third part; [`Selector::fits`] is the one place where any of them is evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Selector {
    /// Labels a worker must offer with exactly these values; others it may have besides.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub equal: Labels,
    /// The only worker that may take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<WorkerId>,
}

impl Selector {
    /// The canonical form: equal selectors have equal text.
    #[must_use]
    pub fn canonical(&self) -> String {
        // Strings, maps and sets of strings are always JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The equality terms, by which an index finds candidates for [`Self::fits`].
    #[must_use]
    pub fn terms(&self) -> Vec<String> {
        self.equal.iter().map(|(key, value)| labels::term(key, value)).collect()
    }

    /// Whether a worker with this label set may take what asks for this: all terms hold, the target is this worker,
    /// and every key that the worker keeps exclusive is mentioned.
    #[must_use]
    pub fn fits(&self, offer: &LabelSet) -> bool {
        self.equal.iter().all(|(key, value)| offer.labels.get(key) == Some(value))
            && self.target.as_ref().is_none_or(|target| *target == offer.worker_id)
            && offer.exclusive.iter().all(|key| self.equal.contains_key(key))
    }

    /// Whether it asks for nothing in particular.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.equal.is_empty() && self.target.is_none()
    }
}

/// Writes `{zone: b}`, `worker w-7` or `{zone: b} and worker w-7`; keys sorted.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.equal.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        match (&self.target, pairs.is_empty()) {
            (None, _) => write!(f, "{{{}}}", pairs.join(", ")),
            (Some(target), true) => write!(f, "worker {target}"),
            (Some(target), false) => write!(f, "{{{}}} and worker {target}", pairs.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::{btree_map, btree_set};
    use proptest::prelude::*;

    use super::*;

    fn selector(pairs: &[(&str, &str)]) -> Selector {
        Selector { equal: pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(), target: None }
    }

    fn offer(pairs: &[(&str, &str)]) -> LabelSet {
        LabelSet {
            labels: pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            exclusive: BTreeSet::new(),
            worker_id: WorkerId::parse("w-1").unwrap(),
        }
    }

    /// B75: all labels must match, not any. B77: an unlabelled worker takes only what asks for nothing.
    #[test]
    fn every_term_must_hold() {
        assert!(!selector(&[("zone", "b"), ("gpu", "a100")]).fits(&offer(&[("zone", "b")])));
        assert!(selector(&[("zone", "b")]).fits(&offer(&[("zone", "b"), ("gpu", "a100")])));
        assert!(!selector(&[("zone", "b")]).fits(&offer(&[])));
        assert!(selector(&[]).fits(&offer(&[])));
        assert!(selector(&[]).fits(&offer(&[("zone", "b")])));
    }

    /// B69: strings match by exact equality only; an empty value is a value.
    #[test]
    fn values_are_compared_exactly() {
        assert!(!selector(&[("cores", "08")]).fits(&offer(&[("cores", "8")])));
        assert!(!selector(&[("cores", "8.0")]).fits(&offer(&[("cores", "8")])));
        assert!(!selector(&[("cores", "")]).fits(&offer(&[])));
        assert!(selector(&[("cores", "")]).fits(&offer(&[("cores", "")])));
        assert!(!selector(&[("Zone", "b")]).fits(&offer(&[("zone", "b")])));
    }

    #[test]
    fn a_target_is_one_worker_and_an_exclusive_key_must_be_mentioned() {
        let mut target = selector(&[]);
        target.target = Some(WorkerId::parse("w-2").unwrap());
        assert!(!target.fits(&offer(&[])));
        target.target = Some(WorkerId::parse("w-1").unwrap());
        assert!(target.fits(&offer(&[])));

        let mut pool = offer(&[("gpu", "a100"), ("zone", "b")]);
        pool.exclusive.insert("gpu".into());
        assert!(!selector(&[("zone", "b")]).fits(&pool));
        assert!(selector(&[("gpu", "a100")]).fits(&pool));
    }

    #[test]
    fn reads_as_people_write_it() {
        assert_eq!(selector(&[("zone", "b"), ("gpu", "a100")]).to_string(), "{gpu: a100, zone: b}");
        let mut target = selector(&[]);
        target.target = Some(WorkerId::parse("w-7").unwrap());
        assert_eq!(target.to_string(), "worker w-7");
    }

    proptest! {
        /// The matcher against one written the other way round, and the index's pre-filter against the matcher.
        #[test]
        fn agrees_with_a_brute_force_matcher(
            wanted in btree_map("[ab]", "[01]{0,1}", 0..3),
            labels in btree_map("[ab]", "[01]{0,1}", 0..3),
            exclusive in btree_set("[ab]", 0..2),
            target in proptest::option::of("w-[12]"),
        ) {
            let selector = Selector { equal: wanted.clone(), target: target.map(|t| WorkerId::parse(t).unwrap()) };
            let offer = LabelSet { labels: labels.clone(), exclusive: exclusive.clone(), worker_id: WorkerId::parse("w-1").unwrap() };
            let mut brute = true;
            for key in ["a", "b"] {
                match (wanted.get(key), labels.get(key)) {
                    (Some(value), Some(offered)) if value == offered => {}
                    (Some(_), _) => brute = false,
                    (None, _) if exclusive.contains(key) => brute = false,
                    (None, _) => {}
                }
            }
            brute &= selector.target.as_ref().is_none_or(|t| t.as_str() == "w-1");
            prop_assert_eq!(selector.fits(&offer), brute);
            if brute {
                let terms = offer.terms();
                prop_assert!(selector.terms().iter().all(|t| terms.contains(t)));
            }
        }

        /// One canonical form per selector, and nothing lost in it.
        #[test]
        fn the_canonical_form_is_one_to_one(a in btree_map("[a-c/._-]{1,3}", ".{0,5}", 0..4), b in btree_map("[a-c/._-]{1,3}", ".{0,5}", 0..4)) {
            let (a, b) = (Selector { equal: a, target: None }, Selector { equal: b, target: None });
            prop_assert_eq!(a == b, a.canonical() == b.canonical());
            prop_assert_eq!(serde_json::from_str::<Selector>(&a.canonical()).unwrap(), a);
        }
    }
}
