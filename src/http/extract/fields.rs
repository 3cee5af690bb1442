//! Named parts of a request, taken one by one so that all that is wrong is told at once.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::Settings;
use crate::http::problem::FieldError;

/// How the parts of a request are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// From people and their programs: a field that is not known is a mistake, and told.
    Strict,
    /// From workers: a field that is not known is a newer worker's, and ignored.
    Tolerant,
    /// From workers that bring a result: text is mended, the last of two equal keys counts.
    Mending,
}

/// A request that is read from named parts.
pub trait FromFields: Sized {
    /// How its parts are taken.
    const READING: Reading;
    /// The largest body it may come in, in bytes.
    const MAX_BYTES: usize = 4 * 1024 * 1024;
    /// Whether it may have no body at all, which then reads as `{}`.
    const MAY_BE_EMPTY: bool = false;

    /// Takes every part. Faults stay with `fields`; none is answered only when there are some.
    fn from_fields(fields: &mut Fields<'_>, settings: &Settings) -> Option<Self>;
}

/// What is wrong with one part; pointers are relative to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<FieldError>);

impl<T: Into<String>> From<T> for Faults {
    fn from(detail: T) -> Self {
        Self(vec![FieldError::new("", detail)])
    }
}

/// The parts that are not taken yet, and the faults found so far.
#[derive(Debug)]
pub struct Fields<'a> {
    mark: char,
    entries: BTreeMap<String, Cow<'a, str>>,
    errors: Vec<FieldError>,
}

impl<'a> Fields<'a> {
    /// The fields of a JSON object, each as its JSON text. A null is as good as no field.
    ///
    /// # Errors
    /// When the text is no object.
    pub fn of_object(text: &'a str) -> Result<Self, Faults> {
        let entries: BTreeMap<String, &RawValue> =
            serde_json::from_str(text).map_err(|_| Faults::from("must be an object"))?;
        let entries = entries
            .into_iter()
            .map(|(name, value)| (name, Cow::Borrowed(value.get())))
            .filter(|(_, value)| value != "null")
            .collect();
        Ok(Self { mark: '/', entries, errors: Vec::new() })
    }

    /// The parameters of a query, decoded.
    pub(super) fn of_parameters(entries: BTreeMap<String, Cow<'a, str>>, errors: Vec<FieldError>) -> Self {
        Self { mark: '?', entries, errors }
    }

    /// Takes a part that may be absent.
    pub fn optional<T>(&mut self, name: &str, read: impl FnOnce(&str) -> Result<T, Faults>) -> Option<T> {
        let entry = self.entries.remove(name)?;
        match read(&entry) {
            Ok(value) => Some(value),
            Err(faults) => {
                let at = self.pointer(name);
                self.errors.extend(
                    faults.0.into_iter().map(|error| FieldError { pointer: at.clone() + &error.pointer, ..error }),
                );
                None
            }
        }
    }

    /// Takes a part that means something only together with all that was taken before; it is not read if any of that
    /// is wrong.
    pub fn dependent<T>(&mut self, name: &str, read: impl FnOnce(&str) -> Result<T, Faults>) -> Option<T> {
        if self.errors.is_empty() {
            return self.optional(name, read);
        }
        self.entries.remove(name);
        None
    }

    /// Takes a part that must be there.
    pub fn required<T>(&mut self, name: &str, read: impl FnOnce(&str) -> Result<T, Faults>) -> Option<T> {
        if !self.entries.contains_key(name) {
            self.fault(name, "is required");
        }
        self.optional(name, read)
    }

    /// Takes a part, or what stands for it when it is absent. One that is wrong is not replaced.
    pub fn or<T>(&mut self, name: &str, absent: T, read: impl FnOnce(&str) -> Result<T, Faults>) -> Option<T> {
        if self.entries.contains_key(name) { self.optional(name, read) } else { Some(absent) }
    }

    /// Notes a fault that only shows between parts.
    pub fn fault(&mut self, name: &str, detail: impl Into<String>) {
        self.errors.push(FieldError::new(self.pointer(name), detail));
    }

    /// Ends the reading: the value, or every fault.
    ///
    /// # Errors
    /// All faults that were found, unknown parts included if they are refused.
    pub fn end<T>(mut self, value: Option<T>, reading: Reading) -> Result<T, Faults> {
        if reading == Reading::Strict {
            for name in std::mem::take(&mut self.entries).into_keys() {
                self.fault(&name, "is not known");
            }
        }
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(Faults(self.errors)),
        }
    }

    fn pointer(&self, name: &str) -> String {
        if self.mark == '/' { pointer(name) } else { format!("{}{name}", self.mark) }
    }
}

/// The JSON pointer to a key.
pub fn pointer(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
}
