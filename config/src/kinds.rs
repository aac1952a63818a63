//! What keys of `router.toml` may say: the [`Kind`]s.

use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use crate::limit::Limit;
use crate::table::{Kind, Place};
use crate::units::{parse_duration, parse_rate, parse_size, show_duration, show_size};

/// How a bound is switched off.
const UNLIMITED: &str = "unlimited";

/// A count: an integer in a range.
pub(crate) struct Count<T> {
    default: Option<u64>,
    min: u64,
    max: u64,
    of: PhantomData<T>,
}

/// A count with a default.
pub(crate) fn count<T>(default: u64, min: u64, max: u64) -> Count<T> {
    Count {
        default: Some(default),
        min,
        max,
        of: PhantomData,
    }
}

/// A count that must be given.
pub(crate) fn required_count<T>(min: u64, max: u64) -> Count<T> {
    Count {
        default: None,
        min,
        max,
        of: PhantomData,
    }
}

impl<T: TryFrom<u64> + Default> Kind for Count<T> {
    type Value = T;

    fn allowed(&self) -> String {
        range(&self.min.to_string(), &self.max.to_string())
    }

    fn default_text(&self) -> Option<String> {
        self.default.map(|default| default.to_string())
    }

    fn fallback(&self) -> T {
        T::try_from(self.default.unwrap_or(self.min)).unwrap_or_default()
    }

    fn read(&self, value: &Spanned<DeValue<'_>>, place: &mut Place<'_, '_>) -> Option<T> {
        let number =
            integer(value.get_ref()).filter(|number| (self.min..=self.max).contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            place.refuse(value, self.allowed());
        }
        number
    }
}

/// A count that may be switched off.
pub(crate) struct Bound(Count<u64>);

/// A count that may be `"unlimited"`.
pub(crate) fn bound(default: u64, min: u64, max: u64) -> Bound {
    Bound(count(default, min, max))
}

impl Kind for Bound {
    type Value = Limit<u64>;

    fn allowed(&self) -> String {
        format!("{} or \"{UNLIMITED}\"", self.0.allowed())
    }

    fn default_text(&self) -> Option<String> {
        self.0.default_text()
    }

    fn fallback(&self) -> Limit<u64> {
        Limit::At(self.0.fallback())
    }

    fn read(&self, value: &Spanned<DeValue<'_>>, place: &mut Place<'_, '_>) -> Option<Limit<u64>> {
        if value.get_ref().as_str() == Some(UNLIMITED) {
            return Some(Limit::Unlimited);
        }
        let number =
            integer(value.get_ref()).filter(|number| (self.0.min..=self.0.max).contains(number));
        if number.is_none() {
            place.refuse(value, self.allowed());
        }
        number.map(Limit::At)
    }
}

/// A duration with a unit.
pub(crate) struct Time {
    default: Duration,
    min: Duration,
    max: Duration,
}

/// A duration; the three are milliseconds.
pub(crate) fn time(default: u64, min: u64, max: u64) -> Time {
    let [default, min, max] = [default, min, max].map(Duration::from_millis);
    Time { default, min, max }
}

impl Kind for Time {
    type Value = Duration;

    fn allowed(&self) -> String {
        let [min, max] = [self.min, self.max].map(show_duration);
        format!("\"{min}\"..=\"{max}\", with a unit (ms, s, m, h, d)")
    }

    fn default_text(&self) -> Option<String> {
        Some(format!("\"{}\"", show_duration(self.default)))
    }

    fn fallback(&self) -> Duration {
        self.default
    }

    fn read(&self, value: &Spanned<DeValue<'_>>, place: &mut Place<'_, '_>) -> Option<Duration> {
        let duration = value.get_ref().as_str().and_then(parse_duration);
        let duration = duration.filter(|duration| (self.min..=self.max).contains(duration));
        if duration.is_none() {
            place.refuse(value, self.allowed());
        }
        duration
    }
}

/// A number of bytes, or of bytes per second.
pub(crate) struct Bytes {
    default: u64,
    min: u64,
    max: u64,
    /// `""`, or `"/s"` for a rate.
    per: &'static str,
    parse: fn(&str) -> Option<u64>,
}

/// A size in bytes.
pub(crate) fn size(default: u64, min: u64, max: u64) -> Bytes {
    Bytes {
        default,
        min,
        max,
        per: "",
        parse: parse_size,
    }
}

/// A rate in bytes per second.
pub(crate) fn rate(default: u64, min: u64, max: u64) -> Bytes {
    Bytes {
        default,
        min,
        max,
        per: "/s",
        parse: parse_rate,
    }
}

impl Kind for Bytes {
    type Value = u64;

    fn allowed(&self) -> String {
        let per = self.per;
        let [min, max] = [self.min, self.max].map(show_size);
        let unit = if per.is_empty() {
            "bytes"
        } else {
            "bytes per second"
        };
        format!("\"{min}{per}\"..=\"{max}{per}\" or an integer ({unit})")
    }

    fn default_text(&self) -> Option<String> {
        Some(format!("\"{}{}\"", show_size(self.default), self.per))
    }

    fn fallback(&self) -> u64 {
        self.default
    }

