//! The declarative table of `router.toml`: one line per key.
//!
//! The TOML library stops at the first wrong value, so the spanned tree is walked by hand; a [`Kind`] per key knows
//! what the key may say, and [`section!`] makes a struct, its defaults and its reader from one list of keys.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::report::{Report, clipped, nearest, quoted};

/// One key of `router.toml`, for documentation and checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Section without brackets; empty at top level.
    pub section: &'static str,
    /// The key.
    pub name: &'static str,
    /// The default as the file would say it; `None` when the key must be given.
    pub default: Option<String>,
    /// What it may say.
    pub allowed: String,
}

impl KeyInfo {
    pub(crate) fn of<V, K: Kind<Value = V>>(
        section: &'static str,
        name: &'static str,
        kind: &K,
    ) -> Self {
        Self {
            section,
            name,
            default: kind.default_text(),
            allowed: kind.allowed(),
        }
    }
}

/// What one key may say, and how to read it.
pub(crate) trait Kind {
    /// The Rust type of the value.
    type Value;

    /// What the file may say, for people.
    fn allowed(&self) -> String;

    /// The default as TOML text; `None` when the key must be given.
    fn default_text(&self) -> Option<String>;

    /// The default, or a stand-in that goes on the way while the report already holds a fault.
    fn fallback(&self) -> Self::Value;

    /// Reads a value; a wrong one is reported and gives `None`.
    fn read(&self, value: &Spanned<DeValue<'_>>, place: &mut Place<'_, '_>) -> Option<Self::Value>;
}

/// Where a value stands: what a [`Kind`] needs to report a fault.
#[derive(Debug)]
pub(crate) struct Place<'r, 'a> {
    pub(crate) report: &'r mut Report<'a>,
    pub(crate) key: String,
}

impl Place<'_, '_> {
    /// Reports that `value` is not what the key allows.
    pub(crate) fn refuse(&mut self, value: &Spanned<DeValue<'_>>, allowed: impl Into<String>) {
        // After a syntax error the library fills gaps with empty values: they are not the author's.
        if value.span().is_empty() {
            return;
        }
        self.report.fault(
            value.span().start,
            self.key.as_str(),
            show(value.get_ref()),
            allowed,
        );
    }
}

/// One table of the file while its keys are read.
#[derive(Debug)]
pub(crate) struct Section<'r, 'a, 't> {
    report: &'r mut Report<'a>,
    name: &'static str,
    /// `None` when the file does not have the section, or has something else in its place.
    table: Option<&'t DeTable<'t>>,
    /// Where the section starts, the place of what is missing in it.
    start: usize,
    /// Whether a missing key is reported; not so after syntax errors, which may have swallowed it.
    complete: bool,
}

impl<'r, 'a, 't> Section<'r, 'a, 't> {
    /// The top level of the file.
    pub(crate) fn root(report: &'r mut Report<'a>, table: &'t DeTable<'t>, complete: bool) -> Self {
        Self {
            report,
            name: "",
            table: Some(table),
            start: 0,
            complete,
        }
    }

    /// A section of the file, which may leave it out.
    pub(crate) fn of(
        report: &'r mut Report<'a>,
        root: &'t DeTable<'t>,
        name: &'static str,
        complete: bool,
    ) -> Self {
        let value = root.get(name);
        let table = value.and_then(|value| value.get_ref().as_table());
        let start = value.map_or(0, |value| value.span().start);
        if let (Some(value), None) = (value, table) {
            report.fault(
                start,
                name,
                show(value.get_ref()),
                format!("a table: [{name}]"),
            );
        }
        Self {
            report,
            name,
            table,
            start,
            complete,
        }
    }

