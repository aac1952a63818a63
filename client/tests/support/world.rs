//! What router and toolshed know: spaces with their documents, verdicts by `localSeq`, resume tokens, and live sessions.

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::records::Statement;
use serde_json::{Value, json};

/// Everything.
pub(crate) struct World {
    limits: Value,
    spaces: BTreeMap<String, Space>,
    live: BTreeMap<(String, String), Live>,
    next: u64,
}

#[derive(Default)]
struct Space {
    seq: u64,
    documents: BTreeMap<String, (u64, Value)>,
    verdicts: BTreeMap<(String, u64), (Value, u64)>,
    applied: Vec<u64>,
    /// The newest token of each session, and the one before it: the answer that carried the newest may have been lost.
    tokens: BTreeMap<String, (String, Option<String>)>,
}

struct Live {
    connection: usize,
    watches: BTreeMap<String, BTreeSet<String>>,
}

impl Live {
    fn documents(&self) -> BTreeSet<&String> {
        self.watches.values().flatten().collect()
    }
}

type Messages = Vec<(usize, Value)>;

impl World {
    pub(crate) fn new(limits: Value) -> Self {
        Self {
            limits,
            spaces: BTreeMap::new(),
            live: BTreeMap::new(),
            next: 0,
        }
    }

    /// `localSeq` of the commits of a space in the order they were applied.
    pub(crate) fn applied(&self, space: &str) -> Vec<u64> {
        self.spaces
            .get(space)
            .map(|space| space.applied.clone())
            .unwrap_or_default()
    }

    /// Sessions open on a connection.
    pub(crate) fn open_on(&self, connection: usize) -> usize {
        self.live
            .values()
            .filter(|live| live.connection == connection)
            .count()
    }

    /// Watches of all sessions of a space.
    pub(crate) fn watches(&self, space: &str) -> usize {
        let of_space = self.live.iter().filter(|((of, _), _)| of == space);
        of_space.map(|(_, live)| live.watches.len()).sum()
    }

    /// Makes every resume token worthless, as one who took the session over would.
    pub(crate) fn take_over(&mut self, space: &str) {
        for token in self.spaces.get_mut(space).unwrap().tokens.values_mut() {
            *token = ("another".to_owned(), None);
        }
    }

    pub(crate) fn forget(&mut self, space: &str, session: &str) -> Option<usize> {
        let live = self.live.remove(&(space.to_owned(), session.to_owned()))?;
        Some(live.connection)
    }

    pub(crate) fn disconnect(&mut self, connection: usize) {
        self.live.retain(|_, live| live.connection != connection);
    }

    pub(crate) fn write(&mut self, space: &str, id: &str, value: u64) -> Messages {
        let store = self.spaces.entry(space.to_owned()).or_default();
        store.seq += 1;
        let document = (store.seq, json!({ "value": value }));
        store.documents.insert(id.to_owned(), document);
        self.push(space, id, "")
    }

    fn push(&self, space: &str, id: &str, except: &str) -> Messages {
        let store = &self.spaces[space];
        let watching = self.live.iter().filter(|((of, session), live)| {
            of == space && session != except && live.documents().contains(&id.to_owned())
        });
        watching
            .map(|((_, session), live)| {
                let sync = store.sync([&id.to_owned()].into_iter(), Vec::new());
                let push = json!({"type": "session/effect", "space": space, "sessionId": session, "effect": sync});
                (live.connection, push)
            })
            .collect()
    }

