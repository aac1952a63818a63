//! Where the looks of `--watch` go: over each other on a terminal, below each other elsewhere.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::tcgetwinsize;

/// The terminal's other screen, without its cursor; and back (ECMA-48, and xterm's private modes 1049 and 25).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// To the upper left corner; to the end of the line; to the end of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// Rows and columns where the terminal does not tell.
const USUAL: (usize, usize) = (24, 80);

/// Standard output. A terminal is as it was when this is dropped.
#[derive(Debug)]
pub(super) struct Screen {
    is_terminal: bool,
    is_entered: bool,
    /// JSON has no space between its lines.
    is_json: bool,
}

impl Screen {
    pub(super) fn new(is_json: bool) -> Self {
        Self {
            is_terminal: !is_json && io::stdout().is_terminal(),
            is_entered: false,
            is_json,
        }
    }

    /// Shows what was seen last, in one write.
    pub(super) fn show(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.is_terminal {
            let size = tcgetwinsize(io::stdout()).ok();
            let size = size
                .filter(|size| size.ws_row > 0 && size.ws_col > 0)
                .map_or(USUAL, |size| (size.ws_row.into(), size.ws_col.into()));
            let enter = if self.is_entered { "" } else { ENTER };
            self.is_entered = true;
            out.write_all(format!("{enter}{}", frame(text, size)).as_bytes())?;
        } else {
            out.write_all(text.as_bytes())?;
            if !self.is_json {
                out.write_all(b"\n")?;
            }
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_entered {
            // A terminal that is gone needs nothing.
            let _ = io::stdout().lock().write_all(LEAVE.as_bytes());
        }
    }
}

/// The text over what was there before. Each line replaces the one below it, so that nothing is blank in between, and what
/// does not fit is left out, so that nothing scrolls.
fn frame(text: &str, (rows, columns): (usize, usize)) -> String {
    let lines: Vec<String> = text
        .lines()
        .take(rows)
        .map(|line| line.chars().take(columns).collect::<String>() + CLEAR_LINE)
        .collect();
    format!("{HOME}{}{CLEAR_REST}", lines.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_its_screen_and_clears_no_more_than_it_must() {
        let framed = frame("one\ntwo and more\nthree\nfour\n", (3, 7));
        assert_eq!(
            framed,
            "\x1b[Hone\x1b[K\r\ntwo and\x1b[K\r\nthree\x1b[K\x1b[J"
        );
        assert!(!framed.contains("\x1b[2J"));
    }
}
