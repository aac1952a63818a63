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

/// Processor time that a process has spent, hundredths of a second.
///
/// # Errors
/// When the process is gone.
pub fn cpu_ticks(pid: u32) -> Result<u64, GateError> {
    let step = || format!("reading the times of process {pid}");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).during(step())?;
    let (_, rest) = stat.rsplit_once(')').during(step())?;
    // utime and stime, fields 14 and 15 of the whole line.
    let times = rest.split_ascii_whitespace().skip(11).take(2);
    times.map(|time| time.parse::<u64>().during(step())).sum()
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

/// Bytes that one end of a TCP connection over IPv4 has received and nobody has read yet.
///
/// # Errors
/// When the kernel's table cannot be read, or has no such socket.
pub fn unread(local: SocketAddr, remote: SocketAddr) -> Result<u64, GateError> {
    let table = fs::read_to_string("/proc/net/tcp").during("reading /proc/net/tcp")?;
    let row = tcp_rows(&table)
        .find(|row| (row.local_port, row.remote_port) == (local.port(), remote.port()));
    row.map(|row| row.unread).during("a socket's queue")
}

/// Bytes that a server on this host has received over IPv4, on all its connections together, and not read yet.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn unread_by_server(port: u16) -> Result<u64, GateError> {
    let table = fs::read_to_string("/proc/net/tcp").during("reading /proc/net/tcp")?;
    let rows = tcp_rows(&table).filter(|row| row.local_port == port && row.state != TCP_LISTEN);
    Ok(rows.map(|row| row.unread).sum())
}

/// Bytes that a process has received from a server on this host over IPv4, on all its connections to it, and not read yet.
///
/// # Errors
/// When the kernel's table cannot be read, or the process is gone.
pub fn unread_by_client(pid: u32, port: u16) -> Result<u64, GateError> {
    let held: BTreeSet<u64> = descriptors(pid)?
        .iter()
        .filter_map(Descriptor::socket)
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").during("reading /proc/net/tcp")?;
    let rows = tcp_rows(&table).filter(|row| row.remote_port == port && held.contains(&row.inode));
    Ok(rows.map(|row| row.unread).sum())
}

/// The inodes of the sockets that a server on this host has accepted over IPv4 and not closed.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn accepted_sockets(port: u16) -> Result<BTreeSet<u64>, GateError> {
    let table = fs::read_to_string("/proc/net/tcp").during("reading /proc/net/tcp")?;
    let rows = tcp_rows(&table).filter(|row| row.local_port == port && row.state != TCP_LISTEN);
    // Those without an inode wait to be accepted, or have been closed.
    Ok(rows
        .map(|row| row.inode)
        .filter(|inode| *inode != 0)
        .collect())
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
    unread: u64,
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
        let (_, unread) = words.get(4)?.split_once(':')?;
        Some(TcpRow {
            unread: u64::from_str_radix(unread, 16).ok()?,
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

/// Private memory of a process in the mapping of its own executable, KiB: relocated tables, mostly.
///
/// # Errors
/// When the process is gone or may not be looked into.
pub fn image_kib(pid: u32) -> Result<u64, GateError> {
    let step = || format!("reading the mappings of process {pid}");
    let image = fs::read_link(format!("/proc/{pid}/exe")).during(step())?;
    let table = fs::read_to_string(format!("/proc/{pid}/smaps")).during(step())?;
    let mut total = 0;
    let mut is_image = false;
    for line in table.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next().unwrap_or_default() {
            "Private_Clean:" | "Private_Dirty:" if is_image => {
                let number = words.next().and_then(|number| number.parse::<u64>().ok());
                total += number.during(step())?;
            }
            // START-END permissions offset device inode path
            word if !word.ends_with(':') => {
                is_image = words.nth(4).is_some_and(|path| image.as_os_str() == path);
            }
            _ => {}
        }
    }
    Ok(total)
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
        let all = private_kib(std::process::id()).unwrap();
        assert!((1..all).contains(&image_kib(std::process::id()).unwrap()));
        assert!(lives(std::process::id()));
    }
}
