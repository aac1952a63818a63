//! Compiled under `#[cfg(test)]` alone.
use super::*;
use crate::codec::{EncodeError, MAX_SAFE_INTEGER};
use crate::ids::{Challenge, ContextId, Digest, EpochId, Nonce, Ticket};
use ed25519_dalek::{Signer, SigningKey};
use proptest::prelude::*;

/// A signed record of any kind, so that each test is written once.
trait Signed: Sized + PartialEq + std::fmt::Debug {
    fn input(&self) -> Result<Vec<u8>, EncodeError>;
    fn open(bytes: &[u8], signer: &Did) -> Result<Self, RecordError>;
}

macro_rules! signed {
    ($($name:ident),*) => {$(
        impl Signed for $name {
            fn input(&self) -> Result<Vec<u8>, EncodeError> {
                self.signing_input()
            }

            fn open(bytes: &[u8], signer: &Did) -> Result<Self, RecordError> {
                Self::verify(bytes, signer)
            }
        }
    )*};
}

signed!(
    Issuance,
    Receipt,
    ToolshedHello,
    LinkChallenge,
    DataHello,
    Binding
);

impl Signed for Statement {
    fn input(&self) -> Result<Vec<u8>, EncodeError> {
        self.signing_input()
    }

    fn open(bytes: &[u8], _signer: &Did) -> Result<Self, RecordError> {
        Self::verify(bytes)
    }
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn did_of(key: &SigningKey) -> Did {
    Did::from_key(key.verifying_key().as_bytes()).expect("key")
}

fn seal(key: &SigningKey, input: Vec<u8>) -> Vec<u8> {
    let signature = key.sign(&input).to_bytes();
    attach(input, signature)
}

/// Round trip; every shorter and longer version refused, also when it is signed.
fn check_signed<R: Signed>(record: &R, key: &SigningKey) {
    let signer = did_of(key);
    let input = record.input().expect("fits");
    let bytes = seal(key, input.clone());
    assert_eq!(R::open(&bytes, &signer).as_ref(), Ok(record));
    for length in 0..bytes.len() {
        assert!(R::open(&bytes[..length], &signer).is_err());
    }
    for length in 0..input.len() {
        let bytes = seal(key, input[..length].to_vec());
        assert!(R::open(&bytes, &signer).is_err());
    }
    let longer = seal(key, [input.as_slice(), &[0]].concat());
    let trailing = RecordError::Form(DecodeError::Trailing);
    assert_eq!(R::open(&longer, &signer), Err(trailing));
    assert!(R::open(&[bytes.as_slice(), &[0]].concat(), &signer).is_err());
    let mut other_tag = input;
    other_tag[3] ^= 1;
    let wrong_tag = RecordError::Form(DecodeError::WrongTag);
    let result = R::open(&seal(key, other_tag), &signer);
    assert_eq!(result, Err(wrong_tag));
}

/// Every single flipped bit is refused.
fn check_bits<R: Signed>(record: &R, key: &SigningKey) {
    let signer = did_of(key);
    let mut bytes = seal(key, record.input().expect("fits"));
    for index in 0..bytes.len() {
        for bit in 0..8 {
            bytes[index] ^= 1 << bit;
            assert!(R::open(&bytes, &signer).is_err(), "byte {index} bit {bit}");
            bytes[index] ^= 1 << bit;
        }
    }
    assert!(R::open(&bytes, &signer).is_ok());
}

fn statement() -> Statement {
    Statement {
        principal: did_of(&key(1)),
        router: did_of(&key(2)),
        deployment: "d".to_owned(),
        challenge: Challenge::new([5; 32]),
        iat: 1,
        exp: 2,
    }
}

fn issuance() -> Issuance {
    Issuance {
        deployment: "d".to_owned(),
        router: did_of(&key(2)),
        epoch: EpochId::new([3; 16]),
        context: ContextId::new([4; 16]),
        challenge: Challenge::new([5; 32]),
        issued: 1,
        expires: 2,
    }
}

fn receipt() -> Receipt {
    Receipt {
        issuance_digest: Digest::new([6; 32]),
        principal: did_of(&key(1)),
        statement_digest: Digest::new([7; 32]),
        received: 1,
    }
}

fn toolshed_hello() -> ToolshedHello {
    ToolshedHello {
        toolshed: did_of(&key(3)),
        nonce: Nonce::new([8; 32]),
        issued: 1,
        flags: b"{}".to_vec(),
    }
}

fn link_challenge() -> LinkChallenge {
    LinkChallenge {
        deployment: "d".to_owned(),
        router: did_of(&key(2)),
        toolshed: did_of(&key(3)),
        epoch: EpochId::new([3; 16]),
        nonce: Nonce::new([8; 32]),
    }
}

fn data_hello() -> DataHello {
    DataHello {
        toolshed: did_of(&key(3)),
        nonce: Nonce::new([8; 32]),
        issued: 1,
    }
}

fn binding() -> Binding {
    Binding {
        router: did_of(&key(2)),
        deployment: "d".to_owned(),
        toolshed: did_of(&key(3)),
        epoch: EpochId::new([3; 16]),
        context: ContextId::new([4; 16]),
        ticket: Ticket::new([9; 32]),
        nonce: Nonce::new([8; 32]),
        issued: 1,
        client_flags: Digest::new([10; 32]),
        negotiated_flags: Digest::new([11; 32]),
    }
}

#[test]
fn refuses_every_flipped_bit_of_a_statement() {
    check_bits(&statement(), &key(1));
}

#[test]
fn refuses_every_flipped_bit_of_an_issuance() {
    check_bits(&issuance(), &key(2));
}

#[test]
fn refuses_every_flipped_bit_of_a_receipt() {
    check_bits(&receipt(), &key(2));
}

#[test]
fn refuses_every_flipped_bit_of_a_link_handshake() {
    check_bits(&toolshed_hello(), &key(3));
    check_bits(&link_challenge(), &key(2));
}

#[test]
fn refuses_every_flipped_bit_of_a_data_handshake() {
    check_bits(&data_hello(), &key(3));
    check_bits(&binding(), &key(2));
}

#[test]
fn refuses_every_other_length_of_a_signed_record() {
    check_signed(&statement(), &key(1));
    check_signed(&issuance(), &key(2));
    check_signed(&receipt(), &key(2));
    check_signed(&toolshed_hello(), &key(3));
    check_signed(&link_challenge(), &key(2));
    check_signed(&data_hello(), &key(3));
    check_signed(&binding(), &key(2));
}

#[test]
fn refuses_a_record_that_names_another_signer() {
    let other = key(9);
    let signer = did_of(&other);
    let refused = |input: Result<Vec<u8>, EncodeError>| seal(&other, input.expect("fits"));
    let bytes = refused(issuance().signing_input());
    assert_eq!(Issuance::verify(&bytes, &signer), Err(RecordError::Signer));
    let bytes = refused(toolshed_hello().signing_input());
    assert_eq!(
        ToolshedHello::verify(&bytes, &signer),
        Err(RecordError::Signer)
    );
    let bytes = refused(link_challenge().signing_input());
    assert_eq!(
        LinkChallenge::verify(&bytes, &signer),
        Err(RecordError::Signer)
    );
    let bytes = refused(data_hello().signing_input());
    assert_eq!(DataHello::verify(&bytes, &signer), Err(RecordError::Signer));
    let bytes = refused(binding().signing_input());
    assert_eq!(Binding::verify(&bytes, &signer), Err(RecordError::Signer));
    let bytes = refused(statement().signing_input());
    assert_eq!(Statement::verify(&bytes), Err(RecordError::Signature));
}

#[test]
fn judges_the_signature_before_the_fields() {
    // Not a record at all, but signed: form. The same, unsigned: signature.
    let signer = did_of(&key(2));
    let junk = vec![0xff; 40];
    let signed = seal(&key(2), junk.clone());
    let form = RecordError::Form(DecodeError::WrongTag);
    assert_eq!(Issuance::verify(&signed, &signer), Err(form));
    let unsigned = attach(junk, [0; 64]);
    assert_eq!(
        Issuance::verify(&unsigned, &signer),
        Err(RecordError::Signature)
    );
}

#[test]
fn refuses_other_words_in_a_statement() {
    let input = statement().signing_input().expect("fits");
    for (from, to) in [("connection.auth", "connection.xuth"), ("memory", "memorz")] {
        let at = input
            .windows(from.len())
            .position(|window| window == from.as_bytes())
            .expect("word");
        let mut changed = input.clone();
        changed[at..at + from.len()].copy_from_slice(to.as_bytes());
        let result = Statement::verify(&seal(&key(1), changed));
        assert_eq!(result, Err(RecordError::Form(DecodeError::Value)));
    }
}

#[test]
fn refuses_a_link_challenge_without_its_assertion() {
    let mut input = link_challenge().signing_input().expect("fits");
    assert_eq!(input.last(), Some(&1));
    for value in [0, 2, 3, 0xff] {
        *input.last_mut().expect("byte") = value;
        let bytes = seal(&key(2), input.clone());
        let result = LinkChallenge::verify(&bytes, &did_of(&key(2)));
        assert_eq!(result, Err(RecordError::Form(DecodeError::Value)));
    }
}

#[test]
fn bounds_statements_and_records() {
    let mut long = statement();
    long.deployment = "d".repeat(256);
    let bytes = seal(&key(1), long.signing_input().expect("fits"));
    assert_eq!(Statement::verify(&bytes).as_ref(), Ok(&long));
    let text = crate::base64url::encode(&bytes);
    assert_eq!(Statement::from_base64url(&text), Ok(bytes));
    assert!(Statement::from_base64url(&"A".repeat(MAX_STATEMENT_TEXT_LEN)).is_ok());
    assert!(Statement::from_base64url(&"A".repeat(MAX_STATEMENT_TEXT_LEN + 1)).is_err());
    long.deployment.push('d');
    assert_eq!(long.signing_input(), Err(EncodeError::TextLength));

    let too_long = RecordError::Form(DecodeError::TooLong);
    let signer = did_of(&key(2));
    assert_eq!(Statement::verify(&[0; 1025]), Err(too_long));
    assert_eq!(Issuance::verify(&[0; 4097], &signer), Err(too_long));

    let mut hello = toolshed_hello();
    hello.flags = vec![b'x'; MAX_RECORD_LEN - 64 - 4 - 58 - 32 - 8 - 2];
    let bytes = seal(&key(3), hello.signing_input().expect("fits"));
    assert_eq!(bytes.len(), MAX_RECORD_LEN);
    assert!(ToolshedHello::verify(&bytes, &did_of(&key(3))).is_ok());
    hello.flags.push(b'x');
    assert_eq!(hello.signing_input(), Err(EncodeError::TooLong));
}

/// Round trip of a record without signature; every other length refused.
macro_rules! check_plain {
    ($name:ident, $record:expr) => {{
        let record = $record;
        let bytes = record.encode().expect("fits");
        let decoded = $name::decode(&bytes);
        prop_assert_eq!(decoded.as_ref(), Ok(&record));
        for length in 0..bytes.len() {
            prop_assert!($name::decode(&bytes[..length]).is_err());
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        prop_assert_eq!($name::decode(&longer), Err(DecodeError::Trailing));
        let mut other_tag = bytes;
        other_tag[0] ^= 0x20;
        if stringify!($name) != "CloseRequest" {
            prop_assert_eq!($name::decode(&other_tag), Err(DecodeError::WrongTag));
        }
    }};
}

fn any_did() -> impl Strategy<Value = Did> {
    (1..=9_u8).prop_map(|seed| did_of(&key(seed)))
}

fn any_blob() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..300)
}

