//! What can be wrong with a JSON text, and where.

/// A rule of strict JSON that a text breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JsonFault {
    /// The text is longer than its bound.
    TooLong,
    /// The text is not UTF-8.
    InvalidUtf8,
    /// The text is not JSON.
    Syntax,
    /// An object has the same key twice, once escapes are undone.
    DuplicateKey,
    /// A string escape names half of a surrogate pair.
    LoneSurrogate,
    /// A key is `__proto__`, `constructor` or `prototype`.
    ForbiddenKey,
    /// A number is too large to be finite.
    NumberRange,
    /// Values are nested too deeply.
    Depth,
    /// There are too many values.
    Slots,
    /// Something other than white space follows the root.
    Trailing,
}

impl JsonFault {
    /// The fixed reason of this fault, the same in log, metric and test.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::TooLong => "json-too-long",
            Self::InvalidUtf8 => "invalid-utf8",
            Self::Syntax => "json-syntax",
            Self::DuplicateKey => "json-duplicate-key",
            Self::LoneSurrogate => "json-lone-surrogate",
            Self::ForbiddenKey => "json-forbidden-key",
            Self::NumberRange => "json-number-range",
            Self::Depth => "json-depth",
            Self::Slots => "json-slots",
            Self::Trailing => "json-trailing",
        }
    }
}

/// A broken rule and the byte at which it was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} at byte {offset}", fault.reason())]
pub struct JsonError {
    /// The rule.
    pub fault: JsonFault,
    /// Offset in bytes from the start of the text; for rules about a whole container, somewhere inside or just behind it.
    pub offset: usize,
}

impl JsonError {
    /// A fault found at `offset`.
    pub const fn new(fault: JsonFault, offset: usize) -> Self {
        Self { fault, offset }
    }

    /// The fixed reason of the fault.
    pub const fn reason(&self) -> &'static str {
        self.fault.reason()
    }
}

/// Which rule the grammar itself found broken.
///
/// serde_json tells these cases apart in its message alone; the tests of this crate hold the messages still.
pub(super) fn grammar_fault(error: &serde_json::Error) -> JsonFault {
    let message = error.to_string();
    if message.starts_with("lone leading surrogate")
        || message.starts_with("unexpected end of hex escape")
    {
        JsonFault::LoneSurrogate
    } else if message.starts_with("number out of range") {
        JsonFault::NumberRange
    } else if message.starts_with("recursion limit exceeded") {
        JsonFault::Depth
    } else {
        JsonFault::Syntax
    }
}

/// Byte offset of the line and column that serde_json reports, both counted from one.
pub(super) fn offset(text: &str, error: &serde_json::Error) -> usize {
    let lines_before = error.line().saturating_sub(1);
    let line_start: usize = text
        .split_inclusive('\n')
        .take(lines_before)
        .map(str::len)
        .sum();
    line_start
        .saturating_add(error.column().saturating_sub(1))
        .min(text.len())
}
