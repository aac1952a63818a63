//! A host for tests: connections, principals with leases, and shorthand for requests.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::super::*;
use memory_wire::Did;
use memory_wire::flags::{Capability, Flags};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet, VecDeque};
use tempfile::TempDir;

/// The `n`th test identity.
pub(in super::super) fn did(n: u8) -> Did {
    (0..=u8::MAX)
        .find_map(|salt| {
            let mut key = [n; 32];
            key[1] = salt;
            Did::from_key(&key).ok()
        })
        .expect("every second key is a point")
}

pub(super) const NOW: u64 = 1_700_000_000;

pub(super) struct Host {
    pub(super) memory: Memory,
    pub(super) directory: TempDir,
    options: MemoryOptions,
    pub(super) now: u64,
    /// Spaces the directory gave to another toolshed.
    pub(super) lost: HashSet<Did>,
    /// Spaces the unlisted rule places here.
    pub(super) unlisted: HashSet<Did>,
    pub(super) leases: HashMap<(BackendId, Did), u64>,
    requests: u64,
    /// Pushes that no test has looked at yet.
    pushes: VecDeque<Output>,
}

impl Host {
    pub(super) fn new() -> Self {
        Self::with(MemoryOptions::default())
    }

    pub(super) fn with(options: MemoryOptions) -> Self {
        let directory = TempDir::new().expect("directory");
        let memory = Memory::open(directory.path(), options.clone()).expect("store");
        Self {
            memory,
            directory,
            options,
            now: NOW,
            lost: HashSet::new(),
            unlisted: HashSet::new(),
            leases: HashMap::new(),
            requests: 0,
            pushes: VecDeque::new(),
        }
    }

    /// The process is killed and started again.
    pub(super) fn restart(&mut self) {
        let fresh = TempDir::new().expect("directory");
        // Closes the databases before they are opened again.
        self.memory = Memory::open(fresh.path(), self.options.clone()).expect("store");
        self.memory = Memory::open(self.directory.path(), self.options.clone()).expect("store");
        self.leases.clear();
        self.pushes.clear();
    }

    /// A space whose ACL is `entries`.
    pub(super) fn seed(&mut self, space: &Did, entries: Value) {
        let id = format!("of:{space}");
        let acl = json!({"op": "set", "id": id, "value": {"value": entries}});
        assert!(self.memory.seed(space, &[acl]).expect("seed"));
    }

    pub(super) fn connect(&mut self, principals: &[Did]) -> BackendId {
        let mut flags = self.memory.capabilities();
        flags
            .insert("routedAuthV1", Capability::Flag(true))
            .expect("flag");
        self.connect_with(&flags, principals)
    }

    pub(super) fn connect_with(&mut self, flags: &Flags, principals: &[Did]) -> BackendId {
        let backend = self.memory.connect(flags);
        for principal in principals {
            self.leases.insert((backend, *principal), self.now + 600);
        }
        backend
    }

    /// Sends a message as it is; the answer.
    pub(super) fn send(&mut self, backend: BackendId, message: &Value) -> Value {
        let Self {
            memory,
            now,
            lost,
            unlisted,
            leases,
            ..
        } = self;
        let turn = Turn {
            now: *now,
            owns: &|space| !lost.contains(space),
            lease: &|principal| leases.get(&(backend, *principal)).copied(),
            may_create: &|space| unlisted.contains(space),
        };
        let mut outputs = memory.request(backend, message, &turn).into_iter();
        let answer = outputs.next().expect("every request is answered");
        assert_eq!(answer.backend, backend);
        self.pushes.extend(outputs);
        answer.message
    }

    /// Sends a request of this kind; its `ok` or its `error`.
    pub(super) fn ask(
        &mut self,
        backend: BackendId,
        kind: &str,
        space: &Did,
        members: Value,
    ) -> Result<Value, Value> {
        self.requests += 1;
        let request_id = format!("r{}", self.requests);
        let mut message = members;
        message["type"] = kind.into();
        message["requestId"] = request_id.as_str().into();
        message["space"] = space.as_str().into();
        let mut answer = self.send(backend, &message);
        assert_eq!(answer["type"], "response");
        assert_eq!(answer["requestId"], request_id.as_str());
        assert_eq!(answer.as_object().expect("object").len(), 3);
        match answer.get_mut("ok") {
            Some(ok) => Ok(ok.take()),
            None => Err(answer["error"].take()),
        }
    }

    pub(super) fn open(
        &mut self,
        backend: BackendId,
        space: &Did,
        principal: &Did,
        session: Value,
    ) -> Result<Value, Value> {
        let members = json!({"principal": principal.as_str(), "session": session});
        self.ask(backend, "session.open", space, members)
    }