    pub(crate) fn serve(&mut self, connection: usize, message: &Value) -> Messages {
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let kind = text("type");
        let id = message["requestId"].clone();
        if kind == "hello" {
            return vec![(connection, self.hello())];
        }
        let (space, session) = (text("space"), text("sessionId"));
        let mut effects = Messages::new();
        let outcome = match kind.as_str() {
            "connection.challenge" => Ok(json!({"challenge": self.challenge()})),
            "connection.auth" => Ok(authenticate(&text("statement"))),
            "connection.release" => Ok(json!({})),
            "session.open" => self.open(connection, &space, &message["session"]),
            _ if self
                .live
                .get(&(space.clone(), session.clone()))
                .is_none_or(|live| live.connection != connection) =>
            {
                Err(
                    json!({"name": "AuthorizationError", "message": "Routed memory request denied"}),
                )
            }
            "transact" => self.transact(&space, &session, &message["commit"], &mut effects),
            "session.watch.set" | "session.watch.add" => Ok(self.watch(&space, &session, message)),
            "session.close" => {
                self.forget(&space, &session);
                Ok(json!({}))
            }
            "graph.query" => Ok(self.query(&space, &message["query"])),
            kind => panic!("the client sent {kind}"),
        };
        let answer = match outcome {
            Ok(ok) => json!({"type": "response", "requestId": id, "ok": ok}),
            Err(error) => json!({"type": "response", "requestId": id, "error": error}),
        };
        let mut messages = vec![(connection, answer)];
        messages.append(&mut effects);
        messages
    }

