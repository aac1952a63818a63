//! The conversation: two keys and three spaces over public connections, through the router, to two toolsheds.

use std::time::Duration;

use memory_client::{ClientError, Connection, Effect, Endpoint, OpenOptions, Options, Session};
use memory_wire::Did;
use serde_json::{Value, json};

use super::account::Account;
use super::stage::Stage;
use crate::exit::{Exit, Failure};

/// How long an effect may take to arrive.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request that the private window covers at once.
const LARGE_MESSAGE: usize = 4 * 1024 * 1024;
/// Bytes of the large message that are not its value: members, identifiers, the largest commit number.
const LARGE_OVERHEAD: usize = 1024;

/// Returns the first connection, idle: its worker is part of the picture.
pub(crate) async fn converse(account: &mut Account, stage: &Stage) -> Result<Connection, Failure> {
    let endpoint = Endpoint::new(stage.host(), stage.public, vec![stage.certificate.clone()])
        .map_err(failed)?;
    let (alice, bob) = (stage.alice.did(), stage.bob.did());

    let shared = account
        .step(
            "connect: TLS signed by the key agent, upgrade, hello",
            async {
                Connection::connect(&endpoint, Options::default())
                    .await
                    .map_err(failed)
            },
        )
        .await?;
    let hello = shared.hello();
    let name = hello.connection.clone().unwrap_or_default();
    account.note(format!(
        "connection {name}, router {}, deployment {}",
        hello.audience, hello.deployment
    ));

    account
        .step("authenticate two keys on that connection", async {
            shared.authenticate(&stage.alice).await.map_err(failed)?;
            shared.authenticate(&stage.bob).await.map_err(failed)
        })
        .await?;
    account.note(format!("alice {alice}"));
    account.note(format!("bob   {bob}"));

    let [first, second] = stage.spaces;
    let of_alice = account
        .step(
            "open Alice's space at toolshed 0 and read what is there",
            async {
                let session = open(&shared, first, alice).await?;
                session.query(&["of:fixture-data"]).await.map_err(failed)?;
                Ok(session)
            },
        )
        .await?;
    let mut of_bob = account
        .step(
            "open Bob's space at toolshed 1 over the same connection",
            open(&shared, second, bob),
        )
        .await?;
    account
        .step("Bob may not open Alice's space", async {
            match shared.open(first, bob, OpenOptions::default()).await {
                Err(ClientError::Denied(denied)) if !denied.retriable => Ok(()),
                Err(error) => Err(failed(error)),
                Ok(_) => Err(Failure::new(Exit::Failure, "he could")),
            }
        })
        .await?;

    account
        .step(
            "create a third space with its own key, shared by both",
            create(&shared, stage),
        )
        .await?;
    watch_and_commit(account, &endpoint, stage).await?;
    large_value(account, &mut of_bob).await?;

    account
        .step("close the sessions; the connection stays, idle", async {
            of_alice.close().await.map_err(failed)?;
            of_bob.close().await.map_err(failed)
        })
        .await?;
    Ok(shared)
}

async fn open(connection: &Connection, space: Did, principal: Did) -> Result<Session, Failure> {
    connection
        .open(space, principal, OpenOptions::default())
        .await
        .map_err(failed)
}

/// The space's own key is its first principal; the access list it commits is the first thing in it.
async fn create(connection: &Connection, stage: &Stage) -> Result<(), Failure> {
    let space = stage.created.did();
    connection
        .authenticate(&stage.created)
        .await
        .map_err(failed)?;
    let mut session = open(connection, space, space).await?;
    let mut access = serde_json::Map::new();
    access.insert(stage.alice.did().to_string(), json!("OWNER"));
    access.insert(stage.bob.did().to_string(), json!("WRITE"));
    let genesis =
        json!([{ "op": "set", "id": format!("of:{space}"), "value": { "value": access } }]);
    session.commit(genesis).await.map_err(failed)?;
    session.close().await.map_err(failed)?;
    connection.release(space).await.map_err(failed)
}

