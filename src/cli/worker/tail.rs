//! The end of an output of any length.

/// How much of an output is kept.
const KEPT: usize = 4 * 1024;

/// Keeps the last 4 KiB of what is pushed through it.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    /// Adds to the end.
    pub(super) fn push(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
        // Cut only when twice as much is there, so that a byte is moved at most once on average.
        if self.bytes.len() > 2 * KEPT {
            self.bytes.drain(..self.bytes.len() - KEPT);
            self.cut = true;
        }
    }

    /// The end as text, begun at a whole character; what is not UTF-8 is replaced.
    pub(super) fn text(&self) -> String {
        let from = self.bytes.len().saturating_sub(KEPT);
        let end = &self.bytes[from..];
        let begun_before = self.cut || from > 0;
        let broken = end.iter().take(3).take_while(|byte| begun_before && is_continuation(**byte)).count();
        String::from_utf8_lossy(&end[broken..]).trim_end().to_owned()
    }
}

/// Whether a byte is the second, third or fourth of a character.
fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn tail(pieces: &[&[u8]]) -> String {
        let mut tail = Tail::default();
        for piece in pieces {
            tail.push(piece);
        }
        tail.text()
    }

    #[test]
    fn a_short_output_is_kept_whole() {
        assert_eq!(tail(&[]), "");
        assert_eq!(tail(&[b"one\n", b"two\n\n"]), "one\ntwo");
    }

    #[test]
    fn a_long_output_keeps_its_end() {
        let long = vec![b'x'; 100_000];
        assert_eq!(tail(&[&long, b"end"]), format!("{}end", "x".repeat(KEPT - 3)));
    }

    #[test]
    fn a_character_is_not_cut_in_half() {
        let long = "é".repeat(KEPT);
        assert_eq!(tail(&[long.as_bytes(), b"."]), format!("{}.", "é".repeat(KEPT / 2 - 1)));
    }

    #[test]
    fn what_is_not_text_is_replaced() {
        assert_eq!(tail(&[b"a\xffb"]), "a\u{fffd}b");
        assert_eq!(tail(&[b"\x80b"]), "\u{fffd}b");
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..12)) {
            let whole = pieces.concat();
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(tail(&pieces), tail(&[&whole]));
        }
    }
}
