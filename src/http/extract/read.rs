//! Readers of single JSON values: each takes a value's text and says which rule it breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::value::RawValue;
use uuid::Uuid;

use super::fields::{Faults, Fields, Reading, pointer};
use crate::domain::labels::{self, Labels};
use crate::duration;
use crate::http::problem::FieldError;
use crate::ids::{AttemptId, InvalidName, RunKey, Token};

/// A string.
pub fn text(json: &str) -> Result<String, Faults> {
    serde_json::from_str(json).map_err(|_| "must be a string".into())
}

/// A string of at most this many bytes.
pub fn text_up_to(max_bytes: usize) -> impl FnOnce(&str) -> Result<String, Faults> {
    move |json| match text(json)? {
        long if long.len() > max_bytes => {
            Err(format!("must have at most {max_bytes} bytes, has {}", long.len()).into())
        }
        text => Ok(text),
    }
}

/// A name under the rules of [`crate::ids`].
pub fn name<T: TryFrom<String, Error = InvalidName>>(json: &str) -> Result<T, Faults> {
    T::try_from(text(json)?).map_err(|invalid| invalid.to_string().into())
}

/// `true` or `false`.
pub fn boolean(json: &str) -> Result<bool, Faults> {
    json.parse().map_err(|_| "must be true or false".into())
}

/// An integer within these bounds. `5.0` is one, as JSON Schema has it.
pub fn integer<T: TryFrom<i64>>(min: i64, max: i64) -> impl FnOnce(&str) -> Result<T, Faults> {
    move |json| {
        let refused = || Faults::from(format!("must be an integer from {min} to {max}"));
        let whole = json.parse::<i64>().ok().or_else(|| whole(json)).filter(|number| (min..=max).contains(number));
        T::try_from(whole.ok_or_else(refused)?).map_err(|_| refused())
    }
}

/// The integer that a number with a point or an exponent is, within what a float holds exactly.
fn whole(json: &str) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number: f64 = serde_json::from_str(json).ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it has no fraction and lies within what a float holds exactly"
    )]
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
}

/// Whole or fractional seconds within these bounds, cut to microseconds. `-0` is 0.
pub fn seconds(min: Duration, max: Duration) -> impl FnOnce(&str) -> Result<Duration, Faults> {
    move |json| match non_negative(json)? {
        given if given < min.as_secs_f64() => Err(format!("must be at least {} seconds", min.as_secs_f64()).into()),
        given if given > max.as_secs_f64() => Err(above(max)),
        given => in_microseconds(given).ok_or_else(|| above(max)),
    }
}

/// Whole or fractional seconds, lowered to `max` if they are more.
pub fn seconds_lowered(max: Duration) -> impl FnOnce(&str) -> Result<Duration, Faults> {
    move |json| in_microseconds(non_negative(json)?.min(max.as_secs_f64())).ok_or_else(|| above(max))
}

fn above(max: Duration) -> Faults {
    format!("must be at most {} seconds ({})", max.as_secs_f64(), duration::text(max)).into()
}

fn non_negative(json: &str) -> Result<f64, Faults> {
    // What begins like a number is one: the JSON was checked. A float takes it whole, be it too large for any limit.
    let number = json.starts_with(|c: char| c == '-' || c.is_ascii_digit()).then(|| json.parse::<f64>().ok()).flatten();
    match number {
        None => Err("must be a number of seconds".into()),
        Some(negative) if negative < 0.0 => Err("must not be negative".into()),
        Some(number) => Ok(number.abs()),
    }
}

/// To the nearest nanosecond first: 4.35 has no float of its own and must not lose a microsecond for that.
fn in_microseconds(seconds: f64) -> Option<Duration> {
    let exact = Duration::try_from_secs_f64(seconds).ok()?;
    Some(Duration::new(exact.as_secs(), exact.subsec_micros() * 1_000))
}

