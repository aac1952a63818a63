//! The directory file of a stage, changed as its writers change it: whole, and in one step.

use std::fs;

use memory_client::Did;
use serde_json::{Value, json};

use crate::{Context, GateError, Stage, log};

/// What a directory file says.
#[derive(Debug, Clone)]
pub(super) struct Placement(Value);

impl Placement {
    /// Reads a stage's.
    pub(super) fn of(stage: &Stage) -> Result<Self, GateError> {
        let text =
            fs::read(stage.folder().join("directory.json")).during("reading the directory")?;
        let value = serde_json::from_slice(&text).during("reading the directory")?;
        Ok(Self(value))
    }

    /// Places a space.
    pub(super) fn list(&mut self, space: Did, toolshed: usize, epoch: u64) {
        if let Some(Value::Object(spaces)) = self.0.get_mut("spaces") {
            let place = json!({ "toolshed": toolshed, "epoch": epoch });
            spaces.insert(space.to_string(), place);
        }
    }

    /// Gives a toolshed another name.
    pub(super) fn rename(&mut self, toolshed: usize, name: &str) -> Result<(), GateError> {
        let entry = format!("/toolsheds/{toolshed}/name");
        *self.0.pointer_mut(&entry).during("a toolshed's name")? = json!(name);
        Ok(())
    }

    /// Gives every space that is not listed to one toolshed.
    pub(super) fn rule(&mut self, toolshed: usize, epoch: u64) {
        const BASE58: &str = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
        let all: serde_json::Map<String, Value> = BASE58
            .chars()
            .map(|character| (character.to_string(), json!(toolshed)))
            .collect();
        if let Value::Object(members) = &mut self.0 {
            let rule = json!({ "epoch": epoch, "last_character": all });
            members.insert("unlisted".to_owned(), rule);
        }
    }

    /// Makes it the stage's.
    pub(super) fn write(&self, stage: &Stage) -> Result<(), GateError> {
        write_text(stage, &self.0.to_string())
    }

    /// Waits until the router has read it.
    pub(super) async fn is_followed(&self, stage: &Stage, mark: usize) -> Result<(), GateError> {
        let read = |line: &Value| {
            log::has(line, "role", "directory-broker")
                && (log::has(line, "message", "the directory has been read again")
                    || log::has(line, "message", "the directory is good again"))
        };
        let log = stage.router.log();
        log.wait("a directory read again", mark, read)
            .await
            .map(drop)
    }
}

/// Makes any text the stage's directory file.
pub(super) fn write_text(stage: &Stage, text: &str) -> Result<(), GateError> {
    let folder = stage.folder();
    let next = folder.join("directory.next");
    fs::write(&next, text)
        .and_then(|()| fs::rename(&next, folder.join("directory.json")))
        .during("writing the directory")
}