    /// A fresh session; its identifier.
    pub(super) fn session(&mut self, backend: BackendId, space: &Did, principal: &Did) -> String {
        let ok = self
            .open(backend, space, principal, json!({}))
            .expect("open");
        ok["sessionId"].as_str().expect("identifier").to_owned()
    }

    pub(super) fn expire(&mut self, backend: BackendId, principal: &Did) {
        let Self {
            memory,
            now,
            leases,
            ..
        } = self;
        let turn = Turn {
            now: *now,
            owns: &|_| true,
            lease: &|principal| leases.get(&(backend, *principal)).copied(),
            may_create: &|_| false,
        };
        let outputs = memory.expire(backend, principal, &turn);
        self.pushes.extend(outputs);
    }

    /// Pushes for one connection since they were last taken.
    pub(super) fn pushes(&mut self, backend: BackendId) -> Vec<Value> {
        let (mine, others): (VecDeque<_>, VecDeque<_>) = self
            .pushes
            .drain(..)
            .partition(|output| output.backend == backend);
        self.pushes = others;
        mine.into_iter().map(|output| output.message).collect()
    }

    pub(super) fn take_flushed(&mut self) {
        let outputs = self.memory.flush();
        self.pushes.extend(outputs);
    }
}

/// One client: a connection, a space and a session.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) backend: BackendId,
    pub(super) space: Did,
    pub(super) id: String,
}

impl Client {
    pub(super) fn new(host: &mut Host, space: &Did, principal: &Did) -> Self {
        let backend = host.connect(&[*principal]);
        let id = host.session(backend, space, principal);
        Self {
            backend,
            space: *space,
            id,
        }
    }

    pub(super) fn ask(&self, host: &mut Host, kind: &str, members: Value) -> Result<Value, Value> {
        let mut members = members;
        members["sessionId"] = self.id.as_str().into();
        host.ask(self.backend, kind, &self.space, members)
    }

    pub(super) fn transact(&self, host: &mut Host, commit: Value) -> Result<Value, Value> {
        self.ask(host, "transact", json!({"commit": commit}))
    }

    /// Commits without reads.
    pub(super) fn write(
        &self,
        host: &mut Host,
        local_seq: u64,
        operations: Value,
    ) -> Result<Value, Value> {
        self.transact(host, commit(local_seq, json!([]), operations))
    }

    pub(super) fn watch_set(&self, host: &mut Host, members: Value) -> Result<Value, Value> {
        self.ask(host, "session.watch.set", members)
    }

    pub(super) fn watch_add(&self, host: &mut Host, watches: Value) -> Result<Value, Value> {
        self.ask(host, "session.watch.add", json!({"watches": watches}))
    }

    pub(super) fn read(&self, host: &mut Host, id: &str) -> Value {
        let ok = self
            .ask(
                host,
                "graph.query",
                json!({"query": {"roots": roots(&[id])}}),
            )
            .expect("query");
        ok["entities"][0].clone()
    }

    /// Effects pushed to this session.
    pub(super) fn effects(&self, host: &mut Host) -> Vec<Value> {
        host.pushes(self.backend)
            .into_iter()
            .map(|push| {
                assert_eq!(push["type"], "session/effect", "{push}");
                assert_eq!(push["sessionId"], self.id.as_str());
                push["effect"].clone()
            })
            .collect()
    }
}

pub(super) fn commit(local_seq: u64, confirmed: Value, operations: Value) -> Value {
    json!({
        "localSeq": local_seq, "reads": {"confirmed": confirmed, "pending": []}, "operations": operations,
    })
}

pub(super) fn set(id: &str, value: impl Into<Value>) -> Value {
    json!({"op": "set", "id": id, "value": {"value": value.into()}})
}

pub(super) fn patch(id: &str, patches: Value) -> Value {
    json!({"op": "patch", "id": id, "patches": patches})
}

pub(super) fn delete(id: &str) -> Value {
    json!({"op": "delete", "id": id})
}

pub(super) fn roots(ids: &[&str]) -> Value {
    ids.iter()
        .map(|id| json!({"id": id, "selector": {"path": [], "schema": false}}))
        .collect()
}

pub(super) fn watch(name: &str, ids: &[&str]) -> Value {
    json!({"id": name, "kind": "graph", "query": {"roots": roots(ids)}})
}

/// Identifiers of a sync's list.
pub(super) fn ids(list: &Value) -> Vec<&str> {
    list.as_array()
        .expect("list")
        .iter()
        .map(|item| item["id"].as_str().expect("identifier"))
        .collect()
}
