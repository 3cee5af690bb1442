//! Cursors: where a page ended, opaque to clients.
//!
//! A cursor holds its version, a digest of the list and the filter it belongs to, and the position of the last row, in
//! base64url. It is no secret and proves nothing: who forges one gets a page of a list that is open to him anyway. It is
//! checked so that a mistake is told rather than answered with a page of something else.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;

use crate::coordinator::list::Position;
use crate::domain::Timestamp;
use crate::http::extract::Faults;
use crate::ids::Digest;

/// The first byte of every cursor of this form.
const VERSION: u8 = 1;

/// How much of the filter's digest a cursor holds: enough to tell one from another by mistake.
const MARK_BYTES: usize = 8;

/// What tells the cursors of one list and filter from those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark([u8; MARK_BYTES]);

impl Mark {
    /// The mark of a list with a filter. Equal filters have equal marks however they were written.
    pub fn of(list: &str, filter: impl Serialize) -> Self {
        let digest = Digest::of(serde_json::to_vec(&(list, filter)).expect("a filter holds texts, times and maps"));
        let mut mark = [0; MARK_BYTES];
        mark.copy_from_slice(&digest.0[..MARK_BYTES]);
        Self(mark)
    }

    /// The cursor of a page that ended there.
    pub fn cursor(self, ended: &impl Place) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend(self.0);
        ended.write(&mut bytes);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a cursor of this list with this filter.
    pub fn read<P: Place>(self, cursor: &str) -> Result<P, Faults> {
        let malformed = || Faults::from("is no cursor: it must be the `next_cursor` of a page, as it was answered");
        let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| malformed())?;
        let (version, rest) = bytes.split_first().ok_or_else(malformed)?;
        let (mark, place) = rest.split_at_checked(MARK_BYTES).ok_or_else(malformed)?;
        if *version != VERSION {
            return Err("is a cursor of another version of the service; begin with the first page".into());
        }
        if mark != self.0 {
            return Err("belongs to another list, or to the same one with other filters or in another order".into());
        }
        P::read(place).ok_or_else(malformed)
    }
}

/// Where a page of some list can end.
pub trait Place: Sized {
    /// Appends it.
    fn write(&self, bytes: &mut Vec<u8>);
    /// Reads what was written, and nothing else.
    fn read(bytes: &[u8]) -> Option<Self>;
}

/// Microseconds since 1970, as exact as the database keeps them, then both names with a NUL between them.
impl Place for Position {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.created_at.timestamp_micros().to_be_bytes());
        bytes.extend(self.dag_name.as_bytes());
        bytes.push(0);
        bytes.extend(self.run_id.as_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (micros, names) = bytes.split_first_chunk()?;
        let (dag_name, run_id) = std::str::from_utf8(names).ok()?.split_once('\0')?;
        let created_at = Timestamp::from_timestamp_micros(i64::from_be_bytes(*micros))?;
        // What the database has no time or text for was never a position.
        let possible = (Timestamp::UNIX_EPOCH..=Timestamp::from_timestamp_nanos(i64::MAX)).contains(&created_at);
        (possible && !run_id.contains('\0')).then(|| Self {
            created_at,
            dag_name: dag_name.to_owned(),
            run_id: run_id.to_owned(),
        })
    }
}

/// A worker's name.
impl Place for String {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.as_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(bytes).ok()?;
        (!name.contains('\0')).then(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn detail<T: std::fmt::Debug>(read: Result<T, Faults>) -> String {
        read.expect_err("is refused").0.remove(0).detail
    }

    #[test]
    fn a_cursor_is_for_its_own_list_and_filter() {
        let mark = Mark::of("workers", ("zone=b", Some("healthy")));
        let cursor = mark.cursor(&"w-7".to_owned());
        assert_eq!(mark.read::<String>(&cursor), Ok("w-7".to_owned()));
        for other in [Mark::of("runs", ("zone=b", Some("healthy"))), Mark::of("workers", ("zone=b", None::<&str>))] {
            assert!(detail(other.read::<String>(&cursor)).contains("belongs to another list"));
        }
        let mut later = URL_SAFE_NO_PAD.decode(&cursor).unwrap();
        later[0] = 2;
        assert!(detail(mark.read::<String>(&URL_SAFE_NO_PAD.encode(later))).contains("another version"));
        for bad in ["", "AA", "A", "AQ==", "!", "AQ AQ", &format!("{cursor}="), &format!("{cursor}A")] {
            assert!(mark.read::<Position>(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        /// B133: no place is lost in its cursor, whatever the time and the names.
        #[test]
        fn a_place_comes_back_from_its_cursor(
            micros in 0..9_000_000_000_000_000_i64,
            dag_name in "\\PC{1,20}",
            run_id in "[A-Za-z0-9._:@+~=-]{1,20}",
        ) {
            let created_at = Timestamp::from_timestamp_micros(micros).unwrap();
            let place = Position { created_at, dag_name, run_id };
            let mark = Mark::of("runs", ());
            prop_assert_eq!(mark.read::<Position>(&mark.cursor(&place)), Ok(place));
        }

        /// Whatever is sent for a cursor is read or refused, and what is read has a place in the database.
        #[test]
        fn whatever_is_sent_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mark = Mark::of("runs", ());
            _ = mark.read::<Position>(&URL_SAFE_NO_PAD.encode(&bytes));
            let own = [&[VERSION][..], &mark.0, &bytes].concat();
            if let Ok(place) = mark.read::<Position>(&URL_SAFE_NO_PAD.encode(own)) {
                prop_assert!(place.created_at >= Timestamp::UNIX_EPOCH && !place.run_id.contains('\0'));
            }
        }
    }
}
