//! The three agents: reaching them, and what their loss means (`docs/design.md`).

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use memory_ipc::packets::{KeyAgentToSpawner, LinkAgentToSpawner};
use memory_ipc::{Channel, ChannelError, connect};
use memory_wire::Reason;
use tokio::time::sleep;

use super::registry::Order;
use super::settings::Settings;
use super::{Spawner, rewire};
use crate::backoff::Backoff;
use crate::throttle::Throttle;

/// Pauses between attempts to reach an agent.
const FIRST_CONNECT_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// How long workers may take to end by themselves after the link agent is gone. Each sees its own channel to it end, and
/// closes its connection with a code that brings the client back.
const LINK_LOSS_GRACE: Duration = Duration::from_secs(3);

/// One of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Agent {
    Key,
    Link,
    Broker,
}

impl Agent {
    pub(super) const ALL: [Self; 3] = [Self::Key, Self::Link, Self::Broker];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Key => "key-agent",
            Self::Link => "link-agent",
            Self::Broker => "directory-broker",
        }
    }

    const fn socket(self) -> &'static str {
        match self {
            Self::Key => memory_key_agent::SOCKET_NAME,
            Self::Link => memory_link_agent::SOCKET_NAME,
            Self::Broker => memory_directory_broker::SOCKET_NAME,
        }
    }

    const fn lost(self) -> Reason {
        match self {
            Self::Key => Reason::KeyAgentLost,
            Self::Link => Reason::LinkAgentLost,
            Self::Broker => Reason::BrokerLost,
        }
    }
}

/// The channels to the agents that are there.
#[derive(Debug, Default)]
pub(super) struct Agents {
    /// Since it has announced its certificate; with the number of its newest announcement.
    key: Option<(Rc<Channel>, u32)>,
    link: Option<Rc<Channel>>,
    broker: Option<Rc<Channel>>,
    /// The link agent can make contexts: the offer is frozen.
    link_ready: Cell<bool>,
}

impl Agents {
    /// All three.
    ///
    /// # Errors
    /// What a connection is refused with while one of them is missing or not ready.
    pub(super) fn all(&self) -> Result<Present<'_>, Reason> {
        let (key, announcement) = self.key.as_ref().ok_or(Reason::KeyAgentLost)?;
        let link = self
            .link
            .as_deref()
            .filter(|_| self.link_ready.get())
            .ok_or(Reason::LinkAgentLost)?;
        let broker = self.broker.as_deref().ok_or(Reason::BrokerLost)?;
        Ok(Present {
            key,
            announcement: *announcement,
            link,
            broker,
        })
    }

    /// Whether this one could serve a connection.
    pub(super) fn is_ready(&self, agent: Agent) -> bool {
        match agent {
            Agent::Key => self.key.is_some(),
            Agent::Link => self.link.is_some() && self.link_ready.get(),
            Agent::Broker => self.broker.is_some(),
        }
    }

    /// The link agent's channel, ready or not.
    pub(super) fn link(&self) -> Option<Rc<Channel>> {
        self.link.clone()
    }

    fn set_link(&mut self, channel: Option<Rc<Channel>>) {
        self.link = channel;
        self.link_ready.set(false);
    }

    fn lose(&mut self, agent: Agent) {
        match agent {
            Agent::Key => self.key = None,
            Agent::Link => self.set_link(None),
            Agent::Broker => self.broker = None,
        }
    }
}

/// Agents that can serve a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Present<'a> {
    pub(super) key: &'a Channel,
    /// The newest of the key agent.
    pub(super) announcement: u32,
    pub(super) link: &'a Channel,
    pub(super) broker: &'a Channel,
}

/// Keeps a channel to an agent for ever.
pub(super) async fn follow(spawner: Rc<Spawner>, agent: Agent) {
    let path = spawner.config().ipc_dir.join(agent.socket());
    let mut backoff = Backoff::new(FIRST_CONNECT_PAUSE, LONGEST_CONNECT_PAUSE);
    let mut unreachable = Throttle::default();
    loop {
        match connect(&path) {
            Ok(channel) => {
                backoff.reset();
                tracing::info!(
                    reason = "agent-connected",
                    agent = agent.name(),
                    "connected to an agent"
                );
                let end = hear(&spawner, agent, &Rc::new(channel)).await;
                lose(&spawner, agent, &end);
            }
            Err(error) => {
                if let Some(attempts) = unreachable.note(Instant::now()) {
                    let error = &error as &dyn std::error::Error;
                    tracing::info!(
                        reason = "agent-unreachable",
                        agent = agent.name(),
                        attempts,
                        error,
                        "waiting for an agent"
                    );
                }
            }
        }
        sleep(backoff.pause()).await;
    }
}

