//! What a client signs to authenticate, and what the router attests about it.

use super::field::{Field, plain_record, signed_record};
use super::{RecordError, split_signature};
use crate::base64url::{self, Base64Error};
use crate::codec::{DecodeError, EncodeError, Reader, Writer};
use crate::did::Did;
use crate::ids::{Challenge, ContextId, Digest, EpochId};

/// Bytes of the longest statement, its signature included (`docs/protocol.md` section 4.4).
pub const MAX_STATEMENT_LEN: usize = 1024;

/// Characters of the longest statement's base64url text.
pub const MAX_STATEMENT_TEXT_LEN: usize = base64url::encoded_len(MAX_STATEMENT_LEN);

const _: () = assert!(MAX_STATEMENT_TEXT_LEN == 1366);

/// A client's claim to a key: `mra1`, signed by that key. It says nothing about spaces, and is good for this router,
/// this deployment and this challenge alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Statement {
    /// The key that signs.
    pub principal: Did,
    /// The router it is meant for.
    pub router: Did,
    /// The deployment it is meant for.
    pub deployment: String,
    /// The challenge it answers.
    pub challenge: Challenge,
    /// Unix second of signing, by the client's clock.
    pub iat: u64,
    /// Unix second at which the lease ends.
    pub exp: u64,
}

impl Statement {
    /// The four bytes that open this record.
    pub const TAG: &'static [u8; 4] = b"mra1";

    /// The command text of every statement.
    pub const COMMAND: &'static str = "connection.auth";

    /// The protocol text of every statement.
    pub const PROTOCOL: &'static str = "memory";

    /// The bytes to sign: the whole record but its signature.
    ///
    /// # Errors
    /// A field that does not fit, or a record past [`MAX_STATEMENT_LEN`].
    pub fn signing_input(&self) -> Result<Vec<u8>, EncodeError> {
        let writer = Writer::with_limit(Self::TAG, MAX_STATEMENT_LEN - super::SIGNATURE_LEN)
            .text(self.principal.as_str())
            .text(Self::COMMAND)
            .text(self.router.as_str())
            .text(Self::PROTOCOL)
            .text(&self.deployment);
        self.challenge
            .put(writer)
            .time(self.iat)
            .time(self.exp)
            .finish()
    }

    /// Reads the whole of `bytes` as a statement signed by the principal that it names. The form is judged here; whether
    /// the statement is meant for this router, now, is [`crate::admission::judge_statement`]'s to say.
    ///
    /// # Errors
    /// [`RecordError`]: of the fields only the principal, whose key the signature is checked with, is read before that.
    pub fn verify(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() > MAX_STATEMENT_LEN {
            return Err(DecodeError::TooLong.into());
        }
        let (input, signature) = split_signature(bytes)?;
        let mut reader = Reader::new(input, Self::TAG)?;
        let principal = Did::take(&mut reader)?;
        if !principal.verify(input, signature) {
            return Err(RecordError::Signature);
        }
        expect_text(&mut reader, Self::COMMAND)?;
        let router = Did::take(&mut reader)?;
        expect_text(&mut reader, Self::PROTOCOL)?;
        let statement = Self {
            principal,
            router,
            deployment: String::take(&mut reader)?,
            challenge: Challenge::take(&mut reader)?,
            iat: reader.time()?,
            exp: reader.time()?,
        };
        reader.finish()?;
        Ok(statement)
    }

    /// The bytes of a statement's canonical base64url text, as `connection.auth` carries it. They are not verified.
    ///
    /// # Errors
    /// [`Base64Error`], also for a text past [`MAX_STATEMENT_TEXT_LEN`].
    pub fn from_base64url(text: &str) -> Result<Vec<u8>, Base64Error> {
        base64url::decode(text, MAX_STATEMENT_LEN)
    }
}

fn expect_text(reader: &mut Reader<'_>, expected: &str) -> Result<(), DecodeError> {
    if reader.text()? == expected {
        Ok(())
    } else {
        Err(DecodeError::Value)
    }
}

/// The router's evidence that it issued a challenge to a context: `mrc1`, one for each link epoch live at that time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Issuance {
    /// The deployment.
    pub deployment: String,
    /// The router that signs.
    pub router: Did,
    /// The link whose toolshed this is for.
    pub epoch: EpochId,
    /// The context the challenge belongs to.
    pub context: ContextId,
    /// The challenge.
    pub challenge: Challenge,
    /// Unix second of issue.
    pub issued: u64,
    /// Unix second from which the challenge is void.
    pub expires: u64,
}

signed_record!(Issuance, b"mrc1", [deployment, router, epoch, context, challenge, issued, expires], signer router);

/// The router's evidence of when it received which statement for which issuance: `mrr1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// SHA-256 of the whole signed issuance.
    pub issuance_digest: Digest,
    /// The statement's principal.
    pub principal: Did,
    /// SHA-256 of the whole signed statement.
    pub statement_digest: Digest,
    /// Unix second of receipt.
    pub received: u64,
}

signed_record!(
    Receipt,
    b"mrr1",
    [issuance_digest, principal, statement_digest, received]
);

/// What a toolshed needs to believe that a principal authenticated: `mrp1`. Its parts are judged together by
/// [`crate::admission::verify_proof`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Proof {
    /// The whole signed [`Statement`].
    pub statement: Vec<u8>,
    /// The whole signed [`Issuance`].
    pub issuance: Vec<u8>,
    /// The whole signed [`Receipt`].
    pub receipt: Vec<u8>,
}

plain_record!(Proof, b"mrp1", [statement, issuance, receipt]);
