//! A JSON text as a sequence of tokens, read without recursion: no text is too deep for it.

use super::Defect;

/// One piece of a JSON text. Strings stand as written, quotes and escapes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// `{`
    OpenObject,
    /// `[`
    OpenArray,
    /// `}` or `]`, whichever is due.
    Close,
    /// A key of an object.
    Key(&'a str),
    /// A string that is a value.
    Text(&'a str),
    /// A number, `true`, `false` or `null`.
    Literal(&'a str),
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Value,
    ValueOrClose,
    Key,
    KeyOrClose,
    CommaOrClose,
    Nothing,
}

/// The tokens of one JSON text. Ends after the first defect.
///
/// All of the grammar is held to, but what escapes of surrogates mean: that is for those who decode strings.
#[derive(Debug, Clone)]
pub struct Tokens<'a> {
    text: &'a str,
    at: usize,
    /// The closing brackets that are due, innermost last.
    open: Vec<u8>,
    due: Due,
    broken: bool,
}

impl<'a> Tokens<'a> {
    /// The tokens of this text.
    #[must_use]
    pub const fn new(text: &'a str) -> Self {
        Self { text, at: 0, open: Vec::new(), due: Due::Value, broken: false }
    }

    /// Bytes read so far.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Arrays and objects that are open.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.open.len()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn defect<T>(&self, expected: &str) -> Result<T, Defect> {
        let found = match self.text[self.at..].chars().next() {
            None => "the text ends".to_owned(),
            Some(found) => format!("there is {found:?}"),
        };
        Err(Defect::new(self.at, format!("expected {expected}, but {found}")))
    }

    fn step(&mut self) -> Result<Option<Token<'a>>, Defect> {
        self.skip_blanks();
        if self.due == Due::CommaOrClose {
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.due = if self.open.last() == Some(&b'}') { Due::Key } else { Due::Value };
                    self.skip_blanks();
                }
                Some(byte) if self.open.last() == Some(&byte) => return Ok(Some(self.close())),
                _ if self.open.last() == Some(&b'}') => return self.defect("`,` or `}`"),
                _ => return self.defect("`,` or `]`"),
            }
        }
        match (self.due, self.peek()) {
            (Due::Nothing, None) => Ok(None),
            (Due::Nothing, Some(_)) => self.defect("the end of the text"),
            (Due::KeyOrClose, Some(b'}')) | (Due::ValueOrClose, Some(b']')) => Ok(Some(self.close())),
            (Due::Key | Due::KeyOrClose, Some(b'"')) => {
                let key = self.string()?;
                self.skip_blanks();
                if self.peek() != Some(b':') {
                    return self.defect("`:`");
                }
                self.at += 1;
                self.due = Due::Value;
                Ok(Some(Token::Key(key)))
            }
            (Due::Key, _) => self.defect("a key"),
            (Due::KeyOrClose, _) => self.defect("a key or `}`"),
            (Due::Value | Due::ValueOrClose | Due::CommaOrClose, _) => self.value().map(Some),
        }
    }

    fn value(&mut self) -> Result<Token<'a>, Defect> {
        let token = match self.peek() {
            Some(b'{') => return Ok(self.opened(b'}', Due::KeyOrClose, Token::OpenObject)),
            Some(b'[') => return Ok(self.opened(b']', Due::ValueOrClose, Token::OpenArray)),
            Some(b'"') => Token::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => Token::Literal(self.number()?),
            _ => {
                let rest = &self.text[self.at..];
                let Some(word) = ["true", "false", "null"].into_iter().find(|word| rest.starts_with(word)) else {
                    return self.defect("a value");
                };
                self.at += word.len();
                Token::Literal(word)
            }
        };
        self.after_value();
        Ok(token)
    }

    fn opened(&mut self, closing: u8, due: Due, token: Token<'a>) -> Token<'a> {
        self.at += 1;
        self.open.push(closing);
        self.due = due;
        token
    }

    fn close(&mut self) -> Token<'a> {
        self.at += 1;
        self.open.pop();
        self.after_value();
        Token::Close
    }

    fn after_value(&mut self) {
        self.due = if self.open.is_empty() { Due::Nothing } else { Due::CommaOrClose };
    }

    fn string(&mut self) -> Result<&'a str, Defect> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(&self.text[start..self.at]);
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                        Some(b'u') => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                                    return self.defect("four hexadecimal digits");
                                }
                                self.at += 1;
                            }
                        }
                        _ => return self.defect("an escape"),
                    }
                }
                Some(0x00..=0x1f) => return self.defect("a character that may stand in a string unescaped"),
                Some(_) => self.at += 1,
                None => return self.defect("the end of a string"),
            }
        }
    }

    fn number(&mut self) -> Result<&'a str, Defect> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        // A leading zero stands alone: the digit after it is then no comma and no end.
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(&self.text[start..self.at])
    }

    fn digits(&mut self) -> Result<(), Defect> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { self.defect("a digit") } else { Ok(()) }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Result<Token<'a>, Defect>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.broken {
            return None;
        }
        let step = self.step().transpose();
        self.broken = matches!(step, Some(Err(_)));
        step
    }
}
