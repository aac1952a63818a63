//! Who may do what in a space: its ACL document and the shape of a commit that changes it.

use super::answer::Refusal;
use super::document::{DocumentKey, is_plain_object};
use memory_wire::Did;
use serde_json::Value;
use std::collections::HashMap;

/// What a principal may do; each includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Capability {
    Read,
    Write,
    Owner,
}

impl Capability {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Owner => "OWNER",
        }
    }

    fn parse(value: &Value) -> Option<Self> {
        match value.as_str()? {
            "READ" => Some(Self::Read),
            "WRITE" => Some(Self::Write),
            "OWNER" => Some(Self::Owner),
            _ => None,
        }
    }
}

/// A valid ACL.
#[derive(Debug, Clone)]
pub(super) struct Acl {
    entries: HashMap<Did, Capability>,
    everybody: Option<Capability>,
}

impl Acl {
    /// The document that holds a space's ACL.
    pub(super) fn key(space: &Did) -> DocumentKey {
        DocumentKey::in_space(&acl_id(space))
    }

    /// Reads an ACL document; `None` unless every entry is legal and at least one principal is named OWNER.
    pub(super) fn parse(document: &Value) -> Option<Self> {
        let value = document.get("value")?;
        if !is_plain_object(document) || !is_plain_object(value) {
            return None;
        }
        let mut acl = Self {
            entries: HashMap::new(),
            everybody: None,
        };
        for (principal, capability) in value.as_object()? {
            let capability = Capability::parse(capability)?;
            if principal == "*" {
                acl.everybody = Some(capability);
            } else {
                acl.entries.insert(Did::parse(principal).ok()?, capability);
            }
        }
        acl.entries
            .values()
            .any(|capability| *capability == Capability::Owner)
            .then_some(acl)
    }

    /// An entry of one's own wins over everybody's, even when it grants less.
    fn capability(&self, principal: &Did) -> Option<Capability> {
        self.entries.get(principal).copied().or(self.everybody)
    }
}

/// The ACL of a space right now.
#[derive(Debug, Clone)]
pub(super) enum AclState {
    /// Nothing was ever committed.
    Unclaimed,
    /// The space has history, and its ACL is missing, deleted, malformed or without an owner.
    Invalid,
    Valid(Acl),
}

impl AclState {
    /// Refuses a principal that has less than `need`. `service` principals may give a space an ACL, also in place of an
    /// invalid one.
    pub(super) fn require(
        &self,
        space: &Did,
        principal: &Did,
        service: bool,
        need: Capability,
    ) -> Result<(), Refusal> {
        match self {
            Self::Unclaimed if principal == space => Ok(()),
            Self::Unclaimed => Err(Refusal::authorization(format!(
                "Only the space identity may initialize {space}"
            ))),
            Self::Invalid if service => Ok(()),
            Self::Invalid => Err(Refusal::authorization(format!(
                "Space {space} has a malformed, ownerless, or retracted ACL"
            ))),
            Self::Valid(_) if service || principal == space => Ok(()),
            Self::Valid(acl) => match acl.capability(principal) {
                Some(capability) if capability >= need => Ok(()),
                _ => Err(Refusal::authorization(format!(
                    "Principal {principal} lacks {} on space {space}",
                    need.name()
                ))),
            },
        }
    }
}

/// Whether a commit names the ACL document, whatever it does to it. Looks at the raw commit: this is judged before the
/// commit's own form.
pub(super) fn touches_acl(commit: &Value, space: &Did) -> bool {
    let id = acl_id(space);
    operations(commit)
        .iter()
        .any(|operation| operation.get("id").and_then(Value::as_str) == Some(&id))
}

/// Refuses a commit that [touches the ACL](touches_acl) in any other way than replacing it by a valid one.
pub(super) fn check_acl_commit(commit: &Value) -> Result<(), Refusal> {
    match commit.get("branch") {
        None => {}
        Some(Value::String(branch)) if branch.is_empty() => {}
        Some(_) => {
            return Err(Refusal::protocol(
                "ACL mutations are only valid on the default branch",
            ));
        }
    }
    let [operation] = operations(commit) else {
        return Err(Refusal::protocol(
            "ACL mutations must be an ACL-only commit",
        ));
    };
    let in_space = match operation.get("scope") {
        None => true,
        Some(scope) => scope.as_str() == Some("space"),
    };
    if operation.get("op").and_then(Value::as_str) != Some("set") || !in_space {
        return Err(Refusal::protocol(
            "ACL mutations must replace the space-scoped ACL document",
        ));
    }
    operation
        .get("value")
        .and_then(Acl::parse)
        .map(drop)
        .ok_or_else(|| {
            Refusal::protocol("ACL must be valid and retain at least one concrete OWNER")
        })
}

