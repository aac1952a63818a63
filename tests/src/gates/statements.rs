//! The table of authentication, row by row: what the client is told, and what the log tells the operator.

use std::time::Duration;

use memory_client::{Did, Identity};
use memory_wire::admission::CHALLENGE_LIFETIME;
use memory_wire::base64url;
use memory_wire::codec::Writer;
use memory_wire::ids::Challenge;
use memory_wire::records::attach;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::GateResult;
use super::acts::{Seat, identities, try_open};
use super::bystander::Bystander;
use super::denial::{Refusal, closes, denied, denied_because, logged};
use super::malformed::closes_as_broken;
use crate::error::same;
use crate::raw::{Claim, Framing, Speaker, ok, unix_now};
use crate::report::figure;
use crate::stage::{StageOptions, identity};
use crate::{Context, GateError, Stage, log};

/// Seed of the router's own key.
const ROUTER: u8 = 21;

/// Challenges that one connection may leave unanswered; one more supersedes the oldest.
const MOST_CHALLENGES: usize = 48;

/// Keys that may sign one challenge, and may be active at once: the router's defaults.
const MOST_SIGNERS: u8 = 64;
const MOST_PRINCIPALS: u8 = 16;

/// Every row that needs no limit smaller than the default.
pub(super) async fn table(stage: &Stage) -> GateResult {
    let bystander = Bystander::arrive(stage).await?;
    let refused = refusals(stage).await?;
    repeats(stage).await?;
    let broken = broken_rules(stage).await?;
    signers(stage).await?;
    bystander.leave(stage).await?;
    let small = StageOptions {
        limits: "max_principals_per_connection = 2\nmax_principal_history = 3\n\
            max_connections_per_principal = 1"
            .to_owned(),
        ..StageOptions::default()
    };
    let mut small = Stage::set(stage.programs(), small).await?;
    principals(&small).await?;
    no_toolshed(&mut small).await?;
    small.strike().await?;
    Ok(figure("rows", refused + broken + 6))
}