    fn unique(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn challenge(&mut self) -> Value {
        json!({"value": format!("{:064x}", self.unique()), "expiresAt": now() + 60})
    }

    fn hello(&mut self) -> Value {
        let router = super::identity(21).did();
        json!({
            "type": "hello.ok", "protocol": "memory",
            "flags": {"connectionAuth": true, "routedAuthV1": true, "sessionHoldings": true},
            "sessionOpen": {"audience": router, "deployment": "fake", "challenge": self.challenge()},
            "serverTime": now(), "routerLimits": self.limits,
        })
    }

    fn open(&mut self, connection: usize, space: &str, session: &Value) -> Result<Value, Value> {
        let unique = self.unique();
        let id = session["sessionId"]
            .as_str()
            .map_or(format!("s{unique}"), str::to_owned);
        let store = self.spaces.entry(space.to_owned()).or_default();
        let token = session["sessionToken"].as_str();
        if let Some((newest, before)) = store.tokens.get(&id)
            && token != Some(newest.as_str())
            && (token.is_none() || token != before.as_deref())
        {
            return Err(
                json!({"name": "SessionRevokedError", "message": "resume token is no longer valid"}),
            );
        }
        let before = token.map(str::to_owned);
        let token = format!("t{unique}");
        store.tokens.insert(id.clone(), (token.clone(), before));
        let mut ok = json!({"sessionId": id, "sessionToken": token, "serverSeq": store.seq, "caughtUpLocalSeq": 0});
        let key = (space.to_owned(), id);
        if let Some(live) = self.live.get_mut(&key) {
            live.connection = connection;
            ok["resumed"] = true.into();
            let seen = session["seenSeq"].as_u64().unwrap_or(0);
            let watched = live.documents();
            let due = watched
                .into_iter()
                .filter(|id| store.documents.get(*id).is_some_and(|(seq, _)| *seq > seen));
            ok["sync"] = store.sync(due, Vec::new());
        } else {
            let watches = BTreeMap::new();
            self.live.insert(
                key,
                Live {
                    connection,
                    watches,
                },
            );
        }
        Ok(ok)
    }

    fn transact(
        &mut self,
        space: &str,
        session: &str,
        commit: &Value,
        effects: &mut Messages,
    ) -> Result<Value, Value> {
        let store = self.spaces.get_mut(space).unwrap();
        let local = commit["localSeq"].as_u64().unwrap();
        let key = (session.to_owned(), local);
        if let Some((known, seq)) = store.verdicts.get(&key) {
            assert_eq!(known, commit, "replayed exactly as sent");
            return Ok(json!({"seq": seq, "branch": "", "revisions": [], "replayed": true}));
        }
        if commit["preconditions"] == json!("never") {
            return Err(json!({"name": "PreconditionFailedError", "message": "planned"}));
        }
        store.seq += 1;
        store.applied.push(local);
        store.verdicts.insert(key, (commit.clone(), store.seq));
        let mut revisions = Vec::new();
        for operation in commit["operations"].as_array().unwrap() {
            let id = operation["id"].as_str().unwrap().to_owned();
            store
                .documents
                .insert(id.clone(), (store.seq, operation["value"].clone()));
            revisions.push(json!({"id": id, "branch": "", "seq": store.seq, "op": "set"}));
        }
        let seq = store.seq;
        for operation in commit["operations"].as_array().unwrap() {
            effects.append(&mut self.push(space, operation["id"].as_str().unwrap(), session));
        }
        Ok(json!({"seq": seq, "branch": "", "revisions": revisions}))
    }

    fn watch(&mut self, space: &str, session: &str, message: &Value) -> Value {
        let store = &self.spaces[space];
        let live = self
            .live
            .get_mut(&(space.to_owned(), session.to_owned()))
            .unwrap();
        let before: BTreeSet<String> = live.documents().into_iter().cloned().collect();
        let set = message["type"] == "session.watch.set";
        if set {
            live.watches.clear();
        }
        for watch in message["watches"].as_array().unwrap() {
            let roots = watch["query"]["roots"].as_array().unwrap().iter();
            let roots = roots
                .map(|root| root["id"].as_str().unwrap().to_owned())
                .collect();
            live.watches
                .insert(watch["id"].as_str().unwrap().to_owned(), roots);
        }
        let wanted = live.documents();
        let sync = match message["holdings"].as_array() {
            Some(holdings) if set => {
                let held: BTreeMap<&str, u64> = holdings
                    .iter()
                    .map(|holding| {
                        (
                            holding["id"].as_str().unwrap(),
                            holding["seq"].as_u64().unwrap(),
                        )
                    })
                    .collect();
                let due = wanted
                    .iter()
                    .copied()
                    .filter(|id| held.get(id.as_str()) != Some(&store.seq_of(id)));
                let gone = held
                    .keys()
                    .filter(|id| !wanted.contains(&(**id).to_owned()));
                store.sync(due, gone.map(|id| (*id).to_owned()).collect())
            }
            _ => store.sync(
                wanted
                    .iter()
                    .copied()
                    .filter(|id| set || !before.contains(*id)),
                Vec::new(),
            ),
        };
        json!({"serverSeq": store.seq, "sync": sync})
    }

    fn query(&self, space: &str, query: &Value) -> Value {
        let store = &self.spaces[space];
        let entities: Vec<Value> = query["roots"]
            .as_array()
            .unwrap()
            .iter()
            .map(|root| {
                let id = root["id"].as_str().unwrap();
                let (seq, document) = store.documents.get(id).cloned().unwrap_or_default();
                json!({"branch": "", "id": id, "seq": seq, "document": document})
            })
            .collect();
        json!({"serverSeq": store.seq, "entities": entities})
    }
}

impl Space {
    fn seq_of(&self, id: &str) -> u64 {
        self.documents.get(id).map_or(0, |(seq, _)| *seq)
    }

    fn sync<'a>(&self, ids: impl Iterator<Item = &'a String>, removes: Vec<String>) -> Value {
        let upserts: Vec<Value> = ids
            .map(|id| match self.documents.get(id) {
                Some((seq, document)) => {
                    json!({"branch": "", "id": id, "scope": "space", "seq": seq, "doc": document})
                }
                None => {
                    json!({"branch": "", "id": id, "scope": "space", "seq": 0, "deleted": true})
                }
            })
            .collect();
        let removes: Vec<Value> = removes
            .iter()
            .map(|id| json!({"branch": "", "id": id, "scope": "space"}))
            .collect();
        json!({"type": "sync", "fromSeq": 0, "toSeq": self.seq, "upserts": upserts, "removes": removes})
    }
}

fn authenticate(statement: &str) -> Value {
    let bytes = Statement::from_base64url(statement).unwrap();
    let statement = Statement::verify(&bytes).unwrap();
    json!({"principal": statement.principal, "expiresAt": statement.exp})
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_secs()
}
