//! What a connection makes of the word that a principal of it was revoked.
//!
//! Compiled under `#[cfg(test)]` alone.

use memory_wire::reason::Reason;

use super::client::{open, request};
use super::{Client, Stage, Toolshed, identity, play, settings};

const REVOKED: (u16, &str) = (1008, "principal-revoked");

async fn session(stage: &mut Stage, client: &mut Client) -> Toolshed {
    client.enter().await;
    client.say(&open("o", 5)).await;
    let mut toolshed = stage.toolshed().await;
    toolshed.serve().await.unwrap();
    assert_eq!(client.message().await["ok"]["sessionId"], "s-o");
    toolshed
}

#[test]
fn a_revoked_principal_ends_the_connection() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        let mut client = stage.connect().await;
        let _toolshed = session(&mut stage, &mut client).await;
        // With a request under way.
        client.say(&request("query", "r", 5, "o")).await;
        stage.revoke(identity(1).did()).await;
        let (code, reason) = client.closing().await;
        assert_eq!((code, reason.as_str()), REVOKED);
        let ended = stage.ended().await;
        assert_eq!(ended, (Reason::PrincipalRevoked, "operator".to_owned()));
    });
}

#[test]
fn the_loss_of_the_toolshed_that_goes_with_it_is_not_what_the_client_is_told() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        let mut client = stage.connect().await;
        let toolshed = session(&mut stage, &mut client).await;
        // The link agent tells its worker before the toolshed, but the worker may see both at once.
        stage.revoke(identity(1).did()).await;
        drop(toolshed);
        let (code, reason) = client.closing().await;
        assert_eq!((code, reason.as_str()), REVOKED);
    });
}
