//! Gate 21: connections that break before a worker has them, and clients that are browsers.

use rustls::SignatureScheme;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::GateResult;
use super::bystander::Bystander;
use crate::error::same;
use crate::raw::{self, Framing, RawClient, Speaker, ok};
use crate::report::{Figures, figure};
use crate::stage::ORIGIN;
use crate::{Context, Stage};

/// Connections that are reset; several, because where exactly the listener or the spawner is then differs.
const RESETS: usize = 40;

/// What Chrome announces, in its order.
const CHROME_SCHEMES: [SignatureScheme; 8] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA512,
];

/// A TCP reset before hand-over drops only that connection.
pub(super) async fn tcp_reset(stage: &Stage) -> GateResult {
    let bystander = Bystander::arrive(stage).await?;
    let before = (
        stage.router.role("listener")?,
        stage.router.role("spawner")?,
    );
    let mark = stage.router.log().mark();
    for place in 0..RESETS {
        let mut stream = TcpStream::connect(stage.public().address)
            .await
            .during("connecting")?;
        // Every other one has begun its client hello.
        if place % 2 == 1 {
            let begun = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
            stream.write_all(begun).await.during("a client hello")?;
        }
        raw::reset(stream)?;
    }
    // Also one that was handed over and upgraded.
    RawClient::connect(stage).await?.reset()?;

    bystander.is_well().await?;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    speaker.authenticate(&stage.alice).await?;
    speaker.client.reset()?;
    let after = (
        stage.router.role("listener")?,
        stage.router.role("spawner")?,
    );
    same("listener and spawner", after, before)?;
    let died = stage.router.log().select(mark, |line| {
        crate::log::has(line, "reason", "role-died")
            || crate::log::has(line, "reason", "worker-crash")
    });
    same("deaths", died, Vec::<Value>::new())?;
    bystander.leave(stage).await?;
    Ok(figure("resets", RESETS))
}

/// Chrome's signature algorithms and a permessage-deflate offer are served, the extension left out.
pub(super) async fn browser(stage: &Stage) -> GateResult {
    let config = raw::browser_config(stage, &CHROME_SCHEMES)?;
    let origin = format!("Origin: {ORIGIN}");
    let request = raw::request(
        stage,
        memory_wire::upgrade::PUBLIC_PATH,
        &[
            &origin,
            "Pragma: no-cache",
            "Cache-Control: no-cache",
            "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
            "Accept-Encoding: gzip, deflate, br, zstd",
            "Accept-Language: en-US,en;q=0.9",
            "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
        ],
    );
    let answer = raw::dial_with(stage, config, &request).await?;
    same("the status of the upgrade", answer.status, 101)?;
    same(
        "the extension granted",
        answer.field("sec-websocket-extensions"),
        None,
    )?;
    let flags = json!({
        "connectionAuth": true,
        "routedAuthV1": true,
        "stableExpressionResultIds": true,
        "modernCellRep": false,
    });
    let [space, _] = &stage.spaces;
    let mut speaker = Speaker::greet(answer.into_client()?, Framing::Credited, flags).await?;
    speaker.authenticate(&space.owner).await?;
    speaker.open(space.did, space.owner.did()).await?;
    ok(&speaker.request("connection.challenge", json!({})).await?)?;
    speaker.client.reset()?;
    Ok(Figures::new())
}
