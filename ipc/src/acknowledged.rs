//! What the kernel knows of the far end of a TCP connection.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// How long ago the far end last acknowledged anything on a TCP socket, in whole milliseconds of the kernel's clock. Its kernel
/// does so, whether or not its program reads.
///
/// # Errors
/// When the descriptor is no TCP socket, or the kernel does not tell.
#[allow(
    unsafe_code,
    reason = "TCP_INFO, which no wrapper in use here offers safely"
)]
pub fn since_acknowledged(socket: BorrowedFd<'_>) -> io::Result<Duration> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointers are to `info` and `len`, which live through the call, and `len` is the size of `info`: the kernel
    // writes no more than that.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let needed = offset_of!(libc::tcp_info, tcpi_last_ack_recv) + size_of::<u32>();
    if (len as usize) < needed {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: `tcp_info` is integers alone, for which every bit pattern is a value, and it was zeroed.
    let info = unsafe { info.assume_init() };
    Ok(Duration::from_millis(u64::from(info.tcpi_last_ack_recv)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_acknowledgement_begins_the_count_anew() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut quiet = Duration::ZERO;
        while quiet < Duration::from_millis(100) {
            std::thread::yield_now();
            quiet = since_acknowledged(near.as_fd()).unwrap();
        }
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
        // The answer carries an acknowledgement.
        far.write_all(b"y").unwrap();
        near.read_exact(&mut [0]).unwrap();
        assert!(since_acknowledged(near.as_fd()).unwrap() < quiet);
    }

    #[test]
    fn what_is_no_tcp_socket_is_an_error() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(since_acknowledged(one.as_fd()).is_err());
    }
}
