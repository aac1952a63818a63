//! What a space's genesis may declare once and for all: its root reservation and its kind.

use super::answer::Refusal;
use super::document::is_plain_object;
use super::store::Space;
use serde_json::{Map, Value};

/// The declarations of one open or one commit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Declarations {
    pub(super) genesis_root: Option<Value>,
    pub(super) space_kind: Option<String>,
}

impl Declarations {
    /// Reads `genesisRoot` and `spaceKind` of a `session` or a `commit`.
    pub(super) fn parse(members: &Map<String, Value>) -> Result<Self, Refusal> {
        let genesis_root = match members.get("genesisRoot") {
            None => None,
            Some(root) if is_genesis_root(root) => Some(root.clone()),
            Some(_) => return Err(Refusal::protocol("malformed genesisRoot")),
        };
        let space_kind = match members.get("spaceKind") {
            None => None,
            Some(Value::String(kind)) if is_space_kind(kind) => Some(kind.clone()),
            Some(_) => return Err(Refusal::protocol("malformed spaceKind")),
        };
        Ok(Self {
            genesis_root,
            space_kind,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.genesis_root.is_none() && self.space_kind.is_none()
    }

    /// Refuses an open that asserts something else than the space's genesis declared.
    pub(super) fn check_against(&self, space: &Space) -> Result<(), Refusal> {
        if self.genesis_root.is_some() && self.genesis_root != space.genesis_root {
            return Err(Refusal::protocol(
                "genesisRoot differs from the space's declaration",
            ));
        }
        if self.space_kind.is_some() && self.space_kind != space.space_kind {
            return Err(Refusal::protocol(
                "spaceKind differs from the space's declaration",
            ));
        }
        Ok(())
    }

    /// Refuses a genesis commit that declares what its session's open did not.
    pub(super) fn check_declared(&self, session: &Self) -> Result<(), Refusal> {
        let same = (self.genesis_root.is_none() || self.genesis_root == session.genesis_root)
            && (self.space_kind.is_none() || self.space_kind == session.space_kind);
        if same {
            Ok(())
        } else {
            Err(Refusal::protocol(
                "genesis declarations differ from those of session.open",
            ))
        }
    }
}

/// `[a-z][a-z0-9]*(-[a-z0-9]+)*`, at most 32 characters.
fn is_space_kind(kind: &str) -> bool {
    kind.len() <= 32
        && kind.starts_with(|first: char| first.is_ascii_lowercase())
        && kind.split('-').all(|part| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
}

/// `{source, sourceRoots?, cause, argument?}`, or `{cause}` alone for a root that its creator places.
fn is_genesis_root(root: &Value) -> bool {
    let Some(members) = root.as_object() else {
        return false;
    };
    let known = ["source", "sourceRoots", "cause", "argument"];
    if !members.keys().all(|key| known.contains(&key.as_str())) {
        return false;
    }
    let cause = members.get("cause").and_then(Value::as_str);
    if !cause.is_some_and(|cause| (1..=512).contains(&cause.chars().count())) {
        return false;
    }
    let Some(source) = members.get("source") else {
        return members.len() == 1;
    };
    let is_source = |value: &Value| value.as_str().is_some_and(is_system_source);
    is_source(source)
        && members.get("sourceRoots").is_none_or(|roots| {
            roots
                .as_array()
                .is_some_and(|all| all.iter().all(is_source))
        })
        && members.get("argument").is_none_or(is_plain_object)
}

/// `system:` and a relative path of a TypeScript file.
fn is_system_source(source: &str) -> bool {
    let Some(path) = source.strip_prefix("system:") else {
        return false;
    };
    (path.ends_with(".ts") || path.ends_with(".tsx"))
        && path.len() <= 1024
        && path.split('/').all(|part| {
            !matches!(part, "" | "." | "..")
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: Value) -> Result<Declarations, Refusal> {
        Declarations::parse(value.as_object().expect("object"))
    }

    #[test]
    fn declarations_have_a_form() {
        let long = "a".repeat(33);
        for good in [
            json!({}),
            json!({"spaceKind": "notebook"}),
            json!({"spaceKind": "a1-b2"}),
            json!({"genesisRoot": {"cause": "x"}}),
            json!({"genesisRoot": {"source": "system:a/b-c.tsx", "cause": "x", "argument": {},
                "sourceRoots": ["system:d.ts"]}}),
        ] {
            assert!(parse(good.clone()).is_ok(), "{good}");
        }
        for bad in [
            json!({"spaceKind": ""}),
            json!({"spaceKind": "a-"}),
            json!({"spaceKind": "1a"}),
            json!({"spaceKind": "A"}),
            json!({"spaceKind": long}),
            json!({"spaceKind": null}),
            json!({"genesisRoot": {}}),
            json!({"genesisRoot": {"cause": ""}}),
            json!({"genesisRoot": {"cause": "x", "argument": {}}}),
            json!({"genesisRoot": {"source": "system:/a.ts", "cause": "x"}}),
            json!({"genesisRoot": {"source": "system:a/../b.ts", "cause": "x"}}),
            json!({"genesisRoot": {"source": "system:a.js", "cause": "x"}}),
            json!({"genesisRoot": {"source": "system:a.ts", "cause": "x", "more": 1}}),
        ] {
            assert!(parse(bad.clone()).is_err(), "{bad}");
        }
    }
}
