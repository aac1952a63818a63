//! Addresses, hosts and origins as files write them.

use std::net::{IpAddr, Ipv6Addr};

/// An address prefix (CIDR). IPv4-mapped IPv6 addresses count as the IPv4 address they carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The first address of the network: no bit is set past the prefix.
    pub address: IpAddr,
    /// Prefix length in bits, 0..=32 for IPv4 and 0..=128 for IPv6.
    pub prefix: u8,
}

impl Network {
    /// Reads `address/prefix`; `None` when a bit is set past the prefix, which is nearly always a slip, and for
    /// IPv4-mapped addresses, which are folded to IPv4 before any comparison.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let plain =
            matches!(prefix.len(), 1..=3) && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = plain.then(|| prefix.parse().ok()).flatten()?;
        let width = width(address);
        let mapped = address.to_canonical() != address;
        if mapped || prefix > width || masked(address, prefix) != bits(address) {
            return None;
        }
        Some(Self { address, prefix })
    }

    /// Whether `address` is inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        width(address) == width(self.address) && masked(address, self.prefix) == bits(self.address)
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}

/// A `Host` value: a name, an IPv4 address or a bracketed IPv6 address, then optionally a port; lower case.
pub(crate) fn parse_host(text: &str) -> Option<String> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']')?;
            inside.parse::<Ipv6Addr>().ok()?;
            match after {
                "" => ("", None),
                _ => ("", Some(after.strip_prefix(':')?)),
            }
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    let name_fits = text.starts_with('[') || is_host_name(name);
    let port_fits = port.is_none_or(|port| parse_port(port).is_some());
    (name_fits && port_fits).then(|| text.to_ascii_lowercase())
}

/// An exact origin as a browser serialises it: lower case, no path, no default port.
pub(crate) fn parse_origin(text: &str) -> Option<String> {
    let (scheme, host) = text.split_once("://")?;
    let mut letters = scheme.bytes();
    let scheme_fits = letters
        .next()
        .is_some_and(|first| first.is_ascii_lowercase())
        && letters.all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte)
        });
    let default_port = match scheme {
        "https" | "wss" => ":443",
        "http" | "ws" => ":80",
        _ => "\0",
    };
    let same = parse_host(host)? == host;
    (scheme_fits && same && !host.ends_with(default_port)).then(|| text.to_owned())
}

/// A DNS name or an IPv4 address: labels of letters, digits, `-` and `_`, 1..=63 each and 253 in all.
pub(crate) fn is_host_name(name: &str) -> bool {
    let label_fits = |label: &str| {
        matches!(label.len(), 1..=63)
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= 253 && name.split('.').all(label_fits)
}

/// A port, 1..=65535, without sign or leading zero.
pub(crate) fn parse_port(text: &str) -> Option<u16> {
    let plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Width of the address in bits.
fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address as a number, left-aligned in 128 bits.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The first `prefix` bits of the address, left-aligned.
fn masked(address: IpAddr, prefix: u8) -> u128 {
    let cut = 128 - u32::from(prefix.min(128));
    bits(address)
        .checked_shr(cut)
        .and_then(|kept| kept.checked_shl(cut))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        let network = Network::parse("10.1.0.0/16").unwrap();
        assert!(network.contains("10.1.255.255".parse().unwrap()));
        assert!(network.contains("::ffff:10.1.0.1".parse().unwrap()));
        assert!(!network.contains("10.2.0.0".parse().unwrap()));
        assert!(!network.contains("::a01:1".parse().unwrap()));
        let network = Network::parse("2001:db8::/32").unwrap();
        assert!(network.contains("2001:db8:ffff::1".parse().unwrap()));
        assert!(!network.contains("2001:db9::".parse().unwrap()));
        assert!(
            Network::parse("0.0.0.0/0")
                .unwrap()
                .contains("255.0.0.1".parse().unwrap())
        );
        assert!(
            !Network::parse("::/0")
                .unwrap()
                .contains("1.2.3.4".parse().unwrap())
        );
        assert!(
            Network::parse("::1/128")
                .unwrap()
                .contains("::1".parse().unwrap())
        );
    }

    #[test]
    fn refuses_loose_networks() {
        for bad in [
            "10.0.0.1/8",
            "10.0.0.0",
            "10.0.0.0/33",
            "::/129",
            "::/-1",
            "::/+1",
            "::/",
            "a/8",
            "10.0.0.0/8/8",
            "::ffff:10.0.0.0/104",
        ] {
            assert_eq!(Network::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn hosts_are_names_with_an_optional_port() {
        for good in [
            "localhost",
            "localhost:8443",
            "memory.example",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:8443",
        ] {
            assert_eq!(parse_host(good).as_deref(), Some(good));
        }
        assert_eq!(
            parse_host("Memory.Example").as_deref(),
            Some("memory.example")
        );
        for bad in [
            "", ":1", "a:", "a:0", "a:65536", "a:01", "a b", "a/b", "http://a", "[::1", "[::1]x",
            "[a]", "::1", "-a", "a..b", "a:+1",
        ] {
            assert_eq!(parse_host(bad), None, "{bad}");
        }
    }

    #[test]
    fn origins_are_exact() {
        for good in [
            "https://stage.example",
            "http://localhost:3000",
            "https://[::1]:8443",
            "chrome-extension://abc",
        ] {
            assert_eq!(parse_origin(good).as_deref(), Some(good));
        }
        for bad in [
            "null",
            "*",
            "https://",
            "https://a/",
            "https://A",
            "HTTPS://a",
            "https://a:443",
            "http://a:80",
            "https://*.a",
            "//a",
            "1x://a",
            "https://a?b",
            "https://u@a",
        ] {
            assert_eq!(parse_origin(bad), None, "{bad}");
        }
    }
}
