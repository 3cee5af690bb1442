//! Selectors: what a run requires of a worker.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::labels::{self, LabelSet, Labels};
use crate::ids::WorkerId;

mod expression;

pub use expression::{Expression, MAX_VALUES, Operator};

/// Most terms a selector may have: labels, expressions and the target counted.
pub const MAX_TERMS: usize = 16;

/// What a run requires: labels that must be equal, expressions that must hold, and possibly one certain worker.
///
/// [`Selector::fits`] is the one place where any of them is evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Selector {
    /// Labels a worker must offer with exactly these values; others it may have besides.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub equal: Labels,
    /// What else must hold of its labels; sorted, none twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expressions: Vec<Expression>,
    /// The only worker that may take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<WorkerId>,
}

impl Selector {
    /// The selector of these requirements, in the one order they have.
    #[must_use]
    pub fn new(equal: Labels, mut expressions: Vec<Expression>, target: Option<WorkerId>) -> Self {
        expressions.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        expressions.dedup();
        Self { equal, expressions, target }
    }

    /// The canonical form: equal selectors have equal text. It is stored, and what joins must leave no trace while it is
    /// absent.
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

    /// How many requirements it has; at most [`MAX_TERMS`] are accepted.
    #[must_use]
    pub fn size(&self) -> usize {
        self.equal.len() + self.expressions.len() + usize::from(self.target.is_some())
    }

    /// Whether a worker with this label set may take what asks for this: all terms hold, the target is this worker,
    /// and every key that the worker keeps exclusive is mentioned.
    #[must_use]
    pub fn fits(&self, offer: &LabelSet) -> bool {
        self.equal.iter().all(|(key, value)| offer.labels.get(key) == Some(value))
            && self.expressions.iter().all(|expression| expression.holds(&offer.labels))
            && self.target.as_ref().is_none_or(|target| *target == offer.worker_id)
            && offer.exclusive.iter().all(|key| self.mentions(key))
    }

    /// Whether it wants a worker with this label. Who says what a label must not be would be content without it, and is
    /// not to open a pool that is kept for those who need it.
    fn mentions(&self, key: &str) -> bool {
        self.equal.contains_key(key) || self.expressions.iter().any(|expression| expression.wants(key))
    }

    /// Whether it asks for nothing in particular.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.size() == 0
    }
}

