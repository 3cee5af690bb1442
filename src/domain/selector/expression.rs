//! Expressions: what a selector asks of one label beyond equality.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::domain::labels::{self, Labels};
use crate::domain::run::words;

/// The most values of one expression.
pub const MAX_VALUES: usize = 64;

words!(
    /// How a label is compared.
    Operator {
        /// It is there, and is one of the values.
        In = "in",
        /// It is none of the values, or is not there.
        NotIn = "not_in",
        /// It is there.
        Exists = "exists",
        /// It is not there.
        DoesNotExist = "does_not_exist",
        /// It is a number greater than the value.
        Gt = "gt",
        /// It is a number not less than the value.
        Gte = "gte",
        /// It is a number less than the value.
        Lt = "lt",
        /// It is a number not greater than the value.
        Lte = "lte",
    }
);

/// One requirement of one label. What asks the same is the same: values are a set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Expression {
    /// The label's key.
    #[schema(min_length = 1, max_length = 63, example = "cores")]
    pub key: String,
    /// How it is compared. Numbers are an optional sign, digits and an optional fraction, compared as such: 8 is 8.0, and
    /// less than 10. A worker without the label matches `not_in` and `does_not_exist` only, as does one whose label is no
    /// number where one is asked for.
    pub operator: Operator,
    /// What it is compared with: one to 64 for `in` and `not_in`, one number for `gt`, `gte`, `lt` and `lte`, none for
    /// `exists` and `does_not_exist`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(value_type = Vec<String>, required = false, max_items = 64, example = json!(["8"]))]
    pub values: BTreeSet<String>,
}

impl Expression {
    /// Checks its key and its values.
    ///
    /// # Errors
    /// The field that breaks a rule, and which rule.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        labels::check_key(&self.key).map_err(|detail| ("key", detail))?;
        for value in &self.values {
            labels::check_value(value).map_err(|detail| ("values", detail))?;
        }
        let (given, operator) = (self.values.len(), self.operator);
        let rule = match operator {
            Operator::In | Operator::NotIn if (1..=MAX_VALUES).contains(&given) => return Ok(()),
            Operator::In | Operator::NotIn => {
                format!("must have 1 to {MAX_VALUES} values for `{operator}`, has {given}")
            }
            Operator::Exists | Operator::DoesNotExist if given == 0 => return Ok(()),
            Operator::Exists | Operator::DoesNotExist => format!("must be absent or empty for `{operator}`"),
            Operator::Gt | Operator::Gte | Operator::Lt | Operator::Lte => {
                if given == 1 && self.values.first().is_some_and(|value| Number::parse(value).is_some()) {
                    return Ok(());
                }
                format!("must be one number for `{operator}`, such as \"8\" or \"-0.5\"")
            }
        };
        Err(("values", rule))
    }

    /// Whether a worker that offers these labels meets it.
    #[must_use]
    pub fn holds(&self, offered: &Labels) -> bool {
        let label = offered.get(&self.key);
        match self.operator {
            Operator::In => label.is_some_and(|label| self.values.contains(label)),
            Operator::NotIn => label.is_none_or(|label| !self.values.contains(label)),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::Gt => self.compares(label, Ordering::is_gt),
            Operator::Gte => self.compares(label, Ordering::is_ge),
            Operator::Lt => self.compares(label, Ordering::is_lt),
            Operator::Lte => self.compares(label, Ordering::is_le),
        }
    }

    /// Whether it holds only of a worker that has this label.
    pub(super) fn wants(&self, key: &str) -> bool {
        self.key == key && !matches!(self.operator, Operator::NotIn | Operator::DoesNotExist)
    }

    fn compares(&self, label: Option<&String>, holds: impl Fn(Ordering) -> bool) -> bool {
        let (Some(label), Some(value)) = (label.and_then(|label| Number::parse(label)), self.number()) else {
            return false;
        };
        holds(label.cmp(&value))
    }

    fn number(&self) -> Option<Number<'_>> {
        self.values.first().and_then(|value| Number::parse(value))
    }

    /// What orders the expressions of one selector.
    pub(super) fn order(&self) -> (&str, &'static str, &BTreeSet<String>) {
        (&self.key, self.operator.as_str(), &self.values)
    }
}

/// Writes `gpu exists`, `zone in (a, b)` or `cores >= 8`.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = || self.values.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let key = &self.key;
        match self.operator {
            Operator::In => write!(f, "{key} in ({})", values()),
            Operator::NotIn => write!(f, "{key} not in ({})", values()),
            Operator::Exists => write!(f, "{key} exists"),
            Operator::DoesNotExist => write!(f, "{key} does not exist"),
            Operator::Gt => write!(f, "{key} > {}", values()),
            Operator::Gte => write!(f, "{key} >= {}", values()),
            Operator::Lt => write!(f, "{key} < {}", values()),
            Operator::Lte => write!(f, "{key} <= {}", values()),
        }
    }
}

/// A decimal number of any length, as text: no float is exact enough for what people call equal.
#[derive(Debug, PartialEq, Eq)]
struct Number<'a> {
    negative: bool,
    /// Without zeros at its beginning.
    whole: &'a str,
    /// Without zeros at its end.
    fraction: &'a str,
}

