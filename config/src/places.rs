//! Where the values of a file stand, for findings that need more than the file.

use std::collections::BTreeMap;

/// Line and column of the values of one file, by full key path, such as `limits.max_workers`, `listen[1]` or
/// `toolsheds[2].did`. Keys that the file does not set, or whose value was refused, have no place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(BTreeMap<String, (usize, usize)>);

impl Places {
    pub(crate) fn new(places: BTreeMap<String, (usize, usize)>) -> Self {
        Self(places)
    }

    /// Line and column, both from 1, of the value of a key.
    pub fn of(&self, key: &str) -> Option<(usize, usize)> {
        self.0.get(key).copied()
    }
}
