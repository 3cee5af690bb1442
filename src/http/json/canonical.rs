//! One text for all ways to write the same JSON value, so that a repeat is known whoever serialised it.

use std::mem;

use super::Defect;
use super::tokens::{Token, Tokens};

/// An array or object whose end has not come yet: its parts so far, and the key that waits for its value.
struct Open {
    object: bool,
    parts: Vec<(String, String)>,
    key: String,
}

/// The value without blanks, keys sorted at every level, strings with the fewest escapes. Numbers stay as written:
/// whether `1` and `1.0` are the same is not ours to say.
///
/// # Errors
/// When the text is no JSON, or holds half of a surrogate pair.
pub fn canonical(text: &str) -> Result<String, Defect> {
    let mut whole = String::new();
    let mut open: Vec<Open> = Vec::new();
    let mut tokens = Tokens::new(text);
    while let Some(token) = tokens.next() {
        let value = match token? {
            token @ (Token::OpenObject | Token::OpenArray) => {
                open.push(Open { object: token == Token::OpenObject, parts: Vec::new(), key: String::new() });
                continue;
            }
            Token::Key(key) => {
                if let Some(object) = open.last_mut() {
                    object.key = string(key, tokens.at())?;
                }
                continue;
            }
            Token::Text(text) => string(text, tokens.at())?,
            Token::Literal(literal) => literal.to_owned(),
            Token::Close => open.pop().map(Open::closed).unwrap_or_default(),
        };
        match open.last_mut() {
            Some(around) => around.parts.push((mem::take(&mut around.key), value)),
            None => whole = value,
        }
    }
    Ok(whole)
}

impl Open {
    fn closed(mut self) -> String {
        if !self.object {
            let items: Vec<String> = self.parts.into_iter().map(|(_, value)| value).collect();
            return format!("[{}]", items.join(","));
        }
        self.parts.sort_unstable();
        let entries: Vec<String> = self.parts.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
        format!("{{{}}}", entries.join(","))
    }
}

fn string(quoted: &str, end: usize) -> Result<String, Defect> {
    if !quoted.contains('\\') {
        return Ok(quoted.to_owned());
    }
    let text: String = serde_json::from_str(quoted)
        .map_err(|_| Defect::new(end - quoted.len(), "the string contains half of a surrogate pair"))?;
    Ok(serde_json::to_string(&text).expect("a string is JSON"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn neither_order_nor_blanks_nor_escapes_matter() {
        let one = canonical("{\"b\": [1, {\"y\": null, \"x\": \"\\u0061\\/\"}],\n \"a\": {}}");
        let other = canonical(r#"{"a":{},"b":[1,{"x":"a/","y":null}]}"#);
        assert_eq!(one, other);
        assert_eq!(one.unwrap(), r#"{"a":{},"b":[1,{"x":"a/","y":null}]}"#);
    }

    #[test]
    fn every_value_matters() {
        let texts = [
            "1",
            "1.0",
            "\"1\"",
            "[1]",
            "[1,2]",
            "[2,1]",
            "{\"a\":1}",
            "{\"a\":\"1\"}",
            "null",
            "9007199254740993",
            "9007199254740992",
        ];
        let all: std::collections::BTreeSet<String> = texts.iter().map(|text| canonical(text).unwrap()).collect();
        assert_eq!(all.len(), texts.len());
    }

    proptest! {
        /// The value is the same before and after, and the form of the form is the form.
        #[test]
        fn keeps_the_value(
            keys in proptest::collection::vec(".{0,5}", 0..6),
            number in any::<i64>(),
            text in ".{0,8}",
        ) {
            let entry = |key| (key, serde_json::json!([{"n": number}, text]));
            let value = Value::Object(keys.into_iter().map(entry).collect());
            let form = canonical(&serde_json::to_string_pretty(&value).unwrap()).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Value>(&form).unwrap(), &value);
            prop_assert_eq!(canonical(&form).unwrap(), form);
        }
    }
}
