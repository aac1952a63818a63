//! Random commits of three sessions against a model in memory.
//!
//! The model keeps documents as plain maps of numbers, decides conflicts from the history of touched keys, and knows what
//! each client must have after each effect.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::support::*;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

const DOCUMENTS: [&str; 3] = ["of:a", "of:b", "of:c"];
const KEYS: [&str; 3] = ["x", "y", "z"];

#[derive(Debug, Clone)]
enum Write {
    Set(BTreeMap<usize, i64>),
    Put(usize, i64),
    Count(usize, i64),
    Delete,
}

#[derive(Debug, Clone)]
enum Step {
    /// A commit: who, what it read (document, key) at how many commits before the newest, what it writes.
    Commit {
        who: usize,
        reads: Vec<(usize, Option<usize>, u64)>,
        writes: Vec<(usize, Write)>,
    },
    /// The last commit of this session is sent again.
    Replay { who: usize },
    /// Another set of watches, with or without a statement of holdings.
    Watch {
        who: usize,
        documents: BTreeSet<usize>,
        holdings: bool,
    },
    /// The process is killed; everybody opens again with the token and watches anew.
    Restart,
}

fn any_write() -> impl Strategy<Value = Write> {
    prop_oneof![
        prop::collection::btree_map(0..3_usize, -9..9_i64, 0..3).prop_map(Write::Set),
        (0..3_usize, -9..9_i64).prop_map(|(key, value)| Write::Put(key, value)),
        (0..3_usize, 1..9_i64).prop_map(|(key, by)| Write::Count(key, by)),
        Just(Write::Delete),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let read = (0..3_usize, prop::option::of(0..3_usize), 0..4_u64);
    let commit = (
        0..3_usize,
        prop::collection::vec(read, 0..3),
        prop::collection::vec((0..3_usize, any_write()), 1..4),
    );
    let watch = (
        0..3_usize,
        prop::collection::btree_set(0..3_usize, 0..4),
        any::<bool>(),
    );
    prop_oneof![
        12 => commit.prop_map(|(who, reads, writes)| Step::Commit { who, reads, writes }),
        2 => (0..3_usize).prop_map(|who| Step::Replay { who }),
        3 => watch.prop_map(|(who, documents, holdings)| Step::Watch { who, documents, holdings }),
        1 => Just(Step::Restart),
    ]
}

type Document = BTreeMap<usize, i64>;

/// What is known of one document at one commit: nothing, deleted, or a map.
type State = (u64, Option<Document>);

#[derive(Default)]
struct Model {
    seq: u64,
    documents: BTreeMap<usize, State>,
    /// Which keys of which document each commit touched; `None` is all of them.
    touched: Vec<(u64, usize, Option<usize>)>,
}

impl Model {
    fn state(&self, document: usize) -> State {
        self.documents.get(&document).cloned().unwrap_or((0, None))
    }

    fn conflicts(&self, document: usize, key: Option<usize>, seq: u64) -> bool {
        self.touched.iter().any(|(at, touched, which)| {
            let overlap = key.is_none() || which.is_none() || *which == key;
            *at > seq && *touched == document && overlap
        })
    }

    fn apply(&mut self, writes: &[(usize, Write)]) {
        self.seq += 1;
        for (document, write) in writes {
            let (_, content) = self.state(*document);
            let mut content = content.unwrap_or_default();
            let touched = match write {
                Write::Set(all) => {
                    content = all.clone();
                    None
                }
                Write::Put(key, value) => {
                    content.insert(*key, *value);
                    Some(*key)
                }
                Write::Count(key, by) => {
                    *content.entry(*key).or_default() += by;
                    Some(*key)
                }
                Write::Delete => None,
            };
            let content = (!matches!(write, Write::Delete)).then_some(content);
            self.documents.insert(*document, (self.seq, content));
            self.touched.push((self.seq, *document, touched));
        }
    }
}

fn operation(document: usize, write: &Write) -> Value {
    let id = DOCUMENTS[document];
    match write {
        Write::Set(all) => set(id, json_of(all)),
        Write::Put(key, value) => patch(
            id,
            json!([{"op": "add", "path": format!("/value/{}", KEYS[*key]), "value": value}]),
        ),
        Write::Count(key, by) => patch(
            id,
            json!([{"op": "increment", "path": format!("/value/{}", KEYS[*key]), "by": by}]),
        ),
        Write::Delete => delete(id),
    }
}

fn json_of(document: &Document) -> Value {
    let members: Map<String, Value> = document
        .iter()
        .map(|(key, value)| (KEYS[*key].to_owned(), (*value).into()))
        .collect();
    members.into()
}

/// One client and what it believes.
struct Peer {
    client: Client,
    token: Value,
    local_seq: u64,
    last: Option<(Value, Value)>,
    watched: BTreeSet<usize>,
    cache: BTreeMap<String, (u64, Value)>,
    seen: u64,
}

impl Peer {
    fn integrate(&mut self, sync: &Value) {
        for item in sync["upserts"].as_array().expect("upserts") {
            let id = item["id"].as_str().expect("identifier").to_owned();
            let seq = item["seq"].as_u64().expect("seq");
            let known = self.cache.get(&id).map_or(0, |(seq, _)| *seq);
            assert!(seq >= known, "never back in time");
            let document = item.get("doc").cloned().unwrap_or(Value::Null);
            self.cache.insert(id, (seq, document));
        }
        for item in sync["removes"].as_array().expect("removes") {
            self.cache.remove(item["id"].as_str().expect("identifier"));
        }
        self.seen = self.seen.max(sync["toSeq"].as_u64().expect("seq"));
    }

    fn expect(&self, model: &Model) {
        let mut expected = BTreeMap::new();
        for document in &self.watched {
            let (seq, content) = model.state(*document);
            let content =
                content.map_or(Value::Null, |content| json!({"value": json_of(&content)}));
            expected.insert(DOCUMENTS[*document].to_owned(), (seq, content));
        }
        assert_eq!(self.cache, expected);
    }

    fn watch(&mut self, host: &mut Host, documents: &BTreeSet<usize>, holdings: bool) {
        let names: Vec<&str> = documents
            .iter()
            .map(|document| DOCUMENTS[*document])
            .collect();
        let mut members = json!({"watches": [watch("w", &names)]});
        if holdings {
            members["holdings"] = self
                .cache
                .iter()
                .map(|(id, (seq, document))| {
                    if document.is_null() {
                        json!({"id": id, "seq": seq, "deleted": true})
                    } else {
                        json!({"id": id, "seq": seq})
                    }
                })
                .collect();
        }
        let ok = self.client.watch_set(host, members).expect("watch");
        let sync = &ok["sync"];
        if holdings {
            for item in sync["upserts"].as_array().expect("upserts") {
                let held = self.cache.get(item["id"].as_str().expect("identifier"));
                assert_ne!(held.map(|(seq, _)| *seq), item["seq"].as_u64(), "was held");
            }
        } else {
            assert_eq!(ids(&sync["upserts"]).len(), names.len());
        }
        self.integrate(sync);
        self.watched.clone_from(documents);
    }
}

fn run(steps: &[Step]) {
    let space = did(9);
    let principals = [did(1), did(2), did(1)];
    let mut host = Host::new();
    host.seed(&space, json!({did(1).as_str(): "OWNER", "*": "WRITE"}));
    let mut model = Model {
        seq: 1,
        ..Model::default()
    };
    let mut peers: Vec<Peer> = principals
        .iter()
        .map(|principal| {
            let backend = host.connect(&[*principal]);
            let ok = host
                .open(backend, &space, principal, json!({}))
                .expect("open");
            let id = ok["sessionId"].as_str().expect("identifier").to_owned();
            Peer {
                client: Client { backend, space, id },
                token: ok["sessionToken"].clone(),
                local_seq: 0,
                last: None,
                watched: BTreeSet::new(),
                cache: BTreeMap::new(),
                seen: 0,
            }
        })
        .collect();
    for step in steps {
        match step {
            Step::Commit { who, reads, writes } => {
                let peer = &mut peers[*who];
                let at = |back: &u64| model.seq.saturating_sub(*back);
                let confirmed: Value = reads
                    .iter()
                    .map(|(document, key, back)| {
                        let path = match key {
                            Some(key) => json!(["value", KEYS[*key]]),
                            None => json!([]),
                        };
                        json!({"id": DOCUMENTS[*document], "path": path, "seq": at(back)})
                    })
                    .collect();
                let operations: Value = writes
                    .iter()
                    .map(|(document, write)| operation(*document, write))
                    .collect();
                let commit = commit(peer.local_seq + 1, confirmed, operations);
                let conflict = reads
                    .iter()
                    .any(|(document, key, back)| model.conflicts(*document, *key, at(back)));
                match peer.client.transact(&mut host, commit.clone()) {
                    Ok(ok) => {
                        assert!(!conflict, "accepted {commit}");
                        peer.local_seq += 1;
                        model.apply(writes);
                        assert_eq!(ok["seq"], model.seq);
                        // A writer knows what it set or deleted.
                        for (document, write) in writes {
                            let id = DOCUMENTS[*document];
                            if peer.watched.contains(document) {
                                let known = match write {
                                    Write::Set(all) => json!({"value": json_of(all)}),
                                    Write::Delete => Value::Null,
                                    Write::Put(..) | Write::Count(..) => continue,
                                };
                                peer.cache.insert(id.to_owned(), (model.seq, known));
                            }
                        }
                        peer.last = Some((commit, ok));
                    }
                    Err(error) => {
                        assert!(conflict, "refused {commit}: {error}");
                        assert_eq!(error["name"], "ConflictError");
                        assert_eq!(error["retryAfterSeq"], model.seq);
                    }
                }
            }
            Step::Replay { who } => {
                if let Some((commit, ok)) = peers[*who].last.clone() {
                    let mut again = peers[*who]
                        .client
                        .transact(&mut host, commit)
                        .expect("replay");
                    assert_eq!(again["replayed"].take(), true);
                    again.as_object_mut().expect("object").remove("replayed");
                    assert_eq!(again, ok);
                }
            }
            Step::Watch {
                who,
                documents,
                holdings,
            } => peers[*who].watch(&mut host, documents, *holdings),
            Step::Restart => {
                host.restart();
                for (peer, principal) in peers.iter_mut().zip(&principals) {
                    peer.client.backend = host.connect(&[*principal]);
                    let session = json!({
                        "sessionId": peer.client.id, "sessionToken": peer.token, "seenSeq": peer.seen,
                    });
                    let ok = host
                        .open(peer.client.backend, &space, principal, session)
                        .expect("resume");
                    peer.token = ok["sessionToken"].clone();
                    let watched = peer.watched.clone();
                    peer.watch(&mut host, &watched, true);
                }
            }
        }
        for peer in &mut peers {
            for effect in peer.client.effects(&mut host) {
                peer.integrate(&effect);
            }
            peer.expect(&model);
        }
    }
    for (document, id) in DOCUMENTS.iter().enumerate() {
        let (seq, content) = model.state(document);
        let entity = peers[0].client.read(&mut host, id);
        assert_eq!(entity["seq"], seq);
        let content = content.map_or(Value::Null, |content| json!({"value": json_of(&content)}));
        assert_eq!(entity["document"], content);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn three_sessions_agree_with_the_model(steps in prop::collection::vec(any_step(), 1..40)) {
        run(&steps);
    }
}