/// Alice watches on a connection of her own; Bob commits on another; the effect reaches her.
async fn watch_and_commit(
    account: &mut Account,
    endpoint: &Endpoint,
    stage: &Stage,
) -> Result<(), Failure> {
    let space = stage.created.did();
    let (mut watching, mut writing, connections) = account
        .step(
            "Alice and Bob each open it on a connection of their own",
            async {
                let one = Connection::connect(endpoint, Options::default())
                    .await
                    .map_err(failed)?;
                one.authenticate(&stage.alice).await.map_err(failed)?;
                let other = Connection::connect(endpoint, Options::default())
                    .await
                    .map_err(failed)?;
                other.authenticate(&stage.bob).await.map_err(failed)?;
                let watching = open(&one, space, stage.alice.did()).await?;
                let writing = open(&other, space, stage.bob.did()).await?;
                Ok((watching, writing, (one, other)))
            },
        )
        .await?;
    account
        .step(
            "Alice watches a document; Bob writes it; the effect reaches Alice",
            async {
                watching.watch(&["of:greeting"]).await.map_err(failed)?;
                let document = json!({ "value": { "text": "hello from Bob" } });
                writing
                    .commit(
                        json!([{ "op": "set", "id": "of:greeting", "value": document.clone() }]),
                    )
                    .await
                    .map_err(failed)?;
                loop {
                    let effect = tokio::time::timeout(EFFECT_TIMEOUT, watching.effect()).await;
                    match effect {
                        Ok(Some(Effect::Sync(sync))) if has_document(&sync, &document) => {
                            return Ok(());
                        }
                        Ok(Some(Effect::Sync(_) | Effect::Other(_))) => {}
                        Ok(Some(Effect::Revoked(reason))) => {
                            return Err(Failure::new(
                                Exit::Failure,
                                format!("the session was revoked: {reason}"),
                            ));
                        }
                        Ok(None) => {
                            return Err(Failure::new(Exit::Failure, "the connection ended"));
                        }
                        Err(_) => {
                            return Err(Failure::new(
                                Exit::Failure,
                                format!("no effect within {EFFECT_TIMEOUT:?}"),
                            ));
                        }
                    }
                }
            },
        )
        .await?;
    account
        .step("both connections close", async {
            connections.0.close().await;
            connections.1.close().await;
            Ok(())
        })
        .await
}

fn has_document(sync: &Value, document: &Value) -> bool {
    let upserts = sync.get("upserts").and_then(Value::as_array);
    upserts
        .into_iter()
        .flatten()
        .any(|upsert| upsert.get("doc") == Some(document))
}

/// The largest request there is, out in records and back as fragments.
async fn large_value(account: &mut Account, session: &mut Session) -> Result<(), Failure> {
    let value = random_text(LARGE_MESSAGE - LARGE_OVERHEAD)?;
    let document = json!({ "value": value });
    account
        .step("Bob writes a value of 4 MiB", async {
            let operation = json!([{ "op": "set", "id": "of:large", "value": document.clone() }]);
            session.commit(operation).await.map_err(failed).map(drop)
        })
        .await?;
    account
        .step("Bob reads it back", async {
            let answer = session.query(&["of:large"]).await.map_err(failed)?;
            let back = answer.pointer("/entities/0/document");
            if back == Some(&document) {
                Ok(())
            } else {
                Err(Failure::new(Exit::Failure, "it came back changed"))
            }
        })
        .await
}

/// Text that compression cannot make much smaller.
fn random_text(len: usize) -> Result<String, Failure> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = vec![0; len];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::because(Exit::Failure, "no random bytes", error))?;
    let letter = |byte: u8| {
        char::from(
            ALPHABET
                .get(usize::from(byte % 64))
                .copied()
                .unwrap_or(b'A'),
        )
    };
    Ok(bytes.into_iter().map(letter).collect())
}

fn failed(error: ClientError) -> Failure {
    Failure::because(Exit::Failure, "the client failed", error)
}
