//! How a data socket comes to a context: `router.hello` judged, the ticket spent, `router.ready` made
//! (`docs/protocol.md` section 6.3).

use super::capabilities;
use super::context::Socket;
use super::outlet::{Outlet, OutputBounds};
use super::state::State;
use crate::memory::BackendId;
use memory_wire::base64url;
use memory_wire::codec::MAX_RECORD_LEN;
use memory_wire::flags::Flags;
use memory_wire::ids::Ticket;
use memory_wire::json::{self, JsonLimits};
use memory_wire::records::{Binding, DataHello};
use memory_wire::stream::MAX_STREAM_RECORD_LEN;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::rc::Rc;

/// A data socket that belongs to a context.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) backend: BackendId,
    pub(crate) outlet: Rc<Outlet>,
    /// The text of `router.ready`.
    pub(crate) ready: String,
}

/// `router.hello`, well formed.
struct RouterHello {
    client: Flags,
    negotiated: Flags,
    /// As it was written, to be echoed.
    negotiated_value: Value,
    ticket: Ticket,
    binding: Vec<u8>,
}

impl RouterHello {
    /// Reads the plain JSON text: exactly these members, each once.
    fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let limits = JsonLimits {
            max_bytes: MAX_STREAM_RECORD_LEN,
            max_depth: 4,
            max_slots: None,
        };
        let hello = json::parse(text, &limits).map_err(|_| "hello-json")?;
        let members = hello.as_object().ok_or("hello-json")?;
        let known = |name: &String| HELLO_MEMBERS.contains(&name.as_str());
        if !members.keys().all(known) {
            return Err("hello-member");
        }
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        if text("type") != Some("router.hello") || members.get("version") != Some(&json!(1)) {
            return Err("hello-version");
        }
        if members.get("routerRequestCredit") != Some(&Value::Bool(true)) {
            return Err("hello-request-credit");
        }
        let flags = |name: &str| {
            let value = members.get(name).ok_or("hello-flags")?;
            Flags::from_value(value).map_err(|_| "hello-flags")
        };
        let binding = text("routerBinding").ok_or("hello-binding")?;
        Ok(Self {
            client: flags("memoryFlags")?,
            negotiated: flags("negotiatedMemoryFlags")?,
            negotiated_value: members
                .get("negotiatedMemoryFlags")
                .cloned()
                .unwrap_or_default(),
            ticket: text("routerTicket")
                .and_then(|hex| Ticket::from_hex(hex).ok())
                .ok_or("hello-ticket")?,
            binding: base64url::decode(binding, MAX_RECORD_LEN).map_err(|_| "hello-binding")?,
        })
    }
}

impl State {
    /// Judges `router.hello` on a socket greeted with `greeting`, and binds the socket. Nothing changes unless all of it is
    /// good; then the ticket is spent and a socket bound before is replaced, with all its sessions.
    ///
    /// # Errors
    /// The fixed reason of a `data-denied` verdict.
    pub(crate) fn bind(
        &mut self,
        hello: &[u8],
        greeting: &DataHello,
        peer: Ipv4Addr,
        now: u64,
    ) -> Result<Bound, &'static str> {
        let hello = RouterHello::parse(hello)?;
        let issued = self
            .tickets
            .look_up(&hello.ticket, now)
            .ok_or("ticket-unknown")?;
        let link = self.links.get(&issued.link).ok_or("link-closed")?;
        let router = link.router;
        if !self.settings.routers_at(peer).any(|known| *known == router) {
            return Err("peer");
        }
        let binding = Binding::verify(&hello.binding, &router).map_err(|_| "binding-signature")?;
        let expected = Binding {
            router,
            deployment: self.settings.deployment.clone(),
            toolshed: self.settings.identity.did(),
            epoch: link.epoch,
            context: issued.context,
            ticket: hello.ticket,
            nonce: greeting.nonce,
            issued: greeting.issued,
            client_flags: hello.client.digest(),
            negotiated_flags: hello.negotiated.digest(),
        };
        if let Some(reason) = difference(&binding, &expected) {
            return Err(reason);
        }
        let context = link
            .contexts
            .get(&issued.context)
            .ok_or("context-unknown")?;
        if context.flags != hello.client {
            return Err("flags-changed");
        }
        self.check_negotiated(&hello.client, &hello.negotiated)?;

        // Everything is good: from here on nothing fails.
        let spent = self
            .tickets
            .consume(&hello.ticket, now)
            .ok_or("ticket-unknown")?;
        self.release_socket(spent.link, &spent.context);
        let backend = self.memory.connect(&hello.negotiated);
        let outlet = Outlet::new(OutputBounds {
            queued: self.settings.limits.output_bytes_per_socket,
        });
        let socket = Socket {
            backend,
            outlet: Rc::clone(&outlet),
            compress: capabilities::compresses(&hello.negotiated),
            expand: hello.negotiated.is_true(capabilities::MESSAGE_COMPRESSION),
        };
        if let Some(context) = self.context_mut(spent.link, &spent.context) {
            context.socket = Some(socket);
        }
        self.backends.insert(backend, (spent.link, spent.context));
        let ready = json!({
            "type": "router.ready",
            "version": 1,
            "memoryFlags": self.settings.flags.to_value(),
            "routerEncodingNegotiation": true,
            "routerRequestCredit": true,
            "negotiatedMemoryFlags": hello.negotiated_value,
        });
        Ok(Bound {
            backend,
            outlet,
            ready: ready.to_string(),
        })
    }

    /// The selection must be one that the client and this toolshed both support, at the deployment's cell mode.
    fn check_negotiated(&self, client: &Flags, negotiated: &Flags) -> Result<(), &'static str> {
        self.settings.accepts_client(client)?;
        if negotiated.has_private_names() {
            return Err("negotiated-private");
        }
        if negotiated.modern_cell_rep() != self.settings.flags.modern_cell_rep() {
            return Err("cell-mode");
        }
        if !negotiated.subset_of(client) {
            return Err("negotiated-client");
        }
        if !negotiated.subset_of(&self.settings.flags) {
            return Err("negotiated-endpoint");
        }
        Ok(())
    }
}

/// The first field in which a signed binding is not the expected one.
fn difference(binding: &Binding, expected: &Binding) -> Option<&'static str> {
    let fields = [
        (binding.router == expected.router, "binding-router"),
        (
            binding.deployment == expected.deployment,
            "binding-deployment",
        ),
        (binding.toolshed == expected.toolshed, "binding-toolshed"),
        (binding.epoch == expected.epoch, "binding-epoch"),
        (binding.context == expected.context, "binding-context"),
        (binding.ticket == expected.ticket, "binding-ticket"),
        (binding.nonce == expected.nonce, "binding-nonce"),
        (binding.issued == expected.issued, "binding-issued"),
        (
            binding.client_flags == expected.client_flags,
            "binding-client-flags",
        ),
        (
            binding.negotiated_flags == expected.negotiated_flags,
            "binding-negotiated-flags",
        ),
    ];
    fields
        .into_iter()
        .find(|(equal, _)| !equal)
        .map(|(_, reason)| reason)
}

const HELLO_MEMBERS: [&str; 7] = [
    "type",
    "version",
    "memoryFlags",
    "negotiatedMemoryFlags",
    "routerRequestCredit",
    "routerTicket",
    "routerBinding",
];
