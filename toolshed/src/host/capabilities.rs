//! What this toolshed says it can do.

use memory_wire::flags::{self, Capability, Flags, FlagsError};

/// Compression of whole messages.
pub(crate) const MESSAGE_COMPRESSION: &str = "messageCompressionV1";

/// The same through a router, end to end.
pub(crate) const ROUTED_COMPRESSION: &str = "routedCompressionV1";

/// The engine's capabilities and the host's own.
///
/// # Errors
/// Never for the few names here; the type says so.
pub(crate) fn public(engine: &Flags) -> Result<Flags, FlagsError> {
    let mut all = engine.clone();
    for name in [
        flags::CONNECTION_AUTH,
        flags::ROUTED_AUTH_V1,
        MESSAGE_COMPRESSION,
        ROUTED_COMPRESSION,
    ] {
        all.insert(name, Capability::Flag(true))?;
    }
    Ok(all)
}

/// What the signed greeting of a link states: [`public`] and the two private requirements.
///
/// # Errors
/// As [`public`].
pub(crate) fn of_link(public: &Flags) -> Result<Flags, FlagsError> {
    let mut all = public.clone();
    for name in [
        flags::ROUTER_ENCODING_NEGOTIATION,
        flags::ROUTER_REQUEST_CREDIT,
    ] {
        all.insert(name, Capability::Flag(true))?;
    }
    Ok(all)
}

/// Whether both compression capabilities were negotiated.
pub(crate) fn compresses(negotiated: &Flags) -> bool {
    negotiated.is_true(MESSAGE_COMPRESSION) && negotiated.is_true(ROUTED_COMPRESSION)
}
