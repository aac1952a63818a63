//! What the kernel tells about the processes under test, from outside them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddr;

use crate::{Context, GateError};

/// A process as its parent started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its ID.
    pub pid: u32,
    /// Its arguments, its own name first.
    pub arguments: Vec<String>,
}

impl Process {
    /// The role of a router process: its first argument.
    pub fn role(&self) -> &str {
        self.arguments.get(1).map_or("", String::as_str)
    }
}

/// The living children of a process.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn children(of: u32) -> Result<Vec<Process>, GateError> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").during("listing /proc")? {
        let entry = entry.during("listing /proc")?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // One that ended meanwhile is no child any more.
        if parent(pid) != Some(of) {
            continue;
        }
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments = arguments
            .split(|byte| *byte == 0)
            .filter(|argument| !argument.is_empty())
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        found.push(Process { pid, arguments });
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

/// The parent of a process that has not ended; one that waits to be reaped has.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses included.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_ascii_whitespace();
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some(parent)
}

/// Whether a process lives.
pub fn lives(pid: u32) -> bool {
    parent(pid).is_some()
}

/// An open descriptor: its number and what it is, in the kernel's words (`socket:[123]`, `/dev/null`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The number.
    pub number: u32,
    /// What it is.
    pub target: String,
}

impl Descriptor {
    /// The inode of a socket.
    pub fn socket(&self) -> Option<u64> {
        let inode = self.target.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse().ok()
    }
}

/// The open descriptors of a process.
///
/// # Errors
/// When the process is gone or may not be looked into.
pub fn descriptors(pid: u32) -> Result<Vec<Descriptor>, GateError> {
    let step = || format!("listing the descriptors of process {pid}");
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).during(step())? {
        let entry = entry.during(step())?;
        let target = match fs::read_link(entry.path()) {
            Ok(target) => target.to_string_lossy().into_owned(),
            // Closed between listing and reading.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).during(step()),
        };
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
            .during(step())?;
        found.push(Descriptor { number, target });
    }
    found.sort_by_key(|descriptor| descriptor.number);
    Ok(found)
}

/// The inode of the server's socket of one TCP connection over IPv4, if it is still open.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn accepted_socket(server: SocketAddr, client: SocketAddr) -> Result<Option<u64>, GateError> {
    let table = fs::read_to_string("/proc/net/tcp").during("reading /proc/net/tcp")?;
    let row = tcp_rows(&table).find(|row| {
        (row.local_port, row.remote_port) == (server.port(), client.port())
            && row.state != TCP_LISTEN
    });
    Ok(row.map(|row| row.inode))
}

/// The inodes of every TCP socket of this host.
///
/// # Errors
/// When the kernel's tables cannot be read.
pub fn tcp_sockets() -> Result<BTreeSet<u64>, GateError> {
    let mut found = BTreeSet::new();
    for table in TCP_TABLES {
        found.extend(tcp_rows(&read_table(table)?).map(|row| row.inode));
    }
    Ok(found)
}

/// The inodes of every listening socket of this host: TCP over IPv4 and IPv6, and UNIX.
///
/// # Errors
/// When the kernel's tables cannot be read.
pub fn listening_sockets() -> Result<BTreeSet<u64>, GateError> {
    let mut found = BTreeSet::new();
    for table in TCP_TABLES {
        found.extend(
            tcp_rows(&read_table(table)?)
                .filter(|row| row.state == TCP_LISTEN)
                .map(|row| row.inode),
        );
    }
    let unix = fs::read_to_string("/proc/net/unix").during("reading /proc/net/unix")?;
    // Num RefCount Protocol Flags Type St Inode Path
    found.extend(unix.lines().skip(1).filter_map(|row| {
        let words: Vec<&str> = row.split_ascii_whitespace().collect();
        let flags = u32::from_str_radix(words.get(3)?, 16).ok()?;
        let inode: u64 = words.get(6)?.parse().ok()?;
        (flags & UNIX_ACCEPTS != 0).then_some(inode)
    }));
    Ok(found)
}

/// Reads a table that a kernel without IPv6 may lack.
fn read_table(path: &str) -> Result<String, GateError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        table => table.during(format!("reading {path}")),
    }
}

const TCP_TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// `TCP_LISTEN` of the kernel's `tcp_states.h`.
const TCP_LISTEN: u8 = 0x0a;

/// `__SO_ACCEPTCON` of the kernel's `net.h`.
const UNIX_ACCEPTS: u32 = 1 << 16;

struct TcpRow {
    local_port: u16,
    remote_port: u16,
    state: u8,
    inode: u64,
}

/// Rows of `/proc/net/tcp`: sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
fn tcp_rows(table: &str) -> impl Iterator<Item = TcpRow> {
    table.lines().skip(1).filter_map(|row| {
        let words: Vec<&str> = row.split_ascii_whitespace().collect();
        let port = |place: usize| {
            let (_, port) = words.get(place)?.rsplit_once(':')?;
            u16::from_str_radix(port, 16).ok()
        };
        Some(TcpRow {
            local_port: port(1)?,
            remote_port: port(2)?,
            state: u8::from_str_radix(words.get(3)?, 16).ok()?,
            inode: words.get(9)?.parse().ok()?,
        })
    })
}

/// Private memory of a process, KiB. Where the kernel does not show the pages of a process that protects its secrets (to all
/// but root), its anonymous memory stands for them.
///
/// # Errors
/// When the process is gone.
pub fn private_kib(pid: u32) -> Result<u64, GateError> {
    if let Ok(memory) = memory_sandbox::memory_of(pid) {
        return Ok(memory.private_kib);
    }
    let step = || format!("reading the memory of process {pid}");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).during(step())?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.split_ascii_whitespace().next())
        .and_then(|number| number.parse().ok())
        .during(step())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_this_process_and_what_it_holds() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let inode =
            accepted_socket(server.local_addr().unwrap(), client.local_addr().unwrap()).unwrap();
        let own: Vec<u64> = descriptors(std::process::id())
            .unwrap()
            .iter()
            .filter_map(Descriptor::socket)
            .collect();
        assert!(own.contains(&inode.unwrap()), "{own:?}");
        let listening = listening_sockets().unwrap();
        assert_eq!(own.iter().filter(|own| listening.contains(own)).count(), 1);
        assert!(private_kib(std::process::id()).unwrap() > 0);
        assert!(lives(std::process::id()));
    }
}
