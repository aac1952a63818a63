//! Patch operations: JSON Patch without `test` and `copy`, and `splice`, `append`, `add-unique`, `remove-by-value` and
//! `increment`, over the whole document.

use super::document::{
    MAX_DOCUMENT_DEPTH, Measure, add_numbers, equal, is_plain_object, safe_integer,
};
use super::pointer::{Path, parse_index, parse_pointer, print};
use serde_json::{Map, Number, Value};

/// Steps of work one commit's patches may cost: values copied, compared or moved along. A request of 150,000 values that
/// touches each of its values once stays far below; one that makes a large array move for every value does not.
pub(super) const MAX_PATCH_STEPS: u64 = 16_000_000;

/// What is left of [`MAX_PATCH_STEPS`].
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Budget {
    pub(super) fn new() -> Self {
        Self(MAX_PATCH_STEPS)
    }

    fn spend(&mut self, steps: u64) -> Result<(), String> {
        self.0 = self
            .0
            .checked_sub(steps)
            .ok_or_else(|| "patches of one commit cost too much work".to_owned())?;
        Ok(())
    }

    fn spend_len(&mut self, len: usize) -> Result<(), String> {
        self.spend(u64::try_from(len).unwrap_or(u64::MAX))
    }
}

/// One operation, read but not applied.
#[derive(Debug)]
pub(super) struct PatchOp<'a> {
    path: Path,
    action: Action<'a>,
    creates_key: bool,
}

