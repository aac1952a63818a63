//! Which network an address counts for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The network a connection is counted for: its address without the host bits.
///
/// An IPv4-mapped address (`::ffff:192.0.2.1`, what a dual-stack socket reports for an IPv4 client) counts as its IPv4
/// address; otherwise a client would have a second allowance at every IPv6 listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

/// How many leading bits of an address name its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefixes {
    /// 0..=32; more counts as 32.
    pub(crate) ipv4: u8,
    /// 0..=128; more counts as 128.
    pub(crate) ipv6: u8,
}

impl Source {
    pub(crate) fn of(peer: IpAddr, prefixes: Prefixes) -> Self {
        match peer.to_canonical() {
            IpAddr::V4(address) => {
                let host_bits = 32_u32.saturating_sub(u32::from(prefixes.ipv4));
                // A shift by the whole width is no shift at all in Rust: the empty prefix is one network.
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                Self::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let host_bits = 128_u32.saturating_sub(u32::from(prefixes.ipv6));
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                Self::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(peer: &str, ipv4: u8, ipv6: u8) -> Source {
        Source::of(peer.parse().unwrap(), Prefixes { ipv4, ipv6 })
    }

    #[test]
    fn folds_ipv4_mapped_addresses() {
        assert_eq!(
            source("::ffff:192.0.2.7", 32, 64),
            source("192.0.2.7", 32, 64)
        );
        assert_eq!(
            source("::ffff:c000:207", 32, 64),
            source("192.0.2.7", 32, 64)
        );
        assert_ne!(
            source("::ffff:192.0.2.8", 32, 64),
            source("192.0.2.7", 32, 64)
        );
        // IPv4-compatible addresses are another, dead form: they stay IPv6.
        assert!(matches!(source("::192.0.2.7", 32, 64), Source::V6(_)));
    }

    #[test]
    fn a_whole_ipv6_network_is_one_source() {
        assert_eq!(
            source("2001:db8:1:2::1", 32, 64),
            source("2001:db8:1:2:ffff:ffff:ffff:ffff", 32, 64)
        );
        assert_ne!(
            source("2001:db8:1:2::1", 32, 64),
            source("2001:db8:1:3::1", 32, 64)
        );
        assert_eq!(
            source("2001:db8:1:2::1", 32, 48),
            source("2001:db8:1:3::1", 32, 48)
        );
    }

    #[test]
    fn every_prefix_length_works_to_its_ends() {
        assert_eq!(source("192.0.2.7", 24, 64), source("192.0.2.250", 24, 64));
        assert_ne!(source("192.0.2.7", 32, 64), source("192.0.2.6", 32, 64));
        assert_eq!(source("192.0.2.7", 0, 64), source("10.0.0.1", 0, 64));
        assert_ne!(
            source("2001:db8::1", 32, 128),
            source("2001:db8::2", 32, 128)
        );
        assert_eq!(source("2001:db8::1", 32, 0), source("fe80::1", 32, 0));
    }
}
