//! `memory-router check`, and each role's part of it at start: broken deployments, each with what is to be found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod command;
mod live;
mod start;
#[path = "../support/mod.rs"]
mod support;
mod world;