    /// Reads one key; reports a wrong value, and a missing one that has no default.
    pub(crate) fn read<K: Kind>(&mut self, name: &str, kind: &K) -> K::Value {
        let key = self.path(name);
        let Some(value) = self.table.and_then(|table| table.get(name)) else {
            if kind.default_text().is_none() && self.complete {
                self.report.fault(
                    self.start,
                    key,
                    "nothing (the key is required)",
                    kind.allowed(),
                );
            }
            return kind.fallback();
        };
        self.report.sets(key.as_str(), value.span().start);
        let mut place = Place {
            report: self.report,
            key,
        };
        kind.read(value, &mut place)
            .unwrap_or_else(|| kind.fallback())
    }

    /// Reports every key of the table that is none of the `known` keys of its section.
    pub(crate) fn refuse_unknown(&mut self, known: &[KeyInfo]) {
        let Some(table) = self.table else { return };
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let mine = |info: &&KeyInfo| info.section == self.name;
            let is_section = self.name.is_empty() && known.iter().any(|info| info.section == name);
            if is_section || known.iter().filter(mine).any(|info| info.name == name) {
                continue;
            }
            let elsewhere = known.iter().find(|info| info.name == name);
            let suggestion = match elsewhere {
                Some(info) if info.section.is_empty() => {
                    format!("{name} at top level (before the first section)")
                }
                Some(info) => format!("{name} in [{}]", info.section),
                None => {
                    let mut names: Vec<&str> =
                        known.iter().filter(mine).map(|info| info.name).collect();
                    if self.name.is_empty() {
                        names.extend(
                            known
                                .iter()
                                .map(|info| info.section)
                                .filter(|section| !section.is_empty()),
                        );
                    }
                    format!(
                        "a known key, the nearest is {}",
                        nearest(name, names).unwrap_or_default()
                    )
                }
            };
            let found = match value.get_ref() {
                DeValue::Table(_) => "an unknown section".to_owned(),
                value => format!("an unknown key (= {})", show(value)),
            };
            let key_path = self.path(&clipped(name));
            self.report
                .fault(key.span().start, key_path, found, suggestion);
        }
    }

    fn path(&self, name: &str) -> String {
        if self.name.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.name)
        }
    }
}

/// The default of a key.
pub(crate) fn fallback<V, K: Kind<Value = V>>(kind: &K) -> V {
    kind.fallback()
}

/// A found value, as the file wrote it as far as that helps.
pub(crate) fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quoted(text),
        DeValue::Integer(number) => clipped(&number.to_string()),
        DeValue::Float(number) => clipped(&number.to_string()),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(elements) => match elements.len() {
            0 => "an empty list".to_owned(),
            1 => "a list of 1".to_owned(),
            count => format!("a list of {count}"),
        },
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// Makes a section's struct, its defaults, its list of keys and its reader from one line per key:
/// `name: Type = kind`, where `kind` is a [`Kind`] with that `Value`.
macro_rules! section {
    (
        $(#[$about:meta])*
        $vis:vis struct $struct:ident, $section:literal {
            $( $(#[$doc:meta])* $name:ident: $type:ty = $kind:expr; )*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $struct { $( $(#[$doc])* $vis $name: $type, )* }

        impl $struct {
            /// Reads the section, or takes the defaults where the file is silent.
            pub(crate) fn read(section: &mut $crate::table::Section<'_, '_, '_>) -> Self {
                Self { $( $name: section.read(stringify!($name), &$kind), )* }
            }

            /// Its keys, in the order of the documentation.
            pub(crate) fn keys() -> Vec<$crate::table::KeyInfo> {
                vec![ $( $crate::table::KeyInfo::of::<$type, _>($section, stringify!($name), &$kind), )* ]
            }
        }

        impl $struct {
            /// The keys, with their section, that say something else in `other`.
            #[allow(dead_code)]
            pub(crate) fn differing(&self, other: &Self) -> Vec<&'static str> {
                let mut keys = Vec::new();
                $(
                    if self.$name != other.$name {
                        keys.push(concat!($section, ".", stringify!($name)));
                    }
                )*
                keys
            }
        }

        impl Default for $struct {
            fn default() -> Self {
                Self { $( $name: $crate::table::fallback::<$type, _>(&$kind), )* }
            }
        }
    };
}
pub(crate) use section;