/// A challenge is good for its time and no longer, also while its connection lives; a fresh one then is.
pub(super) async fn expiry(stage: &Stage) -> GateResult {
    let options = StageOptions {
        // The raw client answers pings only while it waits for something.
        timeouts: "ping_interval = \"10m\"".to_owned(),
        ..StageOptions::default()
    };
    let stage = Stage::set(stage.programs(), options).await?;
    let [space, other] = &stage.spaces;
    let mut speaker = Speaker::connect(&stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let claim = Claim::fresh(&mut speaker, 600).await?;
    // Signed in time, it outlives its challenge.
    let over = Instant::now() + Duration::from_secs(CHALLENGE_LIFETIME);
    ok(&claim.present(&mut speaker, &space.owner).await?)?;
    sleep_until(over).await;
    let mark = stage.router.log().mark();
    let answer = claim.present(&mut speaker, &other.owner).await?;
    let refusal = Refusal::ForNow;
    denied_because(&stage, (mark, &name), &answer, refusal, "challenge-expired").await?;
    let fresh = Claim::fresh(&mut speaker, 600).await?;
    ok(&fresh.present(&mut speaker, &other.owner).await?)?;
    for space in [space, other] {
        Seat::open(&mut speaker, space.did, space.owner.did())
            .await?
            .reads_fixture(&mut speaker)
            .await?;
    }
    speaker.client.reset()?;
    stage.strike().await?;
    Ok(figure("lifetime_s", CHALLENGE_LIFETIME))
}

/// Statements that are refused, each on one connection that goes on.
async fn refusals(stage: &Stage) -> Result<usize, GateError> {
    use Refusal::{ForGood, ForNow};
    let [space, _] = &stage.spaces;
    let key = &space.owner;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let now = unix_now();
    let honest = Claim::fresh(&mut speaker, 600).await?;
    let elsewhere = {
        let mut other = Speaker::connect(stage, Framing::Credited, false).await?;
        let challenge = Claim::fresh(&mut other, 600).await?.challenge;
        other.client.reset()?;
        challenge
    };
    let with = |iat: u64, exp: u64| Claim {
        iat,
        exp,
        ..honest.clone()
    };
    let answering = |challenge: Challenge| Claim {
        challenge,
        ..honest.clone()
    };
    let router = identity(ROUTER)?;
    let cases: [(&str, &Identity, Claim, Refusal, &str); 8] = [
        (
            "a challenge nobody issued",
            key,
            answering(Challenge::new([7; 32])),
            ForNow,
            "challenge-expired",
        ),
        (
            "a challenge of another connection",
            key,
            answering(elsewhere),
            ForNow,
            "challenge-expired",
        ),
        (
            "a clock that is over 120 s ahead",
            key,
            with(now + 130, now + 140),
            ForNow,
            "clock-skew",
        ),
        (
            "a statement that has expired",
            key,
            with(now - 60, now),
            ForNow,
            "statement-expired",
        ),
        (
            "601 s from issue",
            key,
            with(now - 60, now + 541),
            ForGood,
            "lease-too-long",
        ),
        (
            "over 600 s from receipt",
            key,
            with(now + 60, now + 660),
            ForGood,
            "lease-too-long",
        ),
        (
            "both a lease too long and a clock ahead",
            key,
            with(now + 130, now + 731),
            ForGood,
            "lease-too-long",
        ),
        (
            "the router's own key",
            &router,
            honest.clone(),
            ForGood,
            "principal-revoked",
        ),
    ];
    let count = cases.len() + 1;
    for (what, key, claim, refusal, reason) in cases {
        let mark = stage.router.log().mark();
        let answer = claim.present(&mut speaker, key).await?;
        denied_because(stage, (mark, &name), &answer, refusal, reason)
            .await
            .map_err(|error| error.within(what))?;
    }
    // None of them counted: nobody has signed.
    let answer = try_open(&mut speaker, space.did, key.did()).await?;
    denied("an open after refusals", &answer, ForGood)?;
    // A clock that is ahead by what is allowed is served, and so is the challenge that was refused for so much else.
    let ahead = with(now + 100, now + 500);
    ok(&ahead.present(&mut speaker, key).await?)?;
    Seat::open(&mut speaker, space.did, key.did())
        .await?
        .reads_fixture(&mut speaker)
        .await?;

    // Asked for too often: the oldest is superseded, the newest is good.
    let mark = stage.router.log().mark();
    let first = Claim::fresh(&mut speaker, 600).await?;
    let mut last = first.clone();
    for _ in 0..MOST_CHALLENGES {
        last = Claim::fresh(&mut speaker, 600).await?;
    }
    let answer = first.present(&mut speaker, key).await?;
    denied_because(stage, (mark, &name), &answer, ForNow, "challenge-expired").await?;
    ok(&last.present(&mut speaker, key).await?)?;
    speaker.client.reset()?;
    Ok(count)
}

/// The same bytes again are answered as the first time; other bytes for the same challenge are refused for good.
async fn repeats(stage: &Stage) -> Result<(), GateError> {
    let [space, other] = &stage.spaces;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let claim = Claim::of_hello(&speaker, 600)?;
    let record = claim.record(&space.owner)?;
    let first = speaker.present(&record).await?;
    let second = speaker.present(&record).await?;
    same("the answer to a repeat", ok(&second)?, ok(&first)?)?;

    let mark = stage.router.log().mark();
    let shorter = Claim {
        exp: claim.exp - 1,
        ..claim.clone()
    };
    let answer = shorter.present(&mut speaker, &space.owner).await?;
    denied_because(
        stage,
        (mark, &name),
        &answer,
        Refusal::ForGood,
        "challenge-reused",
    )
    .await?;
    // It is one statement for each principal, not for each challenge.
    ok(&claim.present(&mut speaker, &other.owner).await?)?;
    for space in [space, other] {
        Seat::open(&mut speaker, space.did, space.owner.did())
            .await?
            .reads_fixture(&mut speaker)
            .await?;
    }
    speaker.client.reset()
}

/// Statements that close the connection.
async fn broken_rules(stage: &Stage) -> Result<usize, GateError> {
    let [space, other] = &stage.spaces;
    let key = &space.owner;
    // The challenge of hello differs from connection to connection.
    type Build = fn(&Claim, &Identity, Did) -> Result<Vec<u8>, GateError>;
    let cases: [(&str, Build, &str); 8] = [
        (
            "another audience",
            |claim, key, other| {
                Claim {
                    router: other,
                    ..claim.clone()
                }
                .record(key)
            },
            "statement-audience",
        ),
        (
            "another deployment",
            |claim, key, _| {
                Claim {
                    deployment: "elsewhere".to_owned(),
                    ..claim.clone()
                }
                .record(key)
            },
            "statement-audience",
        ),
        (
            "another command",
            |claim, key, _| spelled(claim, key, ("connection.open", "memory")),
            "statement-record",
        ),
        (
            "another protocol",
            |claim, key, _| spelled(claim, key, ("connection.auth", "fabric")),
            "statement-record",
        ),
        (
            "a signature with one bit changed",
            |claim, key, _| {
                let mut record = claim.record(key)?;
                if let Some(byte) = record.last_mut() {
                    *byte ^= 1;
                }
                Ok(record)
            },
            "statement-record",
        ),
        (
            "a record cut short",
            |claim, key, _| {
                let mut record = claim.record(key)?;
                record.pop();
                Ok(record)
            },
            "statement-record",
        ),
        (
            "a byte after the record",
            |claim, key, _| {
                let mut record = claim.record(key)?;
                record.push(0);
                Ok(record)
            },
            "statement-record",
        ),
        (
            "an end before its beginning",
            |claim, key, _| {
                Claim {
                    exp: claim.iat,
                    ..claim.clone()
                }
                .record(key)
            },
            "connection.auth",
        ),
    ];
    let count = cases.len();
    for (what, build, detail) in cases {
        let mark = stage.router.log().mark();
        let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
        let claim = Claim::of_hello(&speaker, 600)?;
        let record = build(&claim, key, other.did)?;
        let statement = base64url::encode(&record);
        send_statement(&mut speaker, json!(statement)).await?;
        closes_as_broken(stage, mark, &mut speaker, detail)
            .await
            .map_err(|error| error.within(what))?;
    }
    let texts = [
        ("padding", json!("bXJhMQ=="), "statement-base64url"),
        ("stray bits", json!("bXJhMR"), "statement-base64url"),
        (
            "1,366 characters",
            json!("A".repeat(1366)),
            "statement-record",
        ),
        (
            "1,367 characters",
            json!("A".repeat(1367)),
            "message-member",
        ),
        ("no statement", Value::Null, "message-member"),
    ];
    let total = count + texts.len();
    for (what, statement, detail) in texts {
        let mark = stage.router.log().mark();
        let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
        send_statement(&mut speaker, statement).await?;
        closes_as_broken(stage, mark, &mut speaker, detail)
            .await
            .map_err(|error| error.within(what))?;
    }
    Ok(total)
}

async fn send_statement(speaker: &mut Speaker, statement: Value) -> Result<(), GateError> {
    let members = json!({ "statement": statement });
    let (_, message) = speaker.compose("connection.auth", members)?;
    speaker.send(&message).await
}

/// A statement with another command or protocol in it, properly signed.
fn spelled(
    claim: &Claim,
    key: &Identity,
    (command, protocol): (&str, &str),
) -> Result<Vec<u8>, GateError> {
    let input = Writer::new(b"mra1")
        .text(key.did().as_str())
        .text(command)
        .text(claim.router.as_str())
        .text(protocol)
        .text(&claim.deployment)
        .fixed(claim.challenge.as_bytes())
        .time(claim.iat)
        .time(claim.exp)
        .finish()
        .during("a statement")?;
    let signature = key.sign(&input);
    Ok(attach(input, signature))
}

/// One challenge may be signed by so many keys, released ones included; one more closes.
async fn signers(stage: &Stage) -> Result<(), GateError> {
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let claim = Claim::of_hello(&speaker, 600)?;
    for (place, key) in (0..).zip(identities(100, MOST_SIGNERS)?) {
        ok(&claim.present(&mut speaker, &key).await?)?;
        // As many as may be active at once stay.
        if place >= MOST_PRINCIPALS - 1 {
            speaker.release(key.did()).await?;
        }
    }
    let record = claim.record(&stage.alice)?;
    send_statement(&mut speaker, json!(base64url::encode(&record))).await?;
    closes(&mut speaker, 1008, "challenge-signers").await?;
    logged(stage, (mark, &name), "challenge-signers").await
}

/// Limits of keys on a connection, and of connections of a key. Each refuses one authentication, and the connection goes on.
async fn principals(stage: &Stage) -> Result<(), GateError> {
    let keys = identities(100, 4)?;
    let [first, second, third, fourth] = keys.as_slice() else {
        return Err(GateError::new("keys", "four", keys.len()));
    };
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let claim = Claim::of_hello(&speaker, 600)?;
    for key in [first, second] {
        ok(&claim.present(&mut speaker, key).await?)?;
    }
    let because = |answer: Value, name: String, reason: &'static str| async move {
        denied_because(stage, (mark, &name), &answer, Refusal::ForNow, reason).await
    };
    let answer = claim.present(&mut speaker, third).await?;
    because(answer, name.clone(), "principal-limit").await?;
    // Those who are in may renew.
    let renewal = Claim::fresh(&mut speaker, 600).await?;
    ok(&renewal.present(&mut speaker, second).await?)?;
    speaker.release(first.did()).await?;
    ok(&claim.present(&mut speaker, third).await?)?;

    speaker.release(second.did()).await?;
    let answer = claim.present(&mut speaker, fourth).await?;
    because(answer, name.clone(), "principal-history-limit").await?;

    let mut other = Speaker::connect(stage, Framing::Credited, false).await?;
    let others = other.connection()?;
    let claim = Claim::of_hello(&other, 600)?;
    let answer = claim.present(&mut other, third).await?;
    because(answer, others, "principal-connection-limit").await?;
    // Released there, it is nowhere active.
    ok(&claim.present(&mut other, first).await?)?;
    speaker.release(third.did()).await?;
    ok(&claim.present(&mut other, third).await?)?;
    speaker.client.reset()?;
    other.client.reset()
}

/// No compatible toolshed linked: both have revoked the router.
async fn no_toolshed(stage: &mut Stage) -> Result<(), GateError> {
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let revoke = json!({ "revoke": stage.audience });
    for toolshed in &mut stage.toolsheds {
        toolshed.command(&revoke).await?;
    }
    for toolshed in ["toolshed-0", "toolshed-1"] {
        let gone = |line: &Value| {
            log::has(line, "toolshed", toolshed) && log::has(line, "reason", "link-lost")
        };
        stage.router.log().wait("link-lost", mark, gone).await?;
    }
    let claim = Claim::of_hello(&speaker, 600)?;
    let answer = claim.present(&mut speaker, &stage.alice).await?;
    denied_because(
        stage,
        (mark, &name),
        &answer,
        Refusal::ForNow,
        "upstream-unavailable",
    )
    .await?;
    speaker.client.reset()
}
