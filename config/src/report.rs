//! Collects the faults of one file while it is walked.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{ConfigError, ConfigErrors};
use crate::places::Places;

/// Characters of a found value that are shown; the rest is cut.
const MAX_FOUND_CHARS: usize = 80;

/// Faults of one file that are listed; the rest is counted. A file of a million wrong entries is one problem.
const MAX_FAULTS: usize = 200;

/// The faults of one file, with the text they point into.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    file: &'a Path,
    text: &'a str,
    errors: Vec<ConfigError>,
    /// Faults past `MAX_FAULTS`.
    unlisted: usize,
    /// Lines with a syntax error, where other faults would only repeat it.
    broken_lines: Vec<usize>,
    /// Keys that the file sets: where their value starts, and whether it was accepted.
    keys: BTreeMap<String, Seen>,
}

/// A key as the file set it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    offset: usize,
    accepted: bool,
}

impl<'a> Report<'a> {
    pub(crate) fn new(file: &'a Path, text: &'a str) -> Self {
        Self {
            file,
            text,
            errors: Vec::new(),
            unlisted: 0,
            broken_lines: Vec::new(),
            keys: BTreeMap::new(),
        }
    }

    /// The folder that relative paths of this file start from.
    pub(crate) fn folder(&self) -> &'a Path {
        self.file.parent().unwrap_or(Path::new(""))
    }

    /// Records a syntax error: other faults of its line are not recorded.
    pub(crate) fn syntax_error(
        &mut self,
        offset: usize,
        key: String,
        found: String,
        allowed: &str,
    ) {
        self.add(offset, key, found, allowed.to_owned());
        self.broken_lines.push(position(self.text, offset).0);
    }

    /// Records one fault at a byte offset of the text.
    pub(crate) fn fault(
        &mut self,
        offset: usize,
        key: impl Into<String>,
        found: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let key = key.into();
        self.spoil(&key);
        self.add(offset, key, found.into(), allowed.into());
    }

    /// Notes that the file sets `key`, with the value at `offset`.
    pub(crate) fn sets(&mut self, key: impl Into<String>, offset: usize) {
        let seen = Seen {
            offset,
            accepted: true,
        };
        self.keys.insert(key.into(), seen);
    }

    /// Marks a key whose value is a stand-in because a part of it was refused.
    pub(crate) fn spoil(&mut self, key: &str) {
        if let Some(seen) = self.keys.get_mut(key) {
            seen.accepted = false;
        }
    }

    /// Records a fault between keys, at the first of them that the file sets. `found` and `allowed` speak of the
    /// first key. Nothing is recorded when one of them is already known to be wrong: its value is a stand-in.
    pub(crate) fn conflict(
        &mut self,
        keys: &[&str],
        found: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let seen = |key: &&str| self.keys.get(*key).copied();
        if keys.iter().filter_map(seen).any(|place| !place.accepted) {
            return;
        }
        let offset = keys.iter().find_map(seen).map_or(0, |place| place.offset);
        let mut found = found.into();
        let Some(first) = keys.first() else { return };
        if !self.keys.contains_key(*first) {
            found.push_str(" (the default)");
        }
        // Not `fault`: the key's own value is fine, and must go on counting in other comparisons.
        self.add(offset, (*first).to_owned(), found, allowed.into());
    }

    fn add(&mut self, offset: usize, key: String, found: String, allowed: String) {
        if self.errors.len() >= MAX_FAULTS {
            self.unlisted += 1;
            return;
        }
        let (line, column) = position(self.text, offset);
        if self.broken_lines.contains(&line) {
            return;
        }
        let file = self.file.to_owned();
        self.errors.push(ConfigError {
            file,
            line,
            column,
            key,
            found,
            allowed,
        });
    }

    /// Where the accepted values stand.
    pub(crate) fn places(&self) -> Places {
        let accepted = self.keys.iter().filter(|(_, seen)| seen.accepted);
        Places::new(
            accepted
                .map(|(key, seen)| (key.clone(), position(self.text, seen.offset)))
                .collect(),
        )
    }

    /// Whether nothing was found wrong so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// `value` when nothing was found wrong, else every fault in the order of the file.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, ConfigErrors> {
        if self.errors.is_empty() {
            return Ok(value);
        }
        Err(self.into_errors())
    }

    /// Every fault in the order of the file.
    pub(crate) fn into_errors(mut self) -> ConfigErrors {
        self.errors.sort_by_key(|error| (error.line, error.column));
        if self.unlisted > 0 {
            self.errors.push(ConfigError {
                file: self.file.to_owned(),
                line: 0,
                column: 0,
                key: String::new(),
                found: format!("{} more faults", self.unlisted),
                allowed: "none".to_owned(),
            });
        }
        ConfigErrors(self.errors)
    }
}

/// Line and column, both from 1, of a byte offset; columns count characters.
pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = text.get(..end).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    (line, column)
}

/// A found value for a report: clipped, control characters escaped, in double quotes.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", clipped(text))
}

/// A found value for a report, without quotes.
pub(crate) fn clipped(text: &str) -> String {
    let mut shown = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == MAX_FOUND_CHARS {
            shown.push_str("...");
            break;
        }
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The candidate with the fewest single-character edits to `name`.
pub(crate) fn nearest<'n>(
    name: &str,
    candidates: impl IntoIterator<Item = &'n str>,
) -> Option<&'n str> {
    candidates
        .into_iter()
        .min_by_key(|candidate| distance(name, candidate))
}

/// Edit distance: insertions, deletions and replacements.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, left_char) in left.chars().take(MAX_FOUND_CHARS).enumerate() {
        let mut diagonal = above;
        let mut last = above + 1;
        for (cell, right_char) in row.iter_mut().skip(1).zip(&right) {
            let replaced = diagonal + usize::from(left_char != *right_char);
            diagonal = *cell;
            last = replaced.min(last + 1).min(diagonal + 1);
            *cell = last;
        }
        if let Some(first) = row.first_mut() {
            *first = above + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_lines_and_characters() {
        assert_eq!(position("ab\nçd = 1", 0), (1, 1));
        assert_eq!(position("ab\nçd = 1", 6), (2, 3));
        assert_eq!(position("ab\n", 99), (2, 1));
        assert_eq!(position("ç", 1), (1, 1));
    }

    #[test]
    fn clips_and_escapes_found_values() {
        assert_eq!(quoted("a\nb\u{1b}"), "\"a\\nb\\u{1b}\"");
        assert_eq!(clipped(&"x".repeat(81)), format!("{}...", "x".repeat(80)));
    }

    #[test]
    fn finds_the_nearest_name() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(
            nearest("lisen", ["host", "listen", "origins"]),
            Some("listen")
        );
    }
}