/// A map of labels with at most `max` entries.
pub fn labels(max: usize) -> impl FnOnce(&str) -> Result<Labels, Faults> {
    move |json| {
        let entries: BTreeMap<String, &RawValue> =
            serde_json::from_str(json).map_err(|_| Faults::from("must be an object of strings"))?;
        let mut labels = Labels::new();
        let mut errors = Vec::new();
        for (key, value) in entries {
            match text(value.get()) {
                Ok(value) => _ = labels.insert(key, value),
                Err(_) => errors.push(FieldError::new(pointer(&key), "must be a string")),
            }
        }
        errors.extend(check_labels(&labels, max).err().into_iter().flat_map(|faults| faults.0));
        if errors.is_empty() { Ok(labels) } else { Err(Faults(errors)) }
    }
}

/// Checks labels wherever they came from.
pub fn check_labels(labels: &Labels, max: usize) -> Result<(), Faults> {
    labels::check(labels, max).map_err(|invalid| {
        let error = |label: labels::InvalidLabel| {
            FieldError::new(label.key.as_deref().map(pointer).unwrap_or_default(), label.detail)
        };
        Faults(invalid.into_iter().map(error).collect())
    })
}

/// A list of label keys, at most `max`. One that stands twice counts once.
pub fn label_keys(max: usize) -> impl FnOnce(&str) -> Result<BTreeSet<String>, Faults> {
    move |json| {
        let keys = list(max, |json| {
            let key = text(json)?;
            labels::check_key(&key).map_err(Faults::from)?;
            Ok(key)
        });
        Ok(keys(json)?.into_iter().collect())
    }
}

/// A list of at most `max` items.
pub fn list<T>(max: usize, read: impl Fn(&str) -> Result<T, Faults>) -> impl FnOnce(&str) -> Result<Vec<T>, Faults> {
    move |json| {
        let items: Vec<&RawValue> = serde_json::from_str(json).map_err(|_| Faults::from("must be a list"))?;
        if items.len() > max {
            return Err(format!("must have at most {max} items, has {}", items.len()).into());
        }
        let mut errors = Vec::new();
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            match read(item.get()) {
                Ok(value) => values.push(value),
                Err(faults) => errors.extend(
                    faults
                        .0
                        .into_iter()
                        .map(|error| FieldError::new(format!("/{index}{}", error.pointer), error.detail)),
                ),
            }
        }
        if errors.is_empty() { Ok(values) } else { Err(Faults(errors)) }
    }
}

/// A list of at most `max` items, each read by itself: one that is wrong is no fault of the list.
pub fn each<T>(
    max: usize,
    read: impl Fn(&str) -> Result<T, Faults>,
) -> impl FnOnce(&str) -> Result<Vec<Result<T, Faults>>, Faults> {
    list(max, move |json| Ok(read(json)))
}

