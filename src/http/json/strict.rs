//! What a body must be before it is read: JSON, in UTF-8, not too deep, each key once, no text that cannot be kept.

use std::borrow::Cow;
use std::collections::HashSet;

use super::Defect;
use super::tokens::{Token, Tokens};

/// How many arrays and objects may stand inside each other, the body's own object included. Many readers take 128 levels
/// and no more, and answers put what was sent inside lists and objects of their own.
pub const MAX_DEPTH: usize = 120;

/// Checks a body that comes from a program which can mend what it sends.
///
/// # Errors
/// The first defect: what is no JSON, a key that stands twice in one object, NUL or half of a surrogate pair in a
/// string (no database and hardly any client could keep it), or more than [`MAX_DEPTH`] levels.
pub fn check(bytes: &[u8]) -> Result<&str, Defect> {
    let text = std::str::from_utf8(bytes).map_err(|error| Defect::new(error.valid_up_to(), "is not UTF-8"))?;
    let mut tokens = Tokens::new(text);
    let mut seen: Vec<HashSet<Cow<'_, str>>> = Vec::new();
    loop {
        let Some(token) = tokens.next() else { return Ok(text) };
        match token? {
            Token::OpenObject | Token::OpenArray => {
                if tokens.depth() > MAX_DEPTH {
                    return Err(Defect::new(tokens.at() - 1, format!("is nested more than {MAX_DEPTH} levels deep")));
                }
                seen.push(HashSet::new());
            }
            Token::Close => {
                seen.pop();
            }
            Token::Key(key) => {
                let key = decoded(key, tokens.at())?;
                let keys = seen.last_mut().expect("a key stands in an object, and each open object has its set");
                if let Some(twice) = keys.replace(key) {
                    return Err(Defect::new(tokens.at() - 1, format!("the key {twice:?} stands twice in one object")));
                }
            }
            Token::Text(text) => {
                decoded(text, tokens.at())?;
            }
            Token::Literal(_) => {}
        }
    }
}

/// How deep a value is nested.
///
/// # Errors
/// When the text is no JSON.
pub fn depth(text: &str) -> Result<usize, Defect> {
    let mut tokens = Tokens::new(text);
    let mut deepest = 0;
    while let Some(token) = tokens.next() {
        token?;
        deepest = deepest.max(tokens.depth());
    }
    Ok(deepest)
}

/// What a string that ends before `end` says.
fn decoded(quoted: &str, end: usize) -> Result<Cow<'_, str>, Defect> {
    let inside = &quoted[1..quoted.len() - 1];
    if !inside.contains('\\') {
        return Ok(Cow::Borrowed(inside));
    }
    match serde_json::from_str::<String>(quoted) {
        Ok(text) if text.contains('\0') => Err(Defect::new(end - quoted.len(), "the string contains \\u0000")),
        Ok(text) => Ok(Cow::Owned(text)),
        // The tokens hold to the rest of the grammar, so nothing else is left to be wrong.
        Err(_) => Err(Defect::new(end - quoted.len(), "the string contains half of a surrogate pair")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn defect(text: &str) -> String {
        check(text.as_bytes()).expect_err(text).in_text(text.as_bytes())
    }

    #[test]
    fn names_line_column_and_fault() {
        assert_eq!(defect("{\n  \"a\": tru\n}"), "line 2, column 8: expected a value, but there is 't'");
        assert_eq!(defect(r#"{"ä": 1,}"#), "line 1, column 9: expected a key, but there is '}'");
        assert_eq!(defect("[1"), "line 1, column 3: expected `,` or `]`, but the text ends");
        assert_eq!(defect(""), "line 1, column 1: expected a value, but the text ends");
        assert_eq!(defect("{} x"), "line 1, column 4: expected the end of the text, but there is 'x'");
        let not_utf8 = check(b"{\"a\": \"\xff\"}").expect_err("0xff is no UTF-8");
        assert_eq!(not_utf8.in_text(b"{\"a\": \"\xff\"}"), "line 1, column 8: is not UTF-8");
    }

    #[test]
    fn a_key_may_stand_once_in_an_object() {
        assert!(defect(r#"{"a": 1, "a": 2}"#).ends_with(r#"the key "a" stands twice in one object"#));
        assert!(defect(r#"{"x": [{"a": 1, "\u0061": 2}]}"#).ends_with(r#"the key "a" stands twice in one object"#));
        assert!(check(br#"{"a": {"a": 1}, "b": {"a": 1}}"#).is_ok());
    }

    /// B123, and NUL, which Postgres cannot keep in a text.
    #[test]
    fn text_that_cannot_be_kept_is_refused() {
        for half in [r"\ud800", r"\udc00", r"\ud800\ud800", r"\ud800A"] {
            assert!(defect(&format!(r#"{{"a": "{half}"}}"#)).contains("half of a surrogate pair"), "{half}");
            assert!(defect(&format!(r#"{{"{half}": 1}}"#)).contains("half of a surrogate pair"), "{half}");
        }
        assert!(defect(r#"{"a": "x\u0000"}"#).contains("contains \\u0000"));
        for control in '\0'..' ' {
            assert!(defect(&format!("{{\"a\": \"x{control}\"}}")).contains("unescaped"), "{control:?}");
        }
        assert!(check(br#"{"a": "\ud83d\ude00 \\u0000"}"#).is_ok());
    }

    /// B129: a clean refusal above the limit, and no stack to overflow.
    #[test]
    fn depth_is_limited_and_cannot_overflow() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(check(nested(MAX_DEPTH).as_bytes()).is_ok());
        for levels in [MAX_DEPTH + 1, 100_000] {
            assert!(defect(&nested(levels)).ends_with("is nested more than 120 levels deep"));
        }
        assert_eq!(depth(&nested(100_000)), Ok(100_000));
    }

    #[test]
    fn numbers_are_not_judged_by_what_fits_a_float() {
        assert!(check(b"[123456789012345678901234567890, 1e999, -0, 0.5E-7]").is_ok());
        for bad in ["01", "+1", "1.", ".5", "1e", "-", "NaN", "Infinity", "0x10"] {
            assert!(check(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[^\0]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("[^\0]{0,4}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn takes_what_serde_json_writes(value in json()) {
            let compact = serde_json::to_string(&value).unwrap();
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert!(check(compact.as_bytes()).is_ok());
            prop_assert!(check(pretty.as_bytes()).is_ok());
        }

        /// The grammar is serde_json's: one byte changed, and both still agree whether it is JSON.
        #[test]
        fn agrees_with_serde_json_on_broken_text(
            value in json(),
            at in any::<prop::sample::Index>(),
            byte in 0u8..128,
        ) {
            let mut text = serde_json::to_string(&value).unwrap().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            let ours = check(&text);
            let theirs = serde_json::from_slice::<&serde_json::value::RawValue>(&text);
            let beyond_grammar = ours.as_ref().is_err_and(|defect| {
                ["twice", "\\u0000", "surrogate"].iter().any(|rule| defect.what.contains(rule))
            });
            prop_assert!(ours.is_ok() == theirs.is_ok() || beyond_grammar, "{:?} against {:?}", ours, theirs);
        }

        #[test]
        fn never_panics(text in "[\\[\\]{}:,\"\\\\u0-9a-f.eE+ -]{0,40}") {
            let valid = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            prop_assert!(valid || check(text.as_bytes()).is_err());
        }
    }
}