/// Listens to an agent until its channel ends.
async fn hear(spawner: &Rc<Spawner>, agent: Agent, channel: &Rc<Channel>) -> AgentEnd {
    let ended = match agent {
        Agent::Key => hear_key_agent(spawner, channel).await,
        Agent::Link => hear_link_agent(spawner, channel).await,
        Agent::Broker => hear_broker(spawner, channel).await,
    };
    ended.err().unwrap_or(AgentEnd::Closed)
}

/// Why a channel to an agent ended.
#[derive(Debug, thiserror::Error)]
enum AgentEnd {
    #[error("the agent closed its channel")]
    Closed,
    #[error("the agent's channel failed")]
    Channel(#[from] ChannelError),
    #[error("the agent's announcement cannot be used")]
    Settings(#[from] super::settings::SettingsError),
    #[error("the agent said something that it may not say")]
    Unexpected,
}

async fn hear_key_agent(spawner: &Rc<Spawner>, channel: &Rc<Channel>) -> Result<(), AgentEnd> {
    while let Some((packet, descriptors)) = channel.recv_packet().await? {
        let KeyAgentToSpawner::KeyAnnounce {
            announcement,
            schemes,
        } = packet;
        let [chain] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| AgentEnd::Unexpected)?;
        let config = spawner.config();
        spawner.use_settings(Settings::announced(&config, chain, schemes)?);
        // From here on whoever is registered shows the chain of this announcement: see `life::live`.
        spawner.agents.borrow_mut().key = Some((Rc::clone(channel), announcement));
        spawner.tell_ready();
    }
    Ok(())
}

async fn hear_link_agent(spawner: &Rc<Spawner>, channel: &Rc<Channel>) -> Result<(), AgentEnd> {
    spawner
        .agents
        .borrow_mut()
        .set_link(Some(Rc::clone(channel)));
    while let Some((packet, _)) = channel.recv_packet().await? {
        match packet {
            LinkAgentToSpawner::Ready { accepting } => {
                spawner.agents.borrow().link_ready.set(accepting);
                spawner.tell_ready();
            }
            LinkAgentToSpawner::Authenticated { connection } => spawner.authenticated(connection),
        }
    }
    Ok(())
}

async fn hear_broker(spawner: &Rc<Spawner>, channel: &Rc<Channel>) -> Result<(), AgentEnd> {
    spawner.agents.borrow_mut().broker = Some(Rc::clone(channel));
    // In the same step: who is given to a worker from now on is registered with this broker to begin with.
    let connections = spawner.registry.borrow().served();
    spawner.tell_ready();
    let silent = async {
        match channel.recv(&mut Vec::new()).await? {
            None => Ok(()),
            Some(_) => Err(AgentEnd::Unexpected),
        }
    };
    tokio::select! {
        end = silent => end,
        Err(error) = rewire::rewire(spawner, channel, connections) => Err(error.into()),
    }
}

/// Acts on the loss of an agent. Nothing is accepted until it is back; what goes on without it goes on.
fn lose(spawner: &Rc<Spawner>, agent: Agent, end: &AgentEnd) {
    spawner.agents.borrow_mut().lose(agent);
    spawner.tell_ready();
    let error = end as &dyn std::error::Error;
    tracing::error!(
        reason = agent.lost().as_str(),
        agent = agent.name(),
        error,
        "an agent is gone"
    );
    if agent == Agent::Link {
        // Every context went with it, so no connection can go on, and none that waits could begin.
        spawner.dismiss(Reason::LinkAgentLost);
        spawner
            .registry
            .borrow()
            .order_all(Order::End(LINK_LOSS_GRACE, Reason::LinkAgentLost));
    }
}
