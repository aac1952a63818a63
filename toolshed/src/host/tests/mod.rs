//! Compiled under `#[cfg(test)]` alone.
mod bind;
mod control;
mod request;
mod support;
