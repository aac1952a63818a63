//! A strict JSON reader that knows where it is.
//!
//! It pulls: the caller says what it expects next, so a million directory entries never become a tree. A value of the
//! wrong kind is reported and skipped, and reading goes on; a syntax fault is reported and ends it ([`Stopped`]).
//! Duplicate members, lone surrogates, control characters, deep nesting and text after the root are refused.

use std::borrow::Cow;

use crate::report::{Report, clipped, nearest, quoted};

/// Deepest nesting, as in Memory messages (`docs/protocol.md` section 2).
const MAX_DEPTH: usize = 64;

/// Reading cannot go on; the fault is in the report already.
#[derive(Debug)]
pub(crate) struct Stopped;

/// A value, or `None` when what stood there was reported and skipped.
pub(crate) type Read<T> = Result<Option<T>, Stopped>;

/// One member of a fixed object: its name, and whether it must be there.
pub(crate) type Member = (&'static str, bool);

/// A step from the root to the value being read.
#[derive(Debug)]
enum Step<'a> {
    Member(Cow<'a, str>),
    Element(usize),
}

/// The reader.
#[derive(Debug)]
pub(crate) struct Json<'r, 'a> {
    pub(crate) report: &'r mut Report<'a>,
    text: &'a str,
    at: usize,
    path: Vec<Step<'a>>,
}

impl<'r, 'a> Json<'r, 'a> {
    pub(crate) fn new(report: &'r mut Report<'a>, text: &'a str) -> Self {
        Self {
            report,
            text,
            at: 0,
            path: Vec::new(),
        }
    }

    /// Checks that nothing but white space follows the root.
    pub(crate) fn end(&mut self) -> Result<(), Stopped> {
        self.blank();
        if self.at < self.text.len() {
            return Err(self.stop("text after the end", "nothing more"));
        }
        Ok(())
    }

    /// Where the next value starts: for faults found after it was read.
    pub(crate) fn place(&mut self) -> usize {
        self.blank();
        self.at
    }

    /// Reads an object with fixed members; unknown, duplicate and missing ones are reported. `visit` reads the value
    /// of each known member. `None` when it is no object.
    pub(crate) fn members(
        &mut self,
        members: &[Member],
        mut visit: impl FnMut(&mut Self, &str) -> Result<(), Stopped>,
    ) -> Read<()> {
        let start = self.place();
        let mut seen: Vec<Cow<'a, str>> = Vec::new();
        let read = self.map("an object", |json, name, offset| {
            if seen.contains(name) {
                json.fault_here(offset, "a duplicate member", "each member once");
                return json.skip().map(drop);
            }
            seen.push(name.clone());
            if members.iter().any(|(known, _)| known == name) {
                return visit(json, name);
            }
            let near = nearest(name, members.iter().map(|(known, _)| *known)).unwrap_or_default();
            let key = json.key();
            let value = json.skip()?;
            let allowed = format!("a known member, the nearest is {near}");
            json.report.fault(
                offset,
                key,
                format!("an unknown member (= {value})"),
                allowed,
            );
            Ok(())
        })?;
        if read.is_some() {
            let own = self.key();
            for (name, _) in members
                .iter()
                .filter(|(name, required)| *required && !seen.iter().any(|seen| seen == name))
            {
                let key = if own.is_empty() {
                    (*name).to_owned()
                } else {
                    format!("{own}.{name}")
                };
                self.report
                    .fault(start, key, "nothing", "this member, it is required");
            }
        }
        Ok(read)
    }

    /// Reads an object with any members; `visit` gets each name and its offset, reads the value, and looks after
    /// duplicates. `None` when it is no object.
    pub(crate) fn map(
        &mut self,
        allowed: &str,
        mut visit: impl FnMut(&mut Self, &Cow<'a, str>, usize) -> Result<(), Stopped>,
    ) -> Read<()> {
        if !self.opens('{', allowed)? {
            return Ok(None);
        }
        let mut first = true;
        while self.another('}', &mut first)? {
            let offset = self.at;
            if self.peek() != Some('"') {
                return Err(self.stop(&self.shown_character(), "a member name in double quotes"));
            }
            let name = self.quoted_string()?;
            self.blank();
            self.token(':')?;
            self.enter(Step::Member(name.clone()))?;
            visit(self, &name, offset)?;
            self.path.pop();
        }
        Ok(Some(()))
    }

    /// Reads an array; `visit` reads each element. `None` when it is none.
    pub(crate) fn array(
        &mut self,
        allowed: &str,
        mut visit: impl FnMut(&mut Self, usize) -> Result<(), Stopped>,
    ) -> Read<()> {
        if !self.opens('[', allowed)? {
            return Ok(None);
        }
        let mut first = true;
        let mut index = 0;
        while self.another(']', &mut first)? {
            self.enter(Step::Element(index))?;
            visit(self, index)?;
            self.path.pop();
            index += 1;
        }
        Ok(Some(()))
    }

    /// Reads a string that `parse` accepts.
    pub(crate) fn string<T>(
        &mut self,
        allowed: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Read<T> {
        let offset = self.place();
        if self.peek() != Some('"') {
            return self.refuse_next(allowed);
        }
        let text = self.quoted_string()?;
        let parsed = parse(&text);
        if parsed.is_none() {
            self.fault_here(offset, &quoted(&text), allowed);
        }
        Ok(parsed)
    }

    /// Reads an integer of `min..=max`.
    pub(crate) fn integer(&mut self, min: u64, max: u64) -> Read<u64> {
        self.integer_or("", min, max)
    }

    /// As [`Json::integer`], with what else the caller takes named in the report.
    pub(crate) fn integer_or(&mut self, other: &str, min: u64, max: u64) -> Read<u64> {
        let allowed = || {
            let range = if min == max {
                min.to_string()
            } else {
                format!("{min}..={max}")
            };
            if other.is_empty() {
                range
            } else {
                format!("{range} or {other}")
            }
        };
        let offset = self.place();
        if !self
            .peek()
            .is_some_and(|next| next == '-' || next.is_ascii_digit())
        {
            return self.refuse_next(&allowed());
        }
        let text = self.number()?;
        let number = text
            .parse()
            .ok()
            .filter(|number| (min..=max).contains(number));
        if number.is_none() {
            self.fault_here(offset, &clipped(text), &allowed());
        }
        Ok(number)
    }

    /// Reads `true` or `false`.
    pub(crate) fn boolean(&mut self) -> Read<bool> {
        self.blank();
        match self.peek() {
            Some('t') => self.word("true").map(|()| Some(true)),
            Some('f') => self.word("false").map(|()| Some(false)),
            _ => self.refuse_next("true or false"),
        }
    }

    /// Takes a `null` if that is what comes next.
    pub(crate) fn null(&mut self) -> Result<bool, Stopped> {
        self.blank();
        if self.peek() != Some('n') {
            return Ok(false);
        }
        self.word("null").map(|()| true)
    }

    /// Whether a number comes next.
    pub(crate) fn is_number(&mut self) -> bool {
        self.blank();
        self.peek()
            .is_some_and(|next| next == '-' || next.is_ascii_digit())
    }

    /// Reads any value, strictly, and says what it was.
    pub(crate) fn skip(&mut self) -> Result<String, Stopped> {
        self.blank();
        let shown = match self.peek() {
            Some('{') => {
                let mut seen: Vec<Cow<'a, str>> = Vec::new();
                self.map("", |json, name, offset| {
                    if seen.contains(name) {
                        json.fault_here(offset, "a duplicate member", "each member once");
                    }
                    seen.push(name.clone());
                    json.skip().map(drop)
                })?;
                "an object".to_owned()
            }
            Some('[') => {
                self.array("", |json, _| json.skip().map(drop))?;
                "an array".to_owned()
            }
            Some('"') => quoted(&self.quoted_string()?),
            Some('t') => self.word("true").map(|()| "true".to_owned())?,
            Some('f') => self.word("false").map(|()| "false".to_owned())?,
            Some('n') => self.word("null").map(|()| "null".to_owned())?,
            Some(next) if next == '-' || next.is_ascii_digit() => clipped(self.number()?),
            _ => return Err(self.stop(&self.shown_character(), "a JSON value")),
        };
        Ok(shown)
    }

    /// Reports a fault of the value whose path is the current one.
    pub(crate) fn fault_here(&mut self, offset: usize, found: &str, allowed: &str) {
        let key = self.key();
        self.report.fault(offset, key, found, allowed);
    }

    /// Skips the next value and reports it as not allowed.
    fn refuse_next<T>(&mut self, allowed: &str) -> Read<T> {
        let (offset, key) = (self.place(), self.key());
        let found = self.skip()?;
        self.report.fault(offset, key, found, allowed);
        Ok(None)
    }

    /// Takes the opening bracket, or reports and skips what stands there.
    fn opens(&mut self, bracket: char, allowed: &str) -> Result<bool, Stopped> {
        self.blank();
        if self.peek() != Some(bracket) {
            return self.refuse_next::<()>(allowed).map(|_| false);
        }
        self.at += 1;
        Ok(true)
    }

    /// Moves to the next entry of an object or array; `false` at its closing bracket, which is taken.
    fn another(&mut self, closing: char, first: &mut bool) -> Result<bool, Stopped> {
        self.blank();
        if self.peek() == Some(closing) {
            self.at += 1;
            return Ok(false);
        }
        if !std::mem::replace(first, false) {
            self.token(',')?;
            self.blank();
            if self.peek() == Some(closing) {
                return Err(self.stop("a comma before the end", "no trailing comma"));
            }
        }
        Ok(true)
    }

    fn enter(&mut self, step: Step<'a>) -> Result<(), Stopped> {
        self.path.push(step);
        if self.path.len() > MAX_DEPTH {
            return Err(self.stop("nesting that is too deep", "64 levels"));
        }
        Ok(())
    }

    /// A string with its quotes, escapes resolved.
    fn quoted_string(&mut self) -> Result<Cow<'a, str>, Stopped> {
        self.at += 1;
        let start = self.at;
        let mut owned: Option<String> = None;
        loop {
            let run = self.rest();
            let plain = run
                .find(|next: char| next == '"' || next == '\\' || next < ' ')
                .unwrap_or(run.len());
            let (plain, after) = run.split_at_checked(plain).unwrap_or((run, ""));
            self.at += plain.len();
            if let Some(text) = &mut owned {
                text.push_str(plain);
            }
            match after.chars().next() {
                Some('"') => {
                    let end = self.at;
                    self.at += 1;
                    let whole = || self.text.get(start..end).unwrap_or_default();
                    return Ok(owned.map_or_else(|| Cow::Borrowed(whole()), Cow::Owned));
                }
                Some('\\') => {
                    let before = self.text.get(start..self.at).unwrap_or_default();
                    let escaped = self.escape()?;
                    owned.get_or_insert_with(|| before.to_owned()).push(escaped);
                }
                Some(_) => return Err(self.stop("a control character in a string", "its escape")),
                None => {
                    return Err(
                        self.stop("the end of the file inside a string", "its closing quote")
                    );
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, Stopped> {
        let start = self.at;
        self.at += 1;
        let kind = self.peek();
        let simple = match kind {
            Some(same @ ('"' | '\\' | '/')) => same,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                self.at += 1;
                return self.unicode_escape(start);
            }
            _ => {
                self.at = start;
                return Err(self.stop(
                    "an unknown escape",
                    "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX",
                ));
            }
        };
        self.at += 1;
        Ok(simple)
    }

    /// The character of `\uXXXX`, with its second half where it needs one.
    fn unicode_escape(&mut self, start: usize) -> Result<char, Stopped> {
        let high = self.four_digits(start)?;
        if let Some(character) = char::from_u32(high) {
            return Ok(character);
        }
        if (0xd800..0xdc00).contains(&high) && self.rest().starts_with("\\u") {
            self.at += 2;
            let low = self.four_digits(start)?;
            if (0xdc00..0xe000).contains(&low) {
                let joined = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(joined).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        self.at = start;
        Err(self.stop("half a surrogate pair", "both halves"))
    }

    fn four_digits(&mut self, start: usize) -> Result<u32, Stopped> {
        let digits = self
            .rest()
            .get(..4)
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let Some(number) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else {
            self.at = start;
            return Err(self.stop("an incomplete \\u escape", "four hexadecimal digits"));
        };
        self.at += 4;
        Ok(number)
    }

    /// The text of a number that follows the grammar of RFC 8259 section 6.
    fn number(&mut self) -> Result<&'a str, Stopped> {
        let start = self.at;
        let rest = self.rest();
        let len = rest
            .find(|next: char| !(next.is_ascii_alphanumeric() || "+-.".contains(next)))
            .unwrap_or(rest.len());
        let text = rest.get(..len).unwrap_or_default();
        if !is_number(text) {
            let shown = clipped(text);
            return Err(self.stop(&shown, "a JSON number"));
        }
        self.at = start + len;
        Ok(text)
    }

    fn word(&mut self, word: &str) -> Result<(), Stopped> {
        if !self.rest().starts_with(word) {
            return Err(self.stop(&self.shown_character(), "a JSON value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn token(&mut self, character: char) -> Result<(), Stopped> {
        if self.peek() != Some(character) {
            return Err(self.stop(&self.shown_character(), &format!("\"{character}\"")));
        }
        self.at += character.len_utf8();
        Ok(())
    }

    fn blank(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn shown_character(&self) -> String {
        self.peek()
            .map_or("the end of the file".to_owned(), |next| {
                quoted(next.encode_utf8(&mut [0; 4]))
            })
    }

    /// Reports a syntax fault where the reader stands.
    fn stop(&mut self, found: &str, allowed: &str) -> Stopped {
        self.fault_here(self.at, found, allowed);
        Stopped
    }

    /// The path of the value being read, such as `toolsheds[2].did`.
    pub(crate) fn key(&self) -> String {
        let mut key = String::new();
        for step in &self.path {
            match step {
                Step::Member(name) => {
                    if !key.is_empty() {
                        key.push('.');
                    }
                    key.push_str(&clipped(name));
                }
                Step::Element(index) => key.push_str(&format!("[{index}]")),
            }
        }
        key
    }
}

/// Whether `text` is a JSON number: no leading zero, no bare point, no plus sign in front.
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (
            mantissa,
            Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)),
        ),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(digits)
}
