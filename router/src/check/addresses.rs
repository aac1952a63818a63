//! Where the router listens, and whom it believes.

use std::net::{IpAddr, SocketAddr};

use memory_config::Network;
use rustix::io::Errno;
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};

use super::finding::Finding;
use super::running;
use super::subject::{Reach, Subject};

/// Addresses by themselves.
pub(super) fn settings(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    let config = subject.config;
    if subject.is_sound(&["listen"]) {
        for (index, address) in config.listen.iter().enumerate() {
            let earlier = config.listen.iter().take(index);
            let taken = earlier
                .into_iter()
                .find(|other| overlap(**other, *address, &config.listen));
            if let Some(other) = taken {
                findings.push(
                    subject
                        .at(
                            &format!("listen[{index}]"),
                            Finding::error("two listeners want one address"),
                        )
                        .found(format!("{address}, beside {other}"))
                        .allowed("each address and port once")
                        .mend("keep the more general of the two"),
                );
            }
        }
        if let Some(metrics) = config.metrics_listen
            && subject.is_sound(&["metrics_listen"])
            && config
                .listen
                .iter()
                .any(|address| overlap(*address, metrics, &config.listen))
        {
            findings.push(
                subject
                    .at(
                        "metrics_listen",
                        Finding::error("two listeners want one address"),
                    )
                    .found(format!("{metrics}, which listen has too"))
                    .allowed("another port than those of listen")
                    .mend("change metrics_listen"),
            );
        }
    }
    everybody(
        subject,
        "proxy_trusted",
        &config.proxy_trusted,
        "may claim to be any source",
        findings,
    );
    everybody(
        subject,
        "penalties.exempt",
        &config.penalties.exempt,
        "is never made to wait",
        findings,
    );
    let prefix = config.limits.ipv6_prefix;
    if prefix > 64 && subject.is_sound(&["limits.ipv6_prefix"]) {
        findings.push(
            subject
                .at("limits.ipv6_prefix", Finding::warning("a source is less than what one client has"))
                .found(prefix.to_string())
                .allowed("at most 64: every client has a /64, and an address of its own for each connection")
                .mend("set limits.ipv6_prefix to 64 or less"),
        );
    }
}

/// A list that names the whole address space is no list.
fn everybody(
    subject: &Subject<'_>,
    key: &str,
    networks: &[Network],
    effect: &str,
    findings: &mut Vec<Finding>,
) {
    if !subject.is_sound(&[key]) {
        return;
    }
    for (index, network) in networks
        .iter()
        .enumerate()
        .filter(|(_, network)| network.prefix == 0)
    {
        findings.push(
            subject
                .at(
                    &format!("{key}[{index}]"),
                    Finding::warning("a list of few names everybody"),
                )
                .found(format!("{network}: everybody {effect}"))
                .allowed("the networks that are meant")
                .mend("name the networks one by one"),
        );
    }
}

/// Whether both cannot be listened on at once, beside the others of the list. `[::]` takes IPv4 too, unless the port is
/// listed for IPv4 by itself.
fn overlap(one: SocketAddr, other: SocketAddr, all: &[SocketAddr]) -> bool {
    let covers =
        |wide: IpAddr, narrow: IpAddr| wide.is_unspecified() && wide.is_ipv4() == narrow.is_ipv4();
    let same =
        one.ip() == other.ip() || covers(one.ip(), other.ip()) || covers(other.ip(), one.ip());
    let listed = |address: SocketAddr| all.contains(&address);
    // An IPv4 address that is not of the list, against `[::]`.
    let dual = |wide: SocketAddr, narrow: SocketAddr| {
        wide.ip().is_unspecified()
            && wide.is_ipv6()
            && narrow.is_ipv4()
            && !listed(narrow)
            && !all
                .iter()
                .any(|address| address.is_ipv4() && address.port() == wide.port())
    };
    one.port() == other.port() && (same || dual(one, other) || dual(other, one))
}

/// Whether each address can be had now. The socket is bound and never listens: who listens at the same moment succeeds.
pub(super) fn availability(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    if subject.reach == Reach::Files {
        return;
    }
    let config = subject.config;
    let running = running::is_running(&config.ipc_dir);
    let public = config.listen.iter().enumerate();
    let public = public.map(|(index, address)| (format!("listen[{index}]"), *address));
    let metrics = config.metrics_listen.into_iter();
    let metrics = metrics.map(|address| ("metrics_listen".to_owned(), address));
    for (key, address) in public.chain(metrics) {
        if !subject.is_sound(&[key.split('[').next().unwrap_or_default()]) {
            continue;
        }
        let Err(errno) = try_bind(address, &config.listen) else {
            continue;
        };
        let (finding, mend) = match errno {
            Errno::ADDRINUSE if running => (
                Finding::warning("the address is in use, by the router that runs here as it seems"),
                "nothing, if that router is to take this configuration",
            ),
            Errno::ADDRINUSE => (
                Finding::error("the address is in use"),
                "stop who listens there, or choose another address",
            ),
            Errno::ADDRNOTAVAIL => (
                Finding::error("the address is not of this host"),
                "correct the address, or check on the host that it belongs to",
            ),
            Errno::ACCESS | Errno::PERM => (
                Finding::warning("this user may not listen there"),
                "check as the user that runs the router, or give it CAP_NET_BIND_SERVICE",
            ),
            _ => (
                Finding::error("the address cannot be had"),
                "choose another address",
            ),
        };
        findings.push(
            subject
                .at(&key, finding)
                .found(format!("{address}: {}", std::io::Error::from(errno)))
                .allowed("an address of this host that nobody listens on")
                .mend(mend),
        );
    }
}

fn try_bind(address: SocketAddr, all: &[SocketAddr]) -> Result<(), Errno> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )?;
    set_socket_reuseaddr(&socket, true)?;
    let ipv4_too = all
        .iter()
        .any(|other| other.is_ipv4() && other.port() == address.port());
    if address.is_ipv6() && ipv4_too {
        set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_listeners_are_known() {
        let overlaps = |one: &str, other: &str| {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            overlap(one, other, &[one, other])
        };
        assert!(overlaps("0.0.0.0:1", "10.0.0.1:1"));
        assert!(overlaps("[::1]:1", "[::]:1"));
        assert!(!overlaps("0.0.0.0:1", "[::]:1"));
        assert!(!overlaps("0.0.0.0:1", "10.0.0.1:2"));
        assert!(!overlaps("10.0.0.1:1", "10.0.0.2:1"));
        let only = ["[::]:1".parse().unwrap()];
        assert!(overlap(only[0], "127.0.0.1:1".parse().unwrap(), &only));
    }
}