#[derive(Debug)]
enum Action<'a> {
    Replace(&'a Value),
    Add(&'a Value),
    Remove,
    Move {
        from: Path,
    },
    Splice {
        index: usize,
        remove: usize,
        add: &'a [Value],
    },
    Append(&'a [Value]),
    AddUnique(&'a [Value]),
    RemoveByValue(&'a Value),
    Increment(&'a Number),
}

impl<'a> PatchOp<'a> {
    /// Reads one operation.
    ///
    /// # Errors
    /// The text of a `TransactionError`.
    pub(super) fn parse(value: &'a Value) -> Result<Self, String> {
        let malformed = || "malformed patch operation".to_owned();
        let members = value.as_object().ok_or_else(malformed)?;
        let kind = members
            .get("op")
            .and_then(Value::as_str)
            .ok_or_else(malformed)?;
        let path = parse_pointer(members.get("path")).ok_or("invalid patch path")?;
        let list = |name: &str| {
            members
                .get(name)
                .and_then(Value::as_array)
                .map(Vec::as_slice)
                .ok_or_else(malformed)
        };
        let whole = |name: &str| {
            members
                .get(name)
                .and_then(safe_integer)
                .and_then(|number| usize::try_from(number).ok())
                .ok_or_else(|| format!("invalid splice at {}", print(&path)))
        };
        let content = || members.get("value").ok_or_else(malformed);
        let action = match kind {
            "replace" => Action::Replace(content()?),
            "add" => Action::Add(content()?),
            "remove" => Action::Remove,
            "move" => Action::Move {
                from: parse_pointer(members.get("from")).ok_or("invalid patch path")?,
            },
            "splice" => Action::Splice {
                index: whole("index")?,
                remove: whole("remove")?,
                add: list("add")?,
            },
            "append" => Action::Append(list("values")?),
            "add-unique" => Action::AddUnique(list("values")?),
            "remove-by-value" => Action::RemoveByValue(content()?),
            "increment" => Action::Increment(
                members
                    .get("by")
                    .and_then(Value::as_number)
                    .filter(|by| by.as_f64().is_some_and(|by| by.is_finite() && by != 0.0))
                    .ok_or_else(malformed)?,
            ),
            _ => return Err(malformed()),
        };
        let creates_key = match members.get("createsKey") {
            None => false,
            Some(Value::Bool(creates)) => *creates,
            Some(_) => return Err(malformed()),
        };
        Ok(Self {
            path,
            action,
            creates_key,
        })
    }

    /// Whether applying this operation may change what a reader of `read` saw. May say yes too often, never no too often.
    ///
    /// A `shallow` reader depends on the value at its path and on which keys that has, not on what is below them.
    pub(super) fn touches(&self, read: &[String], shallow: bool) -> bool {
        let overlaps = |touched: &[String], creates: bool| {
            if touched.len() <= read.len() {
                read.starts_with(touched)
            } else {
                touched.starts_with(read)
                    && (!shallow || creates || touched.len() == read.len() + 1)
            }
        };
        match &self.action {
            Action::Move { from } => {
                overlaps(shifted(from), true) || overlaps(shifted(&self.path), true)
            }
            Action::Add(_) => overlaps(shifted(&self.path), true),
            Action::Remove => overlaps(shifted(&self.path), false),
            Action::Replace(_)
            | Action::Splice { .. }
            | Action::Append(_)
            | Action::AddUnique(_)
            | Action::RemoveByValue(_)
            | Action::Increment(_) => overlaps(&self.path, self.creates_key),
        }
    }

    fn apply(&self, root: &mut Value, budget: &mut Budget) -> Result<(), String> {
        budget.spend_len(self.path.len() + 1)?;
        match &self.action {
            Action::Replace(value) => {
                charge_value(value, self.path.len(), budget)?;
                replace(root, &self.path, value)
            }
            Action::Add(value) => {
                charge_value(value, self.path.len(), budget)?;
                add(root, &self.path, (*value).clone(), budget)
            }
            Action::Remove => remove(root, &self.path, budget).map(drop),
            Action::Move { from } => {
                if self.path.len() > from.len() && self.path.starts_with(from) {
                    return Err(format!("cannot move {} into itself", print(from)));
                }
                if self.path.is_empty() {
                    return Err("cannot move to the root".to_owned());
                }
                let value = remove(root, from, budget)?;
                charge_value(&value, self.path.len(), budget)?;
                add(root, &self.path, value, budget)
            }
            Action::Splice { index, remove, add } => {
                charge_values(add, self.path.len(), budget)?;
                splice(root, &self.path, (*index, *remove), add, budget)
            }
            Action::Append(values) => {
                charge_values(values, self.path.len(), budget)?;
                let array = array_or_new(root, &self.path, "append", budget)?;
                array.extend(values.iter().cloned());
                Ok(())
            }
            Action::AddUnique(values) => {
                charge_values(values, self.path.len(), budget)?;
                let array = array_or_new(root, &self.path, "append", budget)?;
                for value in *values {
                    charge_comparison(array, value, budget)?;
                    if !array.iter().any(|element| equal(element, value)) {
                        array.push(value.clone());
                    }
                }
                Ok(())
            }
            Action::RemoveByValue(value) => {
                if let Some(Value::Array(array)) = find(root, &self.path) {
                    charge_comparison(array, value, budget)?;
                    array.retain(|element| !equal(element, value));
                }
                Ok(())
            }
            Action::Increment(by) => increment(root, &self.path, by, budget),
        }
    }
}

/// Applies a patch, all of it or with an error: the caller then drops the document.
///
/// # Errors
/// The text of a `TransactionError`.
pub(super) fn apply(
    document: &mut Value,
    patches: &[PatchOp<'_>],
    budget: &mut Budget,
) -> Result<(), String> {
    for patch in patches {
        patch.apply(document, budget)?;
    }
    if is_plain_object(document) {
        Ok(())
    } else {
        Err("patched root is not an entity document".to_owned())
    }
}

/// Adding to or removing from an array moves what stands behind, so the whole array is touched.
fn shifted(path: &[String]) -> &[String] {
    match path.split_last() {
        Some((last, parent)) if last == "-" || parse_index(last).is_some() => parent,
        _ => path,
    }
}

fn charge_value(value: &Value, at: usize, budget: &mut Budget) -> Result<(), String> {
    let measure = Measure::of(value);
    budget.spend(measure.slots)?;
    let depth = usize::try_from(measure.depth).unwrap_or(usize::MAX);
    if at.saturating_add(depth) > MAX_DOCUMENT_DEPTH as usize {
        return Err("patched document is too deep".to_owned());
    }
    Ok(())
}

fn charge_values(values: &[Value], array_at: usize, budget: &mut Budget) -> Result<(), String> {
    values
        .iter()
        .try_for_each(|value| charge_value(value, array_at + 1, budget))
}

fn charge_comparison(array: &[Value], value: &Value, budget: &mut Budget) -> Result<(), String> {
    let len = u64::try_from(array.len()).unwrap_or(u64::MAX);
    budget.spend(len.saturating_mul(Measure::of(value).slots))
}

fn replace(root: &mut Value, path: &[String], value: &Value) -> Result<(), String> {
    let Some((last, parents)) = path.split_last() else {
        *root = value.clone();
        return Ok(());
    };
    match parent(root, parents)? {
        Value::Object(members) => {
            members.insert(last.clone(), value.clone());
        }
        Value::Array(items) => {
            let index = array_index(last)?;
            let slot = items
                .get_mut(index)
                .ok_or_else(|| format!("array index out of bounds: {last}"))?;
            *slot = value.clone();
        }
        _ => return Err(not_traversable(path)),
    }
    Ok(())
}

fn add(root: &mut Value, path: &[String], value: Value, budget: &mut Budget) -> Result<(), String> {
    let Some((last, parents)) = path.split_last() else {
        *root = value;
        return Ok(());
    };
    match parent_or_new(root, parents)? {
        Value::Object(members) => {
            members.insert(last.clone(), value);
        }
        Value::Array(items) => {
            let index = if last == "-" {
                items.len()
            } else {
                array_index(last)?
            };
            if index > items.len() {
                return Err(format!("array index out of bounds: {last}"));
            }
            budget.spend_len(items.len() - index)?;
            items.insert(index, value);
        }
        _ => return Err(not_traversable(path)),
    }
    Ok(())
}

fn remove(root: &mut Value, path: &[String], budget: &mut Budget) -> Result<Value, String> {
    let (last, parents) = path
        .split_last()
        .ok_or_else(|| "cannot remove the root".to_owned())?;
    match parent(root, parents)? {
        Value::Object(members) => members
            .remove(last)
            .ok_or_else(|| format!("missing object key at {}", print(path))),
        Value::Array(items) => {
            let index = array_index(last)?;
            if index >= items.len() {
                return Err(format!("array index out of bounds: {last}"));
            }
            budget.spend_len(items.len() - index)?;
            Ok(items.remove(index))
        }
        _ => Err(not_traversable(path)),
    }
}

fn splice(
    root: &mut Value,
    path: &[String],
    (index, remove): (usize, usize),
    add: &[Value],
    budget: &mut Budget,
) -> Result<(), String> {
    let Value::Array(items) = parent(root, path)? else {
        return Err(format!("splice target is not an array at {}", print(path)));
    };
    if index > items.len() {
        return Err(format!("invalid splice at {}", print(path)));
    }
    budget.spend_len(items.len() - index)?;
    let end = index.saturating_add(remove).min(items.len());
    items.splice(index..end, add.iter().cloned());
    Ok(())
}

fn increment(
    root: &mut Value,
    path: &[String],
    by: &Number,
    budget: &mut Budget,
) -> Result<(), String> {
    let not_a_number = || format!("increment target is not a number at {}", print(path));
    let Some((last, parents)) = path.split_last() else {
        return Err(not_a_number());
    };
    budget.spend(1)?;
    let sum = |current: &Value| {
        let number = current.as_number().ok_or_else(not_a_number)?;
        add_numbers(number, by)
            .map(Value::Number)
            .ok_or_else(not_a_number)
    };
    match parent_or_new(root, parents)? {
        Value::Object(members) => {
            let current = members.entry(last.clone()).or_insert_with(|| 0.into());
            *current = sum(current)?;
        }
        Value::Array(items) => {
            let index = array_index(last)?;
            let current = items
                .get_mut(index)
                .ok_or_else(|| format!("array index out of bounds: {last}"))?;
            *current = sum(current)?;
        }
        _ => return Err(not_traversable(path)),
    }
    Ok(())
}

/// The array at `path`, made with its parents when it is absent.
fn array_or_new<'v>(
    root: &'v mut Value,
    path: &[String],
    what: &str,
    budget: &mut Budget,
) -> Result<&'v mut Vec<Value>, String> {
    let not_an_array = || format!("{what} target is not an array at {}", print(path));
    budget.spend(1)?;
    let Some((last, parents)) = path.split_last() else {
        return Err(not_an_array());
    };
    let target = match parent_or_new(root, parents)? {
        Value::Object(members) => members
            .entry(last.clone())
            .or_insert_with(|| Value::Array(Vec::new())),
        Value::Array(items) => {
            let index = array_index(last)?;
            items
                .get_mut(index)
                .ok_or_else(|| format!("array index out of bounds: {last}"))?
        }
        _ => return Err(not_traversable(path)),
    };
    match target {
        Value::Array(items) => Ok(items),
        _ => Err(not_an_array()),
    }
}

/// The value at `path`, which must exist.
fn parent<'v>(root: &'v mut Value, path: &[String]) -> Result<&'v mut Value, String> {
    walk(root, path, false)
}

/// The value at `path`, with missing objects made on the way.
fn parent_or_new<'v>(root: &'v mut Value, path: &[String]) -> Result<&'v mut Value, String> {
    walk(root, path, true)
}

