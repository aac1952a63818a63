//! The three agents: reaching them, and what their loss means (architecture.md section 4).

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use memory_ipc::packets::{KeyAgentToSpawner, LinkAgentToSpawner};
use memory_ipc::{Channel, ChannelError, connect};
use memory_wire::Reason;
use tokio::time::sleep;

use super::Spawner;
use super::registry::Order;
use super::settings::Settings;
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

    const fn name(self) -> &'static str {
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
    /// Since it has announced its certificate.
    key: Option<Rc<Channel>>,
    link: Option<Rc<Channel>>,
    broker: Option<Rc<Channel>>,
    /// The link agent can make contexts: the offer is frozen.
    link_ready: Cell<bool>,
}

impl Agents {
    /// Key agent, link agent and broker.
    ///
    /// # Errors
    /// What a connection is refused with while one of them is missing or not ready.
    pub(super) fn all(&self) -> Result<(&Channel, &Channel, &Channel), Reason> {
        let key = self.key.as_deref().ok_or(Reason::KeyAgentLost)?;
        let link = self
            .link
            .as_deref()
            .filter(|_| self.link_ready.get())
            .ok_or(Reason::LinkAgentLost)?;
        let broker = self.broker.as_deref().ok_or(Reason::BrokerLost)?;
        Ok((key, link, broker))
    }

    fn set(&mut self, agent: Agent, channel: Option<Rc<Channel>>) {
        match agent {
            Agent::Key => self.key = channel,
            Agent::Link => self.link = channel,
            Agent::Broker => self.broker = channel,
        }
        if agent == Agent::Link {
            self.link_ready.set(false);
        }
    }
}

/// Keeps a channel to an agent for ever.
pub(super) async fn follow(spawner: Rc<Spawner>, agent: Agent) {
    let path = spawner.config.ipc_dir.join(agent.socket());
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
    while let Some((KeyAgentToSpawner::KeyAnnounce { schemes }, descriptors)) =
        channel.recv_packet().await?
    {
        let [chain] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| AgentEnd::Unexpected)?;
        spawner.use_settings(Settings::announced(&spawner.config, chain, schemes)?);
        spawner
            .agents
            .borrow_mut()
            .set(Agent::Key, Some(Rc::clone(channel)));
        spawner.tell_ready();
    }
    Ok(())
}

async fn hear_link_agent(spawner: &Rc<Spawner>, channel: &Rc<Channel>) -> Result<(), AgentEnd> {
    spawner
        .agents
        .borrow_mut()
        .set(Agent::Link, Some(Rc::clone(channel)));
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
    spawner
        .agents
        .borrow_mut()
        .set(Agent::Broker, Some(Rc::clone(channel)));
    spawner.tell_ready();
    match channel.recv(&mut Vec::new()).await? {
        None => Ok(()),
        Some(_) => Err(AgentEnd::Unexpected),
    }
}

/// Acts on the loss of an agent. Nothing is accepted until it is back; what goes on without it goes on.
fn lose(spawner: &Rc<Spawner>, agent: Agent, end: &AgentEnd) {
    spawner.agents.borrow_mut().set(agent, None);
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
