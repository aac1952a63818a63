//! Which connection a session goes to. One, until it is full; then more, up to four, and each space prefers the same ones
//! every time, so that neither reconnects nor new sessions move the others.

use memory_wire::did::Did;

/// Connections of one client in shared topology.
pub(crate) const MAX_SHARED: usize = 4;

/// Sessions per connection.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    held: [u64; MAX_SHARED],
    active: usize,
    /// Sessions one connection takes, once a router told.
    cap: Option<u64>,
}

impl Placement {
    /// A router told what a connection takes.
    pub(crate) fn learn_cap(&mut self, cap: Option<u64>) {
        self.cap = cap;
    }

    /// Places one more session of `space`, among the connections in use if one has room, else on a further one. `None` when
    /// all four are full.
    pub(crate) fn place(&mut self, space: &Did) -> Option<usize> {
        self.active = self.active.max(1);
        loop {
            let room = |place: &usize| {
                let held = self.held.get(*place).copied().unwrap_or(u64::MAX);
                self.cap.is_none_or(|cap| held < cap)
            };
            let best = (0..self.active)
                .filter(room)
                .max_by_key(|place| weight(space, *place));
            if let Some(best) = best {
                if let Some(held) = self.held.get_mut(best) {
                    *held += 1;
                }
                return Some(best);
            }
            if self.active == MAX_SHARED {
                return None;
            }
            self.active += 1;
        }
    }

    /// A session left. Connections past the first that hold nothing go out of use, last first; returns those that did.
    pub(crate) fn leave(&mut self, place: usize) -> std::ops::Range<usize> {
        if let Some(held) = self.held.get_mut(place) {
            *held = held.saturating_sub(1);
        }
        let before = self.active;
        while self.active > 1 && self.held.get(self.active - 1) == Some(&0) {
            self.active -= 1;
        }
        self.active..before
    }
}

/// How much a space prefers a connection: rendezvous hashing.
fn weight(space: &Did, place: usize) -> u64 {
    // FNV-1a over key and place, then a finalizer that spreads the last byte over all bits.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in space.key().iter().copied().chain([place as u8]) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_config::Identity;

    fn spaces(count: u8) -> Vec<Did> {
        (1..=count)
            .map(|seed| Identity::from_seed([seed; 32]).unwrap().did())
            .collect()
    }

    #[test]
    fn one_connection_until_it_is_full() {
        let mut placement = Placement::default();
        placement.learn_cap(Some(3));
        let places: Vec<_> = spaces(13)
            .iter()
            .map(|space| placement.place(space))
            .collect();
        assert_eq!(places[..3], [Some(0); 3]);
        assert_eq!(places[12], None, "four of three are twelve");
        for place in 0..MAX_SHARED {
            let held = places.iter().filter(|held| **held == Some(place)).count();
            assert_eq!(held, 3);
        }
    }

    #[test]
    fn a_space_prefers_the_same_connection_every_time() {
        let spread = |order: Vec<Did>| {
            let mut placement = Placement {
                active: MAX_SHARED,
                ..Placement::default()
            };
            let mut places: Vec<_> = order
                .iter()
                .map(|space| (*space, placement.place(space)))
                .collect();
            places.sort();
            places
        };
        let spaces = spaces(64);
        let places = spread(spaces.clone());
        assert_eq!(places, spread(spaces.into_iter().rev().collect()));
        for place in 0..MAX_SHARED {
            let held = places
                .iter()
                .filter(|(_, held)| *held == Some(place))
                .count();
            assert!((4..=32).contains(&held), "{place} has {held} of 64");
        }
    }

    #[test]
    fn connections_go_out_of_use_last_first() {
        let mut placement = Placement::default();
        placement.learn_cap(Some(1));
        let space = spaces(1)[0];
        for place in 0..3 {
            assert_eq!(placement.place(&space), Some(place));
        }
        assert_eq!(placement.leave(1), 3..3, "the third is in use");
        assert_eq!(placement.leave(2), 1..3);
        assert_eq!(placement.leave(0), 1..1, "the first stays");
    }
}
