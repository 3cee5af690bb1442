//! Mending what workers send: no character of theirs may be a reason to refuse a report.

use std::fmt::Write as _;

/// The text with everything replaced that no string may hold: invalid UTF-8, NUL and halves of surrogate pairs become
/// U+FFFD, other bare control characters inside strings get their escape.
///
/// Only strings are mended: what is no JSON for another reason stays none.
#[must_use]
pub fn mend(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut mended = String::with_capacity(text.len());
    let mut rest = &*text;
    let mut in_string = false;
    while let Some(at) = rest.find(|c| c == '"' || in_string && (c == '\\' || c < ' ')) {
        mended.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = match rest.as_bytes() {
            [b'"', ..] => {
                in_string = !in_string;
                mended.push('"');
                1
            }
            [b'\\', ..] => escape(rest, &mut mended),
            [0, ..] => {
                mended.push(char::REPLACEMENT_CHARACTER);
                1
            }
            control => {
                write!(mended, "\\u{:04x}", control[0]).expect("a String takes all that is written to it");
                1
            }
        };
        rest = &rest[taken..];
    }
    mended.push_str(rest);
    mended
}

/// Takes the escape at the start of `rest`, mended; tells how many bytes it had.
fn escape(rest: &str, mended: &mut String) -> usize {
    let Some(unit) = code_unit(rest) else {
        // `\"` and the like. What follows the backslash may be more than one byte long, and no escape at all.
        let taken = 1 + rest[1..].chars().next().filter(|c| *c >= ' ').map_or(0, char::len_utf8);
        mended.push_str(&rest[..taken]);
        return taken;
    };
    let pair = (0xd800..0xdc00).contains(&unit)
        && code_unit(&rest[6..]).is_some_and(|second| (0xdc00..0xe000).contains(&second));
    match unit {
        _ if pair => {
            mended.push_str(&rest[..12]);
            return 12;
        }
        0 | 0xd800..0xe000 => mended.push(char::REPLACEMENT_CHARACTER),
        _ => mended.push_str(&rest[..6]),
    }
    6
}

/// The number in a `\uXXXX` at the start of `text`.
fn code_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::check;
    use super::*;

    fn read(bytes: &[u8]) -> Value {
        let mended = mend(bytes);
        assert!(check(mended.as_bytes()).is_ok(), "{mended}");
        serde_json::from_str(&mended).expect("mended text is JSON")
    }

    #[test]
    fn what_cannot_be_kept_becomes_the_replacement_character() {
        assert_eq!(read(br#"{"error": "a\u0000b"}"#), json!({"error": "a\u{fffd}b"}));
        assert_eq!(read(b"{\"error\": \"a\0b\"}"), json!({"error": "a\u{fffd}b"}));
        assert_eq!(read(br#"{"error": "\ud800x\udc00"}"#), json!({"error": "\u{fffd}x\u{fffd}"}));
        assert_eq!(read(br#"{"error": "\ud800\ud83d\ude00"}"#), json!({"error": "\u{fffd}\u{1f600}"}));
        assert_eq!(read(b"{\"error\": \"\xff\"}"), json!({"error": "\u{fffd}"}));
        assert_eq!(read(br#"{"out\ud800put": [1]}"#), json!({"out\u{fffd}put": [1]}));
    }

    #[test]
    fn all_else_stays_as_it_was_sent() {
        for text in [
            r#"{"a": "\\u0000 \" \ud83d\ude00 \u00e4", "b": 123456789012345678901234567890}"#,
            "[ 1.0 ,\n2e5 ]",
            r#""\\""#,
        ] {
            assert_eq!(mend(text.as_bytes()), text);
        }
    }

    #[test]
    fn a_bare_line_break_in_a_string_is_taken_for_its_escape() {
        assert_eq!(read(b"{\"error\":\n\"a\n\tb\"}"), json!({"error": "a\n\tb"}));
    }

    #[test]
    fn what_is_no_json_stays_none() {
        for text in [&b"{\0}"[..], b"\"\\", b"\"\\u12", b"\"\\ud800", b"{\"a\": \"\\x\"}", "\"\\ä\"".as_bytes()] {
            let mended = mend(text);
            assert!(check(mended.as_bytes()).is_err(), "{mended}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        /// Any string content of a worker, however broken, can be read after mending, and mending again changes
        /// nothing.
        #[test]
        fn mended_text_always_parses(parts in proptest::collection::vec(
            prop_oneof![
                "[^\"\\\\]".prop_map(String::into_bytes),
                any::<u16>().prop_map(|unit| format!("\\u{unit:04X}").into_bytes()),
                (0xd7f0u16..0xe010).prop_map(|unit| format!("\\u{unit:04x}").into_bytes()),
                prop::sample::select(vec!["\\\"", "\\\\", "\\n", "\\u0000"]).prop_map(|s| s.as_bytes().to_vec()),
                (128u8..=255).prop_map(|byte| vec![byte]),
                (0u8..32).prop_map(|byte| vec![byte]),
            ],
            0..20,
        )) {
            let mut body = b"{\"error\": \"".to_vec();
            body.extend(parts.concat());
            body.extend(b"\"}");
            let mended = mend(&body);
            prop_assert!(check(mended.as_bytes()).is_ok(), "{}", mended);
            prop_assert!(serde_json::from_str::<Value>(&mended).is_ok());
            prop_assert_eq!(mend(mended.as_bytes()), mended);
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(
            prop_oneof![any::<u8>(), Just(b'\\'), Just(b'u'), Just(b'"')],
            0..40,
        )) {
            let _ = mend(&bytes);
        }
    }
}
