//! Which frame may come next (RFC 6455 section 5.4).

use super::{FrameFault, FrameHeader, Opcode};

/// Whether a message is open, and of which kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FragmentState {
    /// Between messages.
    #[default]
    Idle,
    /// Inside a text message.
    Text,
    /// Inside a binary message.
    Binary,
}

/// What a frame is to the message it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A control frame: it belongs to no message and leaves the open one as it was.
    Control,
    /// A fragment, or all, of a message.
    Data {
        /// Text or binary, from the first frame of the message.
        kind: Opcode,
        /// Whether it starts the message.
        first: bool,
        /// Whether it ends the message.
        last: bool,
    },
}

impl FragmentState {
    /// Takes up the next frame.
    ///
    /// # Errors
    ///
    /// [`FrameFault::Fragment`] for a continuation while idle, or for a new message inside another.
    pub fn accept(&mut self, header: &FrameHeader) -> Result<Step, FrameFault> {
        let (kind, first) = match (*self, header.opcode) {
            (_, Opcode::Close | Opcode::Ping | Opcode::Pong) => return Ok(Step::Control),
            (Self::Idle, Opcode::Text | Opcode::Binary) => (header.opcode, true),
            (Self::Text, Opcode::Continuation) => (Opcode::Text, false),
            (Self::Binary, Opcode::Continuation) => (Opcode::Binary, false),
            (Self::Idle, Opcode::Continuation)
            | (Self::Text | Self::Binary, Opcode::Text | Opcode::Binary) => {
                return Err(FrameFault::Fragment);
            }
        };
        let last = header.fin;
        *self = match (last, kind) {
            (true, _) => Self::Idle,
            (false, Opcode::Text) => Self::Text,
            (false, _) => Self::Binary,
        };
        Ok(Step::Data { kind, first, last })
    }

    /// Whether a message is open.
    pub const fn is_open(self) -> bool {
        !matches!(self, Self::Idle)
    }
}