fn any_operation() -> impl Strategy<Value = Operation> {
    (1..=6_u8).prop_map(|code| Operation::try_from(code).expect("known"))
}

const TIME: std::ops::RangeInclusive<u64> = 0..=MAX_SAFE_INTEGER;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plain_records_round_trip(
        (statement, issuance, receipt) in (any_blob(), any_blob(), any_blob()),
        (sequence, epoch) in (TIME, TIME),
        (operation, status) in (any_operation(), any::<u8>()),
        (context, ticket) in (any::<[u8; 16]>(), any::<[u8; 32]>()),
        (space, flags) in (any_did(), any_blob()),
    ) {
        let (context, ticket) = (ContextId::new(context), Ticket::new(ticket));
        let payload = statement.clone();
        check_plain!(ControlRequest, ControlRequest { sequence, operation, payload: payload.clone() });
        check_plain!(ControlResponse, ControlResponse { sequence, status, payload: payload.clone() });
        check_plain!(TicketRequest, TicketRequest { context, flags: flags.clone(), space, epoch });
        check_plain!(TicketProof, TicketProof { ticket, proof: payload.clone() });
        check_plain!(CloseRequest, CloseRequest { context });
        check_plain!(ReleaseRequest, ReleaseRequest { context, principal: space });
        check_plain!(SpaceRequest, SpaceRequest { context, space, epoch });
        check_plain!(ContextProof, ContextProof { context, flags, proof: payload });
        check_plain!(Proof, Proof { statement, issuance, receipt });
    }

    #[test]
    fn signed_records_round_trip(
        (a, b, c) in (1..=9_u8, 1..=9_u8, any_blob()),
        (iat, exp) in (TIME, TIME),
        deployment in "[!-~]{1,40}",
        (x, y, z) in (any::<[u8; 16]>(), any::<[u8; 32]>(), any::<[u8; 32]>()),
    ) {
        let (one, two) = (key(a), key(b));
        let (first, second) = (did_of(&one), did_of(&two));
        let open = |input: Result<Vec<u8>, EncodeError>| seal(&one, input.expect("fits"));

        let record = Statement {
            principal: first, router: second, deployment: deployment.clone(),
            challenge: Challenge::new(y), iat, exp,
        };
        prop_assert_eq!(Statement::verify(&open(record.signing_input())), Ok(record));
        let record = Issuance {
            deployment: deployment.clone(), router: first, epoch: EpochId::new(x),
            context: ContextId::new(x), challenge: Challenge::new(y), issued: iat, expires: exp,
        };
        prop_assert_eq!(Issuance::verify(&open(record.signing_input()), &first), Ok(record));
        let record = Receipt {
            issuance_digest: Digest::new(y), principal: second,
            statement_digest: Digest::new(z), received: iat,
        };
        prop_assert_eq!(Receipt::verify(&open(record.signing_input()), &first), Ok(record));
        let record = ToolshedHello { toolshed: first, nonce: Nonce::new(y), issued: iat, flags: c };
        prop_assert_eq!(ToolshedHello::verify(&open(record.signing_input()), &first), Ok(record));
        let record = LinkChallenge {
            deployment: deployment.clone(), router: first, toolshed: second,
            epoch: EpochId::new(x), nonce: Nonce::new(y),
        };
        prop_assert_eq!(LinkChallenge::verify(&open(record.signing_input()), &first), Ok(record));
        let record = DataHello { toolshed: first, nonce: Nonce::new(y), issued: iat };
        prop_assert_eq!(DataHello::verify(&open(record.signing_input()), &first), Ok(record));
        let record = Binding {
            router: first, deployment, toolshed: second, epoch: EpochId::new(x),
            context: ContextId::new(x), ticket: Ticket::new(y), nonce: Nonce::new(z), issued: exp,
            client_flags: Digest::new(z), negotiated_flags: Digest::new(y),
        };
        prop_assert_eq!(Binding::verify(&open(record.signing_input()), &first), Ok(record));
    }

    #[test]
    fn any_bytes_are_read_without_panic(
        tag in 0..15_usize,
        tail in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let tags = [
            "mra1", "mrc1", "mrr1", "mrp1", "rph1", "rpc1", "mlq1", "mls1", "mat1", "map1",
            "mrl1", "mas1", "mvp1", "rdh1", "rdb1",
        ];
        let bytes = [tags[tag].as_bytes(), &tail].concat();
        // Signed, so that the fields are reached.
        let (one, signer) = (key(1), did_of(&key(1)));
        let signed = seal(&one, bytes.clone());
        for bytes in [&signed, &bytes, &tail] {
            let _ = Statement::verify(bytes);
            let _ = Issuance::verify(bytes, &signer);
            let _ = Receipt::verify(bytes, &signer);
            let _ = ToolshedHello::verify(bytes, &signer);
            let _ = LinkChallenge::verify(bytes, &signer);
            let _ = DataHello::verify(bytes, &signer);
            let _ = Binding::verify(bytes, &signer);
        }
        macro_rules! decode {
            ($($name:ident),*) => {$(
                if let Ok(record) = $name::decode(&bytes) {
                    prop_assert_eq!(record.encode(), Ok(bytes.clone()));
                }
            )*};
        }
        decode!(
            Proof, ControlRequest, ControlResponse, TicketRequest, TicketProof, CloseRequest,
            ReleaseRequest, SpaceRequest, ContextProof
        );
    }
}

#[test]
fn knows_six_operations() {
    for code in 0..=u8::MAX {
        let operation = Operation::try_from(code);
        assert_eq!(operation.is_ok(), (1..=6).contains(&code));
        assert!(
            operation.is_ok_and(|operation| operation.code() == code) || !(1..=6).contains(&code)
        );
    }
}
