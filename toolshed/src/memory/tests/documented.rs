//! The examples of `docs/protocol.md`, section 8, as they stand there.

use super::support::{Host, did};
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn the_examples_of_the_protocol_are_answered_as_it_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, rest) = text.split_once("<!-- memory example").unwrap();
    let block = rest.split("```").nth(1).unwrap();
    let messages: Vec<Value> = block
        .split("fvj1:")
        .skip(1)
        .map(|message| serde_json::from_str(message).unwrap())
        .collect();
    assert!(messages.len() >= 8);

    let (space, alice) = (did(1), did(2));
    let mut host = Host::new();
    host.seed(&space, json!({ alice.to_string(): "OWNER" }));
    let backend = host.connect(&[alice]);
    let open = json!({"type": "session.open", "requestId": "o", "space": space, "principal": alice,
        "session": {"sessionId": "s1"}});
    assert_eq!(host.send(backend, &open)["ok"]["sessionId"], "s1");
    for pair in messages.chunks(2) {
        let [request, expected] = pair else {
            panic!("a request without an answer");
        };
        let mut request = request.clone();
        request["space"] = space.as_str().into();
        let mut answer = host.send(backend, &request);
        // Said once is enough.
        if expected["ok"].get("revisions").is_none() && request["type"] == "transact" {
            answer["ok"] = json!({ "seq": answer["ok"]["seq"] });
        }
        assert_eq!(answer, *expected);
    }
}