impl<'a> Number<'a> {
    /// An optional sign, digits, and an optional point with digits; nothing else, and no exponent.
    fn parse(text: &'a str) -> Option<Self> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (whole, fraction) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
        let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !are_digits(whole) || !fraction.is_none_or(are_digits) {
            return None;
        }
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.unwrap_or("").trim_end_matches('0'));
        let is_zero = whole.is_empty() && fraction.is_empty();
        Some(Self { negative: negative && !is_zero, whole, fraction })
    }

    fn magnitude(&self) -> (usize, &str, &str) {
        // Of two whole parts the longer is the larger; a fraction is compared digit by digit from its beginning.
        (self.whole.len(), self.whole, self.fraction)
    }
}

impl Ord for Number<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, false) => self.magnitude().cmp(&other.magnitude()),
            (true, true) => other.magnitude().cmp(&self.magnitude()),
            (negative, _) => {
                if negative {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
        }
    }
}

impl PartialOrd for Number<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expression(key: &str, operator: Operator, values: &[&str]) -> Expression {
        Expression { key: key.into(), operator, values: values.iter().map(|value| (*value).to_owned()).collect() }
    }

    fn holds(operator: Operator, values: &[&str], label: Option<&str>) -> bool {
        let offered = label.map(|label| ("k".to_owned(), label.to_owned())).into_iter().collect();
        expression("k", operator, values).holds(&offered)
    }

    /// B69: strings by exact equality, numbers as numbers, and never one for the other.
    #[test]
    fn numbers_are_compared_as_numbers_and_strings_exactly() {
        for (greater, less) in [("10", "8"), ("8.5", "8"), ("0.1", "0.09"), ("-1", "-2"), ("1", "-1"), ("0.5", "-0.5")]
        {
            assert!(holds(Operator::Gt, &[less], Some(greater)), "{greater} > {less}");
            assert!(holds(Operator::Lt, &[greater], Some(less)), "{less} < {greater}");
            assert!(!holds(Operator::Lte, &[less], Some(greater)) && !holds(Operator::Gte, &[greater], Some(less)));
        }
        for (one, other) in [("8", "8.0"), ("08", "8"), ("+8", "8"), ("-0", "0"), ("0.0", "-0.00"), ("1.50", "01.5")] {
            assert!(
                holds(Operator::Gte, &[one], Some(other)) && holds(Operator::Lte, &[one], Some(other)),
                "{one} {other}"
            );
            assert!(!holds(Operator::Gt, &[one], Some(other)) && !holds(Operator::Lt, &[one], Some(other)));
            assert!(!holds(Operator::In, &[one], Some(other)), "`in` takes no number for another");
        }
        // Beyond what any float or integer of a machine holds.
        let (large, larger) = ("100000000000000000000000000000000000000", "100000000000000000000000000000000000000.1");
        assert!(holds(Operator::Gt, &[large], Some(larger)));
        for no_number in ["", "a100", "8 GiB", "1e3", "1.", ".5", "--1", "1.2.3", "0x10", "٣", "NaN"] {
            for operator in [Operator::Gt, Operator::Gte, Operator::Lt, Operator::Lte] {
                assert!(!holds(operator, &["0"], Some(no_number)), "{no_number}");
            }
        }
    }

    #[test]
    fn a_missing_label_matches_only_the_negative_ones() {
        for operator in Operator::ALL {
            let values: &[&str] = match operator {
                Operator::Exists | Operator::DoesNotExist => &[],
                _ => &["1"],
            };
            let negative = matches!(operator, Operator::NotIn | Operator::DoesNotExist);
            assert_eq!(holds(*operator, values, None), negative, "{operator}");
        }
        assert!(!holds(Operator::DoesNotExist, &[], Some("")), "an empty value is a value");
        assert!(holds(Operator::NotIn, &["a", "b"], Some("c")) && !holds(Operator::NotIn, &["a", "b"], Some("b")));
    }

    #[test]
    fn each_operator_has_its_number_of_values() {
        let many: Vec<String> = (0..=MAX_VALUES).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (operator, good, bad) in [
            (Operator::In, vec![&["a"][..], &many[..MAX_VALUES]], vec![&[][..], &many]),
            (Operator::NotIn, vec![&["a", ""][..]], vec![&[][..], &["a,b"]]),
            (Operator::Exists, vec![&[][..]], vec![&["a"][..]]),
            (Operator::DoesNotExist, vec![&[][..]], vec![&[""][..]]),
            (Operator::Gt, vec![&["8"][..], &["-0.5"]], vec![&[][..], &["8", "9"], &["eight"], &["1e3"]]),
        ] {
            for values in good {
                assert_eq!(expression("k", operator, values).check(), Ok(()), "{operator} {values:?}");
            }
            for values in bad {
                let refused = expression("k", operator, values).check().expect_err("is refused");
                assert_eq!(refused.0, "values", "{operator} {values:?}");
            }
        }
        assert_eq!(expression("a b", Operator::Exists, &[]).check().expect_err("is refused").0, "key");
    }

    proptest! {
        /// Compared with what integers say, of numbers that these hold: thousandths.
        #[test]
        fn decimals_are_ordered_as_their_thousandths(a in -5_000_i64..5_000, b in -5_000_i64..5_000, zeros in 0..3_usize) {
            let text = |thousandths: i64| {
                let sign = if thousandths < 0 { "-" } else { "" };
                let (whole, rest) = (thousandths.abs() / 1_000, thousandths.abs() % 1_000);
                format!("{sign}{}{whole}.{rest:03}{}", "0".repeat(zeros), "0".repeat(zeros))
            };
            let (one, other) = (text(a), b.to_string() + ".000");
            let (one, other) = (Number::parse(&one).unwrap(), Number::parse(&other).unwrap());
            prop_assert_eq!(one.cmp(&other), a.cmp(&(b * 1_000)));
        }
    }
}
