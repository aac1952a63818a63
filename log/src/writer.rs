//! Standard error as a place that may fail.

use std::io::{self, Stderr, Write};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// A way into this process's log on standard error. For `tracing-subscriber`, `.with_writer(memory_log::stderr)`.
///
/// One line is one `write`. None fails: what cannot be written is dropped and counted, and the next line that can be written
/// carries the count as its last member, `lost_lines`.
#[must_use]
pub fn stderr() -> Line<'static, Stderr> {
    LOG.line()
}

/// How many lines of this process's log could not be written, since it started.
#[must_use]
pub fn lost_lines() -> u64 {
    LOG.state().lost_in_all
}

static LOG: LazyLock<LogWriter<Stderr>> = LazyLock::new(|| LogWriter::new(io::stderr()));

/// Where log lines go.
#[derive(Debug)]
struct LogWriter<W> {
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    out: W,
    /// Lines dropped since the last one that was written whole.
    lost: u64,
    /// Lines dropped ever.
    lost_in_all: u64,
    /// The last thing written is the beginning of a line.
    is_torn: bool,
}

impl<W: Write> LogWriter<W> {
    fn new(out: W) -> Self {
        Self {
            state: Mutex::new(State {
                out,
                lost: 0,
                lost_in_all: 0,
                is_torn: false,
            }),
        }
    }

    fn line(&self) -> Line<'_, W> {
        Line(self)
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write> State<W> {
    fn take(&mut self, line: &[u8]) {
        let mut text = Vec::with_capacity(line.len() + 32);
        if self.is_torn {
            text.push(b'\n');
        }
        match line.strip_suffix(b"}\n") {
            Some(object) if self.lost > 0 => {
                text.extend_from_slice(object);
                text.extend_from_slice(format!(",\"lost_lines\":{}}}\n", self.lost).as_bytes());
            }
            _ => text.extend_from_slice(line),
        }
        if self.write(&text) {
            self.lost = 0;
        } else {
            self.lost = self.lost.saturating_add(1);
            self.lost_in_all = self.lost_in_all.saturating_add(1);
        }
    }

    /// Whether all of it was written.
    fn write(&mut self, mut text: &[u8]) -> bool {
        while !text.is_empty() {
            match self.out.write(text) {
                Ok(0) => return false,
                Ok(length) => {
                    text = text.get(length..).unwrap_or_default();
                    self.is_torn = !text.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// One line's way into the log.
#[derive(Debug)]
pub struct Line<'a, W>(&'a LogWriter<W>);

impl<W: Write> Write for Line<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.state().take(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a number of bytes and fails then, until it is given room.
    #[derive(Default)]
    struct Disk {
        room: usize,
        written: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = bytes.len().min(self.room);
            if length == 0 {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.room -= length;
            self.written.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn write(log: &LogWriter<Disk>, line: &str) {
        log.line().write_all(line.as_bytes()).unwrap();
    }

    fn written(log: &LogWriter<Disk>) -> String {
        String::from_utf8(log.state().out.written.clone()).unwrap()
    }

    #[test]
    fn lost_lines_are_counted_in_the_next_that_is_written() {
        let log = LogWriter::new(Disk::default());
        write(&log, "{\"n\":1}\n");
        write(&log, "{\"n\":2}\n");
        log.state().out.room = 1000;
        write(&log, "{\"n\":3}\n");
        write(&log, "{\"n\":4}\n");
        assert_eq!(written(&log), "{\"n\":3,\"lost_lines\":2}\n{\"n\":4}\n");
        assert_eq!(log.state().lost_in_all, 2);
    }

    #[test]
    fn half_a_line_ends_before_the_next_begins() {
        let log = LogWriter::new(Disk::default());
        log.state().out.room = 3;
        write(&log, "{\"n\":1}\n");
        log.state().out.room = 1000;
        write(&log, "{\"n\":2}\n");
        assert_eq!(written(&log), "{\"n\n{\"n\":2,\"lost_lines\":1}\n");
    }
}
