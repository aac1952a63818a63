//! Ways to misbehave.

/// How a data socket is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conduct {
    /// As the protocol says.
    Honest,
    // Before the binding is asked for.
    /// Ends the socket instead of greeting.
    NoGreeting,
    /// Greets with another key's signature.
    ForgedGreeting,
    /// Greets with text.
    TextGreeting,
    // After the binding.
    /// Ends the socket after `router.hello`.
    EndAfterHello,
    /// Confirms a capability that was not selected.
    EchoMore,
    /// Confirms fewer capabilities than were selected.
    EchoLess,
    /// Does not confirm request credit.
    ReadyWithoutCredit,
    /// Does not support the offer any more.
    ReadyWithoutSupport,
    /// Confirms in binary.
    BinaryReady,
    /// Grants the window twice.
    CreditTwice,
    /// Grants nothing at all, in a record.
    CreditZero,
    /// Never grants.
    NoCredit,
    // In the answer to a request of a session.
    /// Gives an answer of so many bytes, which is no fault up to the bound.
    Sized(u32),
    /// Says that the body is an envelope, which the client did not negotiate.
    BinaryBody,
    /// The same, and the body is none.
    NoEnvelope,
    /// Completes a body too early.
    Truncated,
    /// Sends more than the header says.
    Overlong,
    /// Sends a chunk without a header.
    NoHeader,
    /// Sends a record that is longer than any may be.
    HugeRecord,
    /// Sends a record of an unknown kind.
    UnknownKind,
    /// Sends text.
    Text,
    /// Pushes to a session that another toolshed has.
    WrongSession,
    /// Answers a request that nobody sent.
    UnknownRequest,
    /// Answers twice.
    AnswerTwice,
    /// Assigns a session in an answer that opens none.
    AssignSession,
    /// Pushes to the session after confirming its end.
    PushAfterEnd,
    /// Says goodbye and goes on.
    DataAfterClose,
}

/// How a link is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkConduct {
    /// As the protocol says.
    Honest,
    /// Greets with another key's signature.
    ForgedGreeting,
    /// Acknowledges with other bytes.
    WrongAcknowledgement,
    /// Answers with another number.
    WrongSequence,
    /// Answers what was not asked.
    Unasked,
    /// Gives a ticket that is too short.
    ShortTicket,
    /// Answers with text.
    Text,
    /// Sends a message over the bound.
    Huge,
}
