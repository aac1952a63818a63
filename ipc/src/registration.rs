//! Registering a descriptor with the runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// A descriptor that the runtime watches. The descriptor cannot be reached mutably, so it stays the one registered.
#[derive(Debug)]
pub(crate) struct Registered(AsyncFd<OwnedFd>);

impl Registered {
    /// Has the current tokio runtime watch a descriptor.
    ///
    /// # Errors
    /// Outside of a runtime, or when the kernel refuses. The descriptor is closed then.
    ///
    /// # Panics
    /// In a runtime that was built without its IO driver.
    #[allow(unsafe_code)]
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        // `register` panics outside of a runtime, which a caller's slip should not bring about.
        tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        // SAFETY: `register` asks that the descriptor is open, stays open and stays the same file description until the
        // registration ends, and that `as_raw_fd` always gives the same number. It is owned, so it is open and nobody else
        // may close or replace it; it moves into the registration, and `Registered` gives out shared references only, until
        // `into_fd`, which ends the registration first.
        let registered = unsafe { AsyncFd::register(descriptor) };
        registered.map(Self).map_err(|error| error.into_parts().1)
    }

    pub(crate) fn get(&self) -> &AsyncFd<OwnedFd> {
        &self.0
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0.into_inner()
    }
}
