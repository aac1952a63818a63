//! When a ticket may be bound, reused or replaced.

use std::time::{Duration, Instant};

use memory_wire::ids::Ticket;

/// A bind starts less than this after the request for its ticket began. A ticket lives 15 s by the toolshed's clock of whole
/// seconds, counted from when the toolshed issued it, which is after the request began.
pub(crate) const BIND_WITHIN: Duration = Duration::from_secs(13);

/// A ticket is replaced no earlier than this after its response arrived: by then the toolshed no longer counts it, so that
/// the replacement cannot exceed its budget.
pub(crate) const REPLACE_AFTER: Duration = Duration::from_secs(15);

const _: () = assert!(BIND_WITHIN.as_secs() < REPLACE_AFTER.as_secs());

/// The one ticket of a context at a toolshed. There is never a second one beside it.
#[derive(Debug, Default)]
pub(crate) enum TicketState {
    /// None was asked for, or the last one is over.
    #[default]
    Absent,
    /// Asked for; waits to be sent.
    Queued,
    /// Asked for; the toolshed has not answered.
    Requested {
        /// When it was sent.
        began: Instant,
        /// Whoever asked has been refused meanwhile: the answer will be abandoned.
        given_up: bool,
    },
    /// Issued and not bound.
    Unbound {
        ticket: Ticket,
        /// When its request was sent.
        began: Instant,
        /// When its response arrived.
        answered: Instant,
    },
    /// Issued after its asker was refused. It is never bound; it only counts at the toolshed for a while.
    Abandoned {
        /// When its response arrived.
        answered: Instant,
    },
    /// Its binding has been signed. Nothing undoes that but the end of the link or the context.
    Bound { ticket: Ticket },
}

/// What an open may do about a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TicketUse {
    /// Ask for one.
    Request,
    /// Bind this one.
    Reuse(Ticket),
    /// There is a binding: no ticket is needed.
    Bound,
    /// Too old to bind, too young to replace: refused for now.
    Window,
    /// An earlier request is unanswered: refused for now.
    Unanswered,
}

impl TicketState {
    /// What an open at `now` may do.
    pub(crate) fn judge(&self, now: Instant) -> TicketUse {
        match *self {
            Self::Absent => TicketUse::Request,
            Self::Queued | Self::Requested { .. } => TicketUse::Unanswered,
            Self::Unbound { ticket, began, .. }
                if now.saturating_duration_since(began) < BIND_WITHIN =>
            {
                TicketUse::Reuse(ticket)
            }
            Self::Unbound { answered, .. } | Self::Abandoned { answered } => {
                if now.saturating_duration_since(answered) >= REPLACE_AFTER {
                    TicketUse::Request
                } else {
                    TicketUse::Window
                }
            }
            Self::Bound { .. } => TicketUse::Bound,
        }
    }

    /// Takes the toolshed's answer to the request: the ticket, or `None` for its refusal.
    pub(crate) fn answer(&mut self, ticket: Option<Ticket>, now: Instant) {
        *self = match (&*self, ticket) {
            (
                &Self::Requested {
                    began,
                    given_up: false,
                },
                Some(ticket),
            ) => Self::Unbound {
                ticket,
                began,
                answered: now,
            },
            (Self::Requested { given_up: true, .. }, Some(_)) => Self::Abandoned { answered: now },
            _ => Self::Absent,
        };
    }

    /// Notes that the asker of an unanswered request has been refused.
    pub(crate) fn give_up(&mut self) {
        if let Self::Requested { given_up, .. } = self {
            *given_up = true;
        }
    }

    /// Marks the ticket bound, if it is this one and young enough. Rollback and binding meet here: after `Ok` the ticket is
    /// bound for good.
    pub(crate) fn bind(&mut self, ticket: Ticket, now: Instant) -> Result<(), BindFault> {
        match *self {
            Self::Unbound {
                ticket: held,
                began,
                ..
            } if held == ticket => {
                if now.saturating_duration_since(began) >= BIND_WITHIN {
                    return Err(BindFault::TooOld);
                }
                *self = Self::Bound { ticket };
                Ok(())
            }
            Self::Bound { ticket: bound } if bound == ticket => Err(BindFault::Again),
            _ => Err(BindFault::Unknown),
        }
    }
}

/// Why a ticket is not bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BindFault {
    /// Not the ticket of this context and toolshed; it may have gone with a link that was lost.
    Unknown,
    /// Too old.
    TooOld,
    /// It is bound already: the worker asks for a second signature.
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKET: Ticket = Ticket::new([7; 32]);

    fn requested(began: Instant) -> TicketState {
        TicketState::Requested {
            began,
            given_up: false,
        }
    }

    #[test]
    fn is_reused_until_thirteen_seconds_after_its_request_began() {
        let began = Instant::now();
        let mut state = requested(began);
        assert_eq!(state.judge(began), TicketUse::Unanswered);
        state.answer(Some(TICKET), began + Duration::from_secs(2));
        assert_eq!(
            state.judge(began + Duration::from_millis(12_999)),
            TicketUse::Reuse(TICKET)
        );
        assert_eq!(
            state.judge(began + Duration::from_secs(13)),
            TicketUse::Window
        );
    }

    #[test]
    fn is_replaced_from_fifteen_seconds_after_its_response() {
        let began = Instant::now();
        let mut state = requested(began);
        state.answer(Some(TICKET), began + Duration::from_secs(2));
        assert_eq!(
            state.judge(began + Duration::from_millis(16_999)),
            TicketUse::Window
        );
        assert_eq!(
            state.judge(began + Duration::from_secs(17)),
            TicketUse::Request
        );
    }

    #[test]
    fn binds_once_and_only_in_time() {
        let began = Instant::now();
        let mut state = requested(began);
        state.answer(Some(TICKET), began);
        assert_eq!(
            state.bind(Ticket::new([8; 32]), began),
            Err(BindFault::Unknown)
        );
        assert_eq!(
            state.bind(TICKET, began + BIND_WITHIN),
            Err(BindFault::TooOld)
        );
        assert_eq!(state.bind(TICKET, began + Duration::from_secs(12)), Ok(()));
        assert_eq!(
            state.judge(began + Duration::from_secs(60)),
            TicketUse::Bound
        );
        assert_eq!(
            state.bind(TICKET, began + Duration::from_secs(12)),
            Err(BindFault::Again)
        );
    }

    #[test]
    fn a_late_ticket_is_abandoned_and_keeps_its_window() {
        let began = Instant::now();
        let mut state = requested(began);
        state.give_up();
        assert_eq!(
            state.judge(began + Duration::from_secs(40)),
            TicketUse::Unanswered
        );
        let late = began + Duration::from_secs(41);
        state.answer(Some(TICKET), late);
        assert_eq!(state.bind(TICKET, late), Err(BindFault::Unknown));
        assert_eq!(
            state.judge(late + Duration::from_millis(14_999)),
            TicketUse::Window
        );
        assert_eq!(
            state.judge(late + Duration::from_secs(15)),
            TicketUse::Request
        );
    }

    #[test]
    fn a_refused_request_leaves_nothing() {
        let began = Instant::now();
        let mut state = requested(began);
        state.answer(None, began);
        assert_eq!(state.judge(began), TicketUse::Request);
    }
}
