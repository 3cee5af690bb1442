//! Queries: decoded parameter by parameter, each known and given once.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;

use super::{Fields, FromFields, Reading, Settings};
use crate::http::problem::{FieldError, Problem};

/// The parameters of a query.
#[derive(Debug, Clone)]
pub struct Query<T>(pub T);

impl<S, T> FromRequestParts<S> for Query<T>
where
    T: FromFields,
    S: Send + Sync,
    Settings: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let mut fields = fields(parts.uri.query().unwrap_or_default());
        let value = T::from_fields(&mut fields, &Settings::from_ref(state));
        fields.end(value, Reading::Strict).map(Query).map_err(|faults| Problem::invalid(faults.0))
    }
}

/// The query of an operation that has no parameters: whatever is given is refused.
#[derive(Debug, Clone, Copy)]
pub struct NoQuery;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let fields = fields(parts.uri.query().unwrap_or_default());
        fields.end(Some(Self), Reading::Strict).map_err(|faults| Problem::invalid(faults.0))
    }
}

fn fields(query: &str) -> Fields<'static> {
    let mut entries = BTreeMap::new();
    let mut errors = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decoded(name).unwrap_or_else(|| name.to_owned());
        match decoded(value) {
            None => errors.push(FieldError::new(format!("?{name}"), "must be percent-encoded UTF-8")),
            Some(_) if entries.contains_key(&name) => {
                errors.push(FieldError::new(format!("?{name}"), "must be given once"));
            }
            Some(value) => _ = entries.insert(name, Cow::Owned(value)),
        }
    }
    Fields::of_parameters(entries, errors)
}

fn decoded(text: &str) -> Option<String> {
    let blanks = text.replace('+', " ");
    percent_decode_str(&blanks).decode_utf8().ok().map(Cow::into_owned)
}

/// Readers of single parameters.
pub mod read {
    use std::time::Duration;

    use chrono::{DateTime, TimeDelta, Utc};

    use crate::domain::Timestamp;
    use crate::domain::labels::{Labels, MAX_LABELS};
    use crate::http::extract::{Faults, read};
    use crate::ids::InvalidName;

    /// A name under the rules of [`crate::ids`].
    pub fn name<T: TryFrom<String, Error = InvalidName>>(text: &str) -> Result<T, Faults> {
        T::try_from(text.to_owned()).map_err(|invalid| invalid.to_string().into())
    }

    /// One of a few words.
    pub fn word<T: Copy>(words: &'static [T], as_str: fn(T) -> &'static str) -> impl FnOnce(&str) -> Result<T, Faults> {
        move |text| {
            words.iter().copied().find(|word| as_str(*word) == text).ok_or_else(|| {
                let words: Vec<&str> = words.iter().copied().map(as_str).collect();
                format!("must be one of {}", words.join(", ")).into()
            })
        }
    }

    /// An RFC 3339 time, to the microsecond: one between two is as good as the later, of what is from it on as of what is
    /// before it.
    pub fn time(text: &str) -> Result<Timestamp, Faults> {
        let refused = || Faults::from("must be an RFC 3339 time such as 2026-01-31T12:00:00Z");
        let time = DateTime::parse_from_rfc3339(text).map_err(|_| refused())?.with_timezone(&Utc);
        let whole = TimeDelta::nanoseconds(i64::from(time.timestamp_subsec_nanos() % 1_000));
        if whole.is_zero() {
            Ok(time)
        } else {
            time.checked_add_signed(TimeDelta::microseconds(1) - whole).ok_or_else(refused)
        }
    }

    /// A label map: `key=value,key=value`.
    pub fn labels(text: &str) -> Result<Labels, Faults> {
        let mut labels = Labels::new();
        for pair in text.split(',').filter(|_| !text.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or("must be key=value pairs with commas between them")?;
            if labels.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(format!("has the key {key:?} twice").into());
            }
        }
        read::check_labels(&labels, MAX_LABELS).map_err(|faults| {
            let details: Vec<String> = faults.0.into_iter().map(|error| error.detail).collect();
            Faults::from(details.join("; "))
        })?;
        Ok(labels)
    }

    /// An integer within these bounds.
    pub fn integer(min: i64, max: i64) -> impl FnOnce(&str) -> Result<i64, Faults> {
        read::integer(min, max)
    }

    /// Seconds, lowered to `max` if they are more.
    pub fn seconds_lowered(max: Duration) -> impl FnOnce(&str) -> Result<Duration, Faults> {
        read::seconds_lowered(max)
    }
}