fn operations(commit: &Value) -> &[Value] {
    commit
        .get("operations")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn acl_id(space: &Did) -> String {
    format!("of:{space}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::did;
    use super::*;
    use serde_json::json;

    fn acl(entries: Value) -> Option<Acl> {
        Acl::parse(&json!({"value": entries}))
    }

    #[test]
    fn an_acl_needs_legal_entries_and_a_named_owner() {
        let alice = did(1).to_string();
        assert!(acl(json!({&alice: "OWNER", "*": "READ"})).is_some());
        for bad in [
            json!({}),
            json!({"*": "OWNER"}),
            json!({&alice: "WRITE"}),
            json!({&alice: "owner"}),
            json!({&alice: "OWNER", "bob": "READ"}),
            json!({&alice: "OWNER", "*": 1}),
            json!([]),
            json!("OWNER"),
        ] {
            assert!(acl(bad.clone()).is_none(), "{bad}");
        }
        assert!(Acl::parse(&json!([])).is_none());
        assert!(Acl::parse(&json!({})).is_none());
    }

    #[test]
    fn capabilities_are_a_matrix() {
        use Capability::{Owner, Read, Write};
        let (space, owner, writer, reader, other) = (did(9), did(1), did(2), did(3), did(4));
        let entries = json!({
            owner.as_str(): "OWNER", writer.as_str(): "WRITE", reader.as_str(): "READ", "*": "WRITE",
        });
        let open = AclState::Valid(acl(entries).expect("valid"));
        let closed = AclState::Valid(acl(json!({owner.as_str(): "OWNER"})).expect("valid"));
        let may = |state: &AclState, principal: &Did, need| {
            state.require(&space, principal, false, need).is_ok()
        };
        for (principal, highest) in [
            (owner, Owner),
            (space, Owner),
            (writer, Write),
            (reader, Read),
            (other, Write),
        ] {
            for need in [Read, Write, Owner] {
                assert_eq!(may(&open, &principal, need), need <= highest, "{need:?}");
            }
        }
        assert!(!may(&closed, &other, Read));
        assert!(may(&closed, &space, Owner));
        assert!(may(&AclState::Unclaimed, &space, Owner));
        assert!(!may(&AclState::Unclaimed, &owner, Read));
        assert!(!may(&AclState::Invalid, &space, Read));
        assert!(
            AclState::Invalid
                .require(&space, &other, true, Owner)
                .is_ok()
        );
        assert!(
            AclState::Unclaimed
                .require(&space, &other, true, Read)
                .is_err()
        );
    }

    #[test]
    fn an_acl_commit_has_one_shape() {
        let space = did(9);
        let id = format!("of:{space}");
        let good = json!({"value": {did(1).as_str(): "OWNER"}});
        let set = json!({"op": "set", "id": id, "value": good});
        let other = json!({"op": "set", "id": "of:x", "value": {}});
        let check = |commit: Value| {
            assert!(touches_acl(&commit, &space));
            check_acl_commit(&commit)
        };
        assert!(check(json!({"operations": [set]})).is_ok());
        assert!(check(json!({"operations": [set], "branch": ""})).is_ok());
        for bad in [
            json!({"operations": [set], "branch": "b"}),
            json!({"operations": [set, other]}),
            json!({"operations": [{"op": "set", "id": id, "scope": "user", "value": good}]}),
            json!({"operations": [{"op": "delete", "id": id}]}),
            json!({"operations": [{"op": "patch", "id": id, "patches": []}]}),
            json!({"operations": [{"op": "set", "id": id, "value": {"value": {"*": "OWNER"}}}]}),
            json!({"operations": [{"op": "set", "id": id}]}),
        ] {
            assert!(check(bad.clone()).is_err(), "{bad}");
        }
        assert!(!touches_acl(&json!({"operations": [other]}), &space));
        assert!(!touches_acl(&json!({"operations": 1}), &space));
    }
}