fn walk<'v>(root: &'v mut Value, path: &[String], create: bool) -> Result<&'v mut Value, String> {
    let mut value = root;
    for (level, segment) in path.iter().enumerate() {
        let missing = || {
            let seen = path.get(..=level).unwrap_or(path);
            format!("missing path {}", print(seen))
        };
        value = match value {
            Value::Object(members) => {
                if create && !members.contains_key(segment) {
                    members.insert(segment.clone(), Value::Object(Map::new()));
                }
                members.get_mut(segment).ok_or_else(missing)?
            }
            Value::Array(items) => {
                let index = array_index(segment)?;
                items.get_mut(index).ok_or_else(missing)?
            }
            _ => return Err(not_traversable(path)),
        };
    }
    Ok(value)
}

fn find<'v>(root: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(root, |value, segment| match value {
        Value::Object(members) => members.get_mut(segment),
        Value::Array(items) => items.get_mut(parse_index(segment)?),
        _ => None,
    })
}

fn array_index(segment: &str) -> Result<usize, String> {
    parse_index(segment).ok_or_else(|| format!("invalid array index: {segment}"))
}

fn not_traversable(path: &[String]) -> String {
    format!("path is not traversable at {}", print(path))
}

#[cfg(test)]
#[path = "tests/patch.rs"]
mod tests;
