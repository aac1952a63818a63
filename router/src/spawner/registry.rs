//! The connections that are served or wait for a worker: `max_workers` at most, whatever the listener believes.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

use memory_budget::{Budget, Limit, Permit};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use tokio::sync::{mpsc, watch};

/// What the worker of a connection is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Go on.
    Serve,
    /// Finish what is going on and end within this time.
    Drain(Duration),
    /// End for this reason, which the worker has seen for itself: nothing is said to it, but it is killed after this time.
    End(Duration, Reason),
}

impl Order {
    /// A worker that is to end does not drain or serve any more.
    const fn rank(self) -> u8 {
        match self {
            Self::Serve => 0,
            Self::Drain(_) => 1,
            Self::End(..) => 2,
        }
    }
}

/// A connection's entry.
#[derive(Debug)]
struct Entry {
    authenticated: bool,
    order: watch::Sender<Order>,
    /// Where its worker's end of a channel to another broker goes; there once a worker serves it.
    brokers: Option<mpsc::UnboundedSender<OwnedFd>>,
    _place: Permit,
}

/// Counts connections, and carries orders to their workers.
#[derive(Debug)]
pub(crate) struct Registry {
    places: Budget,
    entries: HashMap<ConnectionId, Entry>,
}

impl Registry {
    pub(crate) fn new(max: u64) -> Self {
        Self {
            places: Budget::new("max_workers", Limit::At(max)),
            entries: HashMap::new(),
        }
    }

    /// Reserves a place for a connection; its worker follows the orders of the receiver.
    ///
    /// # Errors
    /// [`Reason::Capacity`] when `max` connections are there, [`Reason::ChannelProtocol`] when the ID is one of theirs.
    pub(crate) fn admit(
        &mut self,
        connection: ConnectionId,
    ) -> Result<watch::Receiver<Order>, Reason> {
        if self.entries.contains_key(&connection) {
            return Err(Reason::ChannelProtocol);
        }
        let place = self.places.reserve(1).map_err(|_| Reason::Capacity)?;
        let (order, orders) = watch::channel(Order::Serve);
        self.entries.insert(
            connection,
            Entry {
                authenticated: false,
                order,
                brokers: None,
                _place: place,
            },
        );
        Ok(orders)
    }