/// Writes `{zone: b, gpu exists}`, `worker w-7` or `{zone: b} and worker w-7`; labels first, each part sorted.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.equal.iter().map(|(key, value)| format!("{key}: {value}"));
        let terms: Vec<String> = labels.chain(self.expressions.iter().map(ToString::to_string)).collect();
        match (&self.target, terms.is_empty()) {
            (None, _) => write!(f, "{{{}}}", terms.join(", ")),
            (Some(target), true) => write!(f, "worker {target}"),
            (Some(target), false) => write!(f, "{{{}}} and worker {target}", terms.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::{btree_map, btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    fn selector(pairs: &[(&str, &str)]) -> Selector {
        Selector::new(pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(), Vec::new(), None)
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
        let mut all = selector(&[("zone", "b")]);
        all.expressions = vec![expression("gpu", Operator::Exists, &[])];
        assert_eq!(all.to_string(), "{zone: b, gpu exists}");
        all.target = target.target;
        all.expressions.push(expression("cores", Operator::Gte, &["8"]));
        let all = Selector::new(all.equal, all.expressions, all.target);
        assert_eq!(all.to_string(), "{zone: b, cores >= 8, gpu exists} and worker w-7");
    }

    fn expression(key: &str, operator: Operator, values: &[&str]) -> Expression {
        Expression { key: key.into(), operator, values: values.iter().map(|value| (*value).to_owned()).collect() }
    }

    /// What is stored of selectors without expressions is found again by what asks for the same.
    #[test]
    fn the_canonical_form_of_what_has_no_expressions_stays_as_it_was() {
        let mut plain = selector(&[("zone", "b"), ("gpu", "a100")]);
        assert_eq!(plain.canonical(), r#"{"equal":{"gpu":"a100","zone":"b"}}"#);
        plain.target = Some(WorkerId::parse("w-7").unwrap());
        assert_eq!(plain.canonical(), r#"{"equal":{"gpu":"a100","zone":"b"},"target":"w-7"}"#);
        assert_eq!(Selector::default().canonical(), "{}");
        let with = Selector::new(Labels::new(), vec![expression("zone", Operator::In, &["b", "a", "b"])], None);
        assert_eq!(with.canonical(), r#"{"expressions":[{"key":"zone","operator":"in","values":["a","b"]}]}"#);
    }

    /// What asks the same in another order, or twice, is the same selector.
    #[test]
    fn expressions_have_one_order() {
        let (a, b) = (expression("a", Operator::Exists, &[]), expression("b", Operator::Gt, &["1"]));
        let one = Selector::new(Labels::new(), vec![a.clone(), b.clone()], None);
        assert_eq!(one, Selector::new(Labels::new(), vec![b.clone(), a.clone(), b], None));
        assert_eq!(one.size(), 2);
    }

    /// One that is content without the label does not mention it.
    #[test]
    fn an_expression_mentions_its_key() {
        let mut pool = offer(&[("gpu", "a100")]);
        pool.exclusive.insert("gpu".into());
        let with =
            |operator, values: &[&str]| Selector::new(Labels::new(), vec![expression("gpu", operator, values)], None);
        assert!(with(Operator::Exists, &[]).fits(&pool) && with(Operator::In, &["a100"]).fits(&pool));
        assert!(!with(Operator::NotIn, &["h100"]).fits(&pool));
        pool.labels.clear();
        assert!(!with(Operator::DoesNotExist, &[]).fits(&pool));
        pool.labels.insert("gpu".into(), "a100".into());
        assert!(!selector(&[]).fits(&pool));
    }

    proptest! {
        /// The matcher against one written the other way round, and the index's pre-filter against the matcher.
        #[test]
        fn agrees_with_a_brute_force_matcher(
            wanted in btree_map("[ab]", "[01]{0,1}", 0..3),
            labels in btree_map("[ab]", "[01]{0,1}", 0..3),
            exclusive in btree_set("[ab]", 0..2),
            asked in vec(("[ab]", 0..Operator::ALL.len(), btree_set("[01]", 1..3)), 0..3),
            target in proptest::option::of("w-[12]"),
        ) {
            let asked: Vec<Expression> = asked.into_iter().map(|(key, operator, values)| {
                let operator = Operator::ALL[operator];
                let most = match operator {
                    Operator::In | Operator::NotIn => 2,
                    Operator::Exists | Operator::DoesNotExist => 0,
                    _ => 1,
                };
                Expression { key, operator, values: values.into_iter().take(most).collect() }
            }).collect();
            let target = target.map(|t| WorkerId::parse(t).unwrap());
            let selector = Selector::new(wanted.clone(), asked.clone(), target);
            let offer = LabelSet { labels: labels.clone(), exclusive: exclusive.clone(), worker_id: WorkerId::parse("w-1").unwrap() };
            let mut brute = true;
            for key in ["a", "b"] {
                match (wanted.get(key), labels.get(key)) {
                    (Some(value), Some(offered)) if value == offered => {}
                    (Some(_), _) => brute = false,
                    (None, _) if exclusive.contains(key) => {
                        let negative = ["not_in", "does_not_exist"];
                        brute &= asked.iter().any(|it| it.key == key && !negative.contains(&it.operator.as_str()));
                    }
                    (None, _) => {}
                }
            }
            // Labels and values are "", "0" and "1" here: as numbers, and as none.
            for Expression { key, operator, values } in &asked {
                let label = labels.get(key).map(String::as_str);
                let numbers = label.and_then(|label| label.parse::<i64>().ok())
                    .zip(values.first().and_then(|value| value.parse::<i64>().ok()));
                let listed = label.is_some_and(|label| values.iter().any(|value| value == label));
                brute &= match operator.as_str() {
                    "in" => listed,
                    "not_in" => !listed,
                    "exists" => label.is_some(),
                    "does_not_exist" => label.is_none(),
                    "gt" => numbers.is_some_and(|(label, value)| label > value),
                    "gte" => numbers.is_some_and(|(label, value)| label >= value),
                    "lt" => numbers.is_some_and(|(label, value)| label < value),
                    _ => numbers.is_some_and(|(label, value)| label <= value),
                };
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
            let (a, b) = (Selector::new(a, Vec::new(), None), Selector::new(b, Vec::new(), None));
            prop_assert_eq!(a == b, a.canonical() == b.canonical());
            prop_assert_eq!(serde_json::from_str::<Selector>(&a.canonical()).unwrap(), a);
        }
    }
}