    fn read(&self, value: &Spanned<DeValue<'_>>, place: &mut Place<'_, '_>) -> Option<u64> {
        let bytes = self.accept(value.get_ref());
        if bytes.is_none() {
            place.refuse(value, self.allowed());
        }
        bytes
    }
}

impl Bytes {
    fn accept(&self, value: &DeValue<'_>) -> Option<u64> {
        let bytes = match value {
            DeValue::String(text) => (self.parse)(text),
            value => integer(value),
        };
        bytes.filter(|bytes| (self.min..=self.max).contains(bytes))
    }
}

/// A size that the program works out when the file says `"auto"`, which is the default.
pub(crate) struct AutoSize(Bytes);

/// A size in bytes or `"auto"`.
pub(crate) fn auto_size(min: u64, max: u64) -> AutoSize {
    AutoSize(size(min, min, max))
}

impl Kind for AutoSize {
    type Value = Option<u64>;

    fn allowed(&self) -> String {
        format!("\"auto\", {}", self.0.allowed())
    }

    fn default_text(&self) -> Option<String> {
        Some("\"auto\"".to_owned())
    }

    fn fallback(&self) -> Option<u64> {
        None
    }

    fn read(&self, value: &Spanned<DeValue<'_>>, place: &mut Place<'_, '_>) -> Option<Option<u64>> {
        if value.get_ref().as_str() == Some("auto") {
            return Some(None);
        }
        let bytes = self.0.accept(value.get_ref());
        if bytes.is_none() {
            place.refuse(value, self.allowed());
        }
        bytes.map(Some)
    }
}

/// A switch.
pub(crate) struct Flag(pub(crate) bool);

impl Kind for Flag {
    type Value = bool;

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }

    fn default_text(&self) -> Option<String> {
        Some(self.0.to_string())
    }

    fn fallback(&self) -> bool {
        self.0
    }

    fn read(&self, value: &Spanned<DeValue<'_>>, place: &mut Place<'_, '_>) -> Option<bool> {
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            place.refuse(value, self.allowed());
        }
        flag
    }
}

/// A string with a meaning. The parser gets the folder that relative paths start from.
pub(crate) struct Text<T> {
    pub(crate) default: Option<&'static str>,
    pub(crate) allowed: &'static str,
    pub(crate) parse: fn(&str, &Path) -> Option<T>,
}

impl<T: Default> Kind for Text<T> {
    type Value = T;

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }

    fn default_text(&self) -> Option<String> {
        self.default.map(|default| format!("\"{default}\""))
    }

    fn fallback(&self) -> T {
        let parsed = self
            .default
            .and_then(|default| (self.parse)(default, Path::new("")));
        parsed.unwrap_or_default()
    }

    fn read(&self, value: &Spanned<DeValue<'_>>, place: &mut Place<'_, '_>) -> Option<T> {
        let text = value.get_ref().as_str();
        let parsed = text.and_then(|text| (self.parse)(text, place.report.folder()));
        if parsed.is_none() {
            place.refuse(value, self.allowed);
        }
        parsed
    }
}

/// A list of distinct strings with a meaning. A scalar in its place is refused, never read as "all".
pub(crate) struct List<T> {
    /// Whether the key must be given; otherwise the default is the empty list.
    pub(crate) required: bool,
    pub(crate) min: usize,
    pub(crate) max: usize,
    /// What one element is, in the plural.
    pub(crate) elements: &'static str,
    /// What one element may be.
    pub(crate) element: &'static str,
    pub(crate) parse: fn(&str) -> Option<T>,
}

impl<T: PartialEq> Kind for List<T> {
    type Value = Vec<T>;

    fn allowed(&self) -> String {
        format!("a list of {}..={} {}", self.min, self.max, self.elements)
    }

    fn default_text(&self) -> Option<String> {
        (!self.required).then(|| "[]".to_owned())
    }

    fn fallback(&self) -> Vec<T> {
        Vec::new()
    }

    fn read(&self, value: &Spanned<DeValue<'_>>, place: &mut Place<'_, '_>) -> Option<Vec<T>> {
        let list = value
            .get_ref()
            .as_array()
            .filter(|list| (self.min..=self.max).contains(&list.len()));
        let Some(list) = list else {
            place.refuse(value, self.allowed());
            return None;
        };
        let mut parsed = Vec::with_capacity(list.len());
        let mut all = true;
        let key = place.key.clone();
        for (index, element) in list.iter().enumerate() {
            let item = element.get_ref().as_str().and_then(self.parse);
            let fault = match &item {
                None => Some(self.element.to_owned()),
                Some(item) if parsed.contains(item) => Some("each value once".to_owned()),
                Some(_) => None,
            };
            if let Some(allowed) = fault {
                all = false;
                let shown = crate::table::show(element.get_ref());
                place.report.fault(
                    element.span().start,
                    format!("{key}[{index}]"),
                    shown,
                    allowed,
                );
            } else if let Some(item) = item {
                let element_key = format!("{key}[{index}]");
                place.report.sets(element_key, element.span().start);
                parsed.push(item);
            }
        }
        if !all {
            place.report.spoil(&key);
        }
        all.then_some(parsed)
    }
}

/// A non-negative integer that fits 64 bits, in any of TOML's notations.
fn integer(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn range(min: &str, max: &str) -> String {
    if min == max {
        min.to_owned()
    } else {
        format!("{min}..={max}")
    }
}
