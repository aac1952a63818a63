//! The lines that a program under test writes, kept and waited for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::GateError;
use crate::error::DEADLINE;

/// Every line so far: JSON lines parsed, others as strings.
#[derive(Debug)]
pub struct Log {
    lines: Mutex<Vec<Value>>,
    /// How many there are; closed when the program's stream ended.
    count: watch::Sender<usize>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            lines: Mutex::default(),
            count: watch::Sender::new(0),
        }
    }
}

impl Log {
    /// Collects lines until the stream ends.
    pub async fn collect(&self, stream: impl AsyncRead + Unpin) {
        let mut lines = BufReader::new(stream).lines();
        // A stream that cannot be read any more has ended.
        while let Ok(Some(line)) = lines.next_line().await {
            let line = match serde_json::from_str(&line) {
                Ok(Value::Object(line)) => Value::Object(line),
                _ => Value::String(line),
            };
            let mut lines = self.lines();
            lines.push(line);
            self.count.send_replace(lines.len());
        }
    }

    /// How many lines there are: a mark to search from.
    pub fn mark(&self) -> usize {
        self.lines().len()
    }

    /// The lines from a mark on that fulfil a condition.
    pub fn select(&self, mark: usize, condition: impl Fn(&Value) -> bool) -> Vec<Value> {
        let lines = self.lines();
        let lines = lines.iter().skip(mark);
        lines.filter(|line| condition(line)).cloned().collect()
    }

    /// The first line from a mark on that fulfils a condition, as soon as there is one.
    ///
    /// # Errors
    /// When none came in time, with the last lines that did.
    pub async fn wait(
        &self,
        what: &str,
        mark: usize,
        condition: impl Fn(&Value) -> bool,
    ) -> Result<Value, GateError> {
        self.wait_for(what, mark, DEADLINE, condition).await
    }

    /// The same with a deadline of its own.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub async fn wait_for(
        &self,
        what: &str,
        mark: usize,
        deadline: Duration,
        condition: impl Fn(&Value) -> bool,
    ) -> Result<Value, GateError> {
        let mut count = self.count.subscribe();
        let mut seen = mark;
        let search = async {
            loop {
                let next = *count.borrow_and_update();
                if let Some(line) = self.select(seen, &condition).into_iter().next() {
                    return Some(line);
                }
                seen = seen.max(next);
                count.changed().await.ok()?;
            }
        };
        match timeout(deadline, search).await {
            Ok(Some(line)) => Ok(line),
            _ => Err(GateError::new("log", what, self.tail(mark))),
        }
    }

    /// The last lines from a mark on, for a message.
    pub fn tail(&self, mark: usize) -> String {
        const MOST: usize = 12;
        let lines = self.lines();
        let first = mark.max(lines.len().saturating_sub(MOST));
        let lines: Vec<String> = lines.iter().skip(first).map(Value::to_string).collect();
        if lines.is_empty() {
            return "no line".to_owned();
        }
        format!("\n  {}", lines.join("\n  "))
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Value>> {
        // Nothing panics while it holds the lock.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a log line has a member with this text.
pub fn has(line: &Value, member: &str, text: &str) -> bool {
    line.get(member).and_then(Value::as_str) == Some(text)
}
