//! Who may be connected: so many in all, and so many of them from one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The seats of a listener.
#[derive(Debug)]
pub(super) struct Seats {
    most: usize,
    most_of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_origin: HashMap<IpAddr, usize>,
}

/// One connection's seat, free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    origin: Option<IpAddr>,
}

impl Seats {
    pub(super) fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        Arc::new(Self { most, most_of_one, taken: Mutex::default() })
    }

    /// A seat for a client of this address; none when all are taken, or all that one address may have.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let origin = origin(address);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.all >= self.most {
            return None;
        }
        if let Some(origin) = origin {
            let of_it = taken.by_origin.get(&origin).copied().unwrap_or_default();
            if of_it >= self.most_of_one {
                return None;
            }
            taken.by_origin.insert(origin, of_it + 1);
        }
        taken.all += 1;
        Some(Seat { seats: Arc::clone(self), origin })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        let Some(origin) = self.origin else { return };
        match taken.by_origin.get_mut(&origin) {
            Some(more @ 2..) => *more -= 1,
            _ => _ = taken.by_origin.remove(&origin),
        }
    }
}

/// Whom an address counts for: one of IPv6 has a whole network to choose from. Nobody for the machine itself, from
/// where a proxy may speak for everybody.
fn origin(address: IpAddr) -> Option<IpAddr> {
    let address = address.to_canonical();
    if address.is_loopback() {
        return None;
    }
    Some(match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let mut network = address.segments();
            network[4..].fill(0);
            IpAddr::V6(Ipv6Addr::from(network))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(seats: &Arc<Seats>, address: &str) -> Option<Seat> {
        seats.take(address.parse().unwrap())
    }

    #[test]
    fn one_address_cannot_take_them_all() {
        let seats = Seats::new(4, 2);
        let first = take(&seats, "192.0.2.1");
        let _second = take(&seats, "::ffff:192.0.2.1").expect("two are allowed");
        assert!(take(&seats, "192.0.2.1").is_none());
        let _network = [take(&seats, "2001:db8::1").unwrap(), take(&seats, "2001:db8::ffff:2").unwrap()];
        assert!(take(&seats, "127.0.0.1").is_none(), "four are all there are");
        drop(first);
        assert!(take(&seats, "2001:db8::3").is_none(), "its network has two");
        assert!(take(&seats, "192.0.2.1").is_some());
    }

    #[test]
    fn the_machine_itself_is_not_counted_and_nothing_is_remembered_of_who_left() {
        let seats = Seats::new(10, 1);
        let here: Vec<_> = (0..5).map(|_| take(&seats, "127.0.0.1").unwrap()).collect();
        let there = take(&seats, "192.0.2.1").unwrap();
        drop((here, there));
        let taken = seats.taken.lock().unwrap();
        assert_eq!((taken.all, taken.by_origin.len()), (0, 0));
    }
}
