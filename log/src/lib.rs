//! What the executables' logs have in common: a standard error that may fail, and the choice of lines.
//!
//! A log that cannot be written is no reason to stop serving: the disk behind it may be full, or who read the pipe may be
//! gone. [`stderr`] drops such lines, counts them, and says in the next line that can be written how many were lost.
#![forbid(unsafe_code)]

mod level;
mod writer;

pub use level::{LevelError, filter};
pub use writer::{Line, lost_lines, stderr};