/// An object of its own, as strict or tolerant as the request it stands in.
pub fn object<T>(reading: Reading, read: impl Fn(&mut Fields<'_>) -> Option<T>) -> impl Fn(&str) -> Result<T, Faults> {
    move |json| {
        let mut fields = Fields::of_object(json)?;
        let value = read(&mut fields);
        fields.end(value, reading)
    }
}

/// A run named by its DAG's name and its id.
pub fn run_key(json: &str) -> Result<RunKey, Faults> {
    object(Reading::Strict, |fields| {
        let dag_name = fields.required("dag_name", name);
        let run_id = fields.required("run_id", name);
        Some(RunKey { dag_name: dag_name?, run_id: run_id? })
    })(json)
}

/// An attempt's id.
pub fn attempt_id(json: &str) -> Result<AttemptId, Faults> {
    Uuid::parse_str(&text(json)?).map(AttemptId).map_err(|_| "must be a UUID".into())
}

/// A token, whatever it is: a wrong one is answered like an old one.
pub fn token(json: &str) -> Result<Token, Faults> {
    text(json).map(Token::received)
}

/// Any JSON, kept as it was sent.
#[expect(clippy::unnecessary_wraps, reason = "it stands where readers stand that can refuse")]
pub fn any(json: &str) -> Result<String, Faults> {
    Ok(json.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail<T: std::fmt::Debug>(read: Result<T, Faults>) -> String {
        read.expect_err("is refused").0.remove(0).detail
    }

    const WEEK: Duration = Duration::from_hours(7 * 24);

    /// B53 and B55: huge and negative durations name the limit, whatever they would overflow into.
    #[test]
    fn seconds_are_bounded_and_cut_to_microseconds() {
        let read = |json| seconds(Duration::ZERO, WEEK)(json);
        for (json, expected) in [
            ("0", 0),
            ("-0", 0),
            ("-0.0", 0),
            ("0.0000019", 1),
            ("4.35", 4_350_000),
            ("1.5e1", 15_000_000),
            ("604800", 604_800_000_000),
        ] {
            assert_eq!(read(json), Ok(Duration::from_micros(expected)), "{json}");
        }
        for huge in ["604800.1", "9223372036854775807", "1e308", "1e999"] {
            assert_eq!(
                detail(read(huge)),
                "must be at most 604800 seconds (168h)".replace("168h", &duration::text(WEEK)),
                "{huge}"
            );
        }
        for negative in ["-1", "-5", "-0.001", "-1e999"] {
            assert_eq!(detail(read(negative)), "must not be negative", "{negative}");
        }
        for other in ["\"2m\"", "true", "[]", "{}", "\"NaN\""] {
            assert_eq!(detail(read(other)), "must be a number of seconds", "{other}");
        }
        assert_eq!(detail(seconds(Duration::from_secs(5), WEEK)("4.9")), "must be at least 5 seconds");
        for json in ["50", "51", "1e308", "1e999"] {
            assert_eq!(seconds_lowered(Duration::from_secs(50))(json), Ok(Duration::from_secs(50)), "{json}");
        }
    }

    #[test]
    fn integers_may_be_written_with_a_point() {
        let read = |json| integer::<i16>(-100, 100)(json);
        for (json, expected) in [("5", 5), ("5.0", 5), ("-1e2", -100), ("-0", 0)] {
            assert_eq!(read(json), Ok(expected), "{json}");
        }
        for bad in ["101", "-101", "5.5", "\"5\"", "1e999", "99999999999999999999", "true"] {
            assert_eq!(detail(read(bad)), "must be an integer from -100 to 100", "{bad}");
        }
    }

    /// B69: what is no string is refused and never guessed at; a null entry too, for a requirement must not vanish.
    #[test]
    fn labels_are_strings() {
        let faults = labels(2)(r#"{"cores": 8, "gpu": true, "zone": null, "a b": "x"}"#).expect_err("is refused");
        let at: Vec<&str> = faults.0.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(at, ["/cores", "/gpu", "/zone", "/a b"]);
        assert_eq!(labels(2)(r#"{"topology.kubernetes.io/zone": "b"}"#).map(|labels| labels.len()), Ok(1));
        assert_eq!(labels(2)(r#"{"a/~": "\n"}"#).expect_err("is refused").0[0].pointer, "/a~1~0");
    }

    #[test]
    fn faults_of_items_say_which() {
        let faults = label_keys(3)(r#"["gpu", 1, "a b"]"#).expect_err("is refused");
        let at: Vec<&str> = faults.0.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(at, ["/1", "/2"]);
        assert_eq!(detail(label_keys(1)(r#"["a", "b"]"#)), "must have at most 1 items, has 2");
    }

    #[test]
    fn a_run_is_named_in_full_and_by_nothing_else() {
        let faults = run_key(r#"{"dag_name": "", "id": 1}"#).expect_err("is refused");
        let at: Vec<&str> = faults.0.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(at, ["/dag_name", "/run_id", "/id"]);
    }
}