    /// Notes that a connection has authenticated; false when it had, or is not there.
    pub(crate) fn authenticated(&mut self, connection: &ConnectionId) -> bool {
        match self.entries.get_mut(connection) {
            Some(entry) if !entry.authenticated => {
                entry.authenticated = true;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_authenticated(&self, connection: &ConnectionId) -> bool {
        self.entries
            .get(connection)
            .is_some_and(|entry| entry.authenticated)
    }

    /// Bounds the connections differently from now on. Those that are there stay; while they are `max` or more, none is admitted.
    pub(crate) fn set_max(&self, max: u64) {
        self.places.set_limit(Limit::At(max));
    }

    /// The places.
    pub(crate) fn places(&self) -> &Budget {
        &self.places
    }

    /// Notes that a worker serves a connection, and takes its ends of channels to further brokers from the receiver.
    pub(crate) fn serve(&mut self, connection: &ConnectionId) -> mpsc::UnboundedReceiver<OwnedFd> {
        // At most one for each start of a broker.
        let (brokers, ends) = mpsc::unbounded_channel();
        if let Some(entry) = self.entries.get_mut(connection) {
            entry.brokers = Some(brokers);
        }
        ends
    }

    /// The connections that workers serve.
    pub(crate) fn served(&self) -> VecDeque<ConnectionId> {
        let served = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.brokers.is_some());
        served.map(|(connection, _)| *connection).collect()
    }

    /// Whether a worker serves this connection.
    pub(crate) fn is_served(&self, connection: &ConnectionId) -> bool {
        self.entries
            .get(connection)
            .is_some_and(|entry| entry.brokers.is_some())
    }

    /// Sends a worker its end of a channel to another broker.
    pub(crate) fn rewire(&self, connection: &ConnectionId, end: OwnedFd) {
        let brokers = self
            .entries
            .get(connection)
            .and_then(|entry| entry.brokers.as_ref());
        if let Some(brokers) = brokers {
            // A worker that has just ended needs none.
            drop(brokers.send(end));
        }
    }

    /// Gives the place of a connection back, once: false when it is not there.
    pub(crate) fn release(&mut self, connection: &ConnectionId) -> bool {
        self.entries.remove(connection).is_some()
    }

    /// Gives every connection an order, unless it has a stronger one.
    pub(crate) fn order_all(&self, order: Order) {
        for entry in self.entries.values() {
            entry.order.send_if_modified(|present| {
                let stronger = order.rank() > present.rank();
                if stronger {
                    *present = order;
                }
                stronger
            });
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> ConnectionId {
        ConnectionId::new(1, [0, 0, 0, number])
    }

    #[test]
    fn admits_exactly_its_number() {
        let mut registry = Registry::new(2);
        assert!(registry.admit(id(1)).is_ok());
        assert_eq!(registry.admit(id(1)).unwrap_err(), Reason::ChannelProtocol);
        assert!(registry.admit(id(2)).is_ok());
        assert_eq!(registry.admit(id(3)).unwrap_err(), Reason::Capacity);
        assert!(registry.release(&id(1)));
        assert!(!registry.release(&id(1)));
        assert!(registry.admit(id(3)).is_ok());
        assert_eq!(registry.len(), 2);
    }

    #[test]
    fn authentication_counts_once() {
        let mut registry = Registry::new(2);
        let _orders = registry.admit(id(1)).unwrap();
        assert!(!registry.is_authenticated(&id(1)));
        assert!(registry.authenticated(&id(1)));
        assert!(!registry.authenticated(&id(1)));
        assert!(registry.is_authenticated(&id(1)));
        assert!(!registry.authenticated(&id(2)));
    }

    #[test]
    fn a_lowered_number_admits_nobody_until_enough_have_gone() {
        let mut registry = Registry::new(3);
        let orders = [1, 2, 3].map(|number| registry.admit(id(number)).unwrap());
        registry.set_max(1);
        assert_eq!(*orders[2].borrow(), Order::Serve);
        for gone in [1, 2, 3] {
            assert_eq!(registry.admit(id(9)).unwrap_err(), Reason::Capacity);
            assert!(registry.release(&id(gone)));
        }
        assert!(registry.admit(id(9)).is_ok());
        registry.set_max(2);
        assert!(registry.admit(id(8)).is_ok());
    }

    #[test]
    fn another_broker_is_for_those_that_are_served() {
        let mut registry = Registry::new(2);
        let _orders = [1, 2].map(|number| registry.admit(id(number)).unwrap());
        assert!(registry.served().is_empty() && !registry.is_served(&id(1)));
        let mut ends = registry.serve(&id(1));
        assert_eq!(registry.served(), [id(1)]);
        let (end, _) = memory_ipc::Channel::pair().unwrap();
        registry.rewire(&id(1), end);
        assert!(ends.try_recv().is_ok());
        registry.release(&id(1));
        assert!(registry.served().is_empty() && !registry.is_served(&id(1)));
    }

    #[test]
    fn a_weaker_order_does_not_replace_a_stronger_one() {
        let mut registry = Registry::new(2);
        let orders = registry.admit(id(1)).unwrap();
        let drain = Order::Drain(Duration::from_secs(10));
        let end = Order::End(Duration::ZERO, Reason::LinkAgentLost);
        registry.order_all(drain);
        assert_eq!(*orders.borrow(), drain);
        registry.order_all(end);
        assert_eq!(*orders.borrow(), end);
        registry.order_all(drain);
        assert_eq!(*orders.borrow(), end);
        // A connection that comes later is not meant.
        assert_eq!(*registry.admit(id(2)).unwrap().borrow(), Order::Serve);
    }
}
