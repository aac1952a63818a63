//! Statements of any content: what a raw client signs, rule by rule.

use std::time::{SystemTime, UNIX_EPOCH};

use memory_client::{Did, Identity};
use memory_wire::base64url;
use memory_wire::ids::Challenge;
use memory_wire::records::{Statement, attach};
use serde_json::{Value, json};

use super::{Speaker, did, ok, text};
use crate::{Context, GateError};

/// What a statement says, beside who says it.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The audience.
    pub router: Did,
    /// The deployment.
    pub deployment: String,
    /// The challenge that it answers.
    pub challenge: Challenge,
    /// Issue, Unix seconds.
    pub iat: u64,
    /// Expiry, Unix seconds.
    pub exp: u64,
}

impl Claim {
    /// What an honest client signs now for the challenge of hello, for this many seconds.
    ///
    /// # Errors
    /// When hello told no challenge.
    pub fn of_hello(speaker: &Speaker, lease: u64) -> Result<Self, GateError> {
        let open = speaker.hello.get("sessionOpen").during("sessionOpen")?;
        let iat = unix_now();
        Ok(Self {
            router: did(open, "audience")?,
            deployment: text(open, "deployment")
                .during("the deployment")?
                .to_owned(),
            challenge: challenge_of(open)?,
            iat,
            exp: iat + lease,
        })
    }

    /// The same for a challenge that is asked for now.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn fresh(speaker: &mut Speaker, lease: u64) -> Result<Self, GateError> {
        let answer = speaker.request("connection.challenge", json!({})).await?;
        Ok(Self {
            challenge: challenge_of(ok(&answer)?)?,
            ..Self::of_hello(speaker, lease)?
        })
    }

    /// The same for a challenge that the router pushed.
    ///
    /// # Errors
    /// When the push has none.
    pub fn pushed(speaker: &Speaker, push: &Value, lease: u64) -> Result<Self, GateError> {
        Ok(Self {
            challenge: challenge_of(push)?,
            ..Self::of_hello(speaker, lease)?
        })
    }

    /// The record that this identity signs.
    ///
    /// # Errors
    /// When a field does not fit a record.
    pub fn record(&self, identity: &Identity) -> Result<Vec<u8>, GateError> {
        let input = Statement {
            principal: identity.did(),
            router: self.router,
            deployment: self.deployment.clone(),
            challenge: self.challenge,
            iat: self.iat,
            exp: self.exp,
        }
        .signing_input()
        .during("a statement")?;
        let signature = identity.sign(&input);
        Ok(attach(input, signature))
    }

    /// Signs and presents it; gives the answer, error or not.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn present(
        &self,
        speaker: &mut Speaker,
        identity: &Identity,
    ) -> Result<Value, GateError> {
        let record = self.record(identity)?;
        speaker.present(&record).await
    }
}

/// The `challenge` member of a message.
fn challenge_of(message: &Value) -> Result<Challenge, GateError> {
    message
        .get("challenge")
        .and_then(|challenge| text(challenge, "value"))
        .and_then(|value| Challenge::from_hex(value).ok())
        .during("a challenge")
}

impl Speaker {
    /// Presents the bytes of a statement; gives the answer, error or not.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn present(&mut self, record: &[u8]) -> Result<Value, GateError> {
        let statement = base64url::encode(record);
        self.request("connection.auth", json!({ "statement": statement }))
            .await
    }

    /// Signs in for this many seconds over a fresh challenge.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn sign_in(&mut self, identity: &Identity, lease: u64) -> Result<(), GateError> {
        let claim = Claim::fresh(self, lease).await?;
        let answer = claim.present(self, identity).await?;
        ok(&answer).map(drop)
    }

    /// Takes a principal's authority for new opens away.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn release(&mut self, principal: Did) -> Result<(), GateError> {
        let members = json!({ "principal": principal });
        let answer = self.request("connection.release", members).await?;
        ok(&answer).map(drop)
    }
}

/// This host's clock, Unix seconds.
pub fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
