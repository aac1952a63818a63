//! Hearing the client while it is in the middle of a message, and what it means when it cannot be read.

use std::future::{Future, poll_fn};
use std::pin::pin;

use memory_transport::{Incoming, WsReadError, WsReader};
use memory_wire::reason::Reason;

use crate::ClientRead;
use crate::end::End;

/// The next message; every byte of it on its way shows a client that is there.
pub(crate) async fn listen(
    reader: &mut WsReader<ClientRead>,
    heard: &dyn Fn(bool),
) -> Result<Incoming, WsReadError> {
    poll_fn(|context| {
        let before = reader.received();
        // Made anew for each poll, as it may be: nothing is lost with it, and the count can be read in between.
        let next = pin!(reader.next()).poll(context);
        if reader.received() != before {
            heard(false);
            heard(true);
        }
        next
    })
    .await
}

/// What a failure to read says about the client.
pub(crate) fn read_end(error: &WsReadError) -> End {
    match error {
        WsReadError::TooLarge { .. } => End::new(Reason::MessageTooLarge, "message"),
        WsReadError::Frame(fault) => End::client(fault.reason()),
        WsReadError::FragmentedBinary => End::client("fragmented-record"),
        WsReadError::Io(_)
        | WsReadError::EndOfStream
        | WsReadError::Truncated
        | WsReadError::Ended => End::new(Reason::ClientLost, "client-read"),
    }
}
