//! What is said on the links: the steps of an open, requests becoming bytes, answers becoming knowledge.

use std::time::Instant;

use memory_wire::Reason;
use memory_wire::codec::{DecodeError, EncodeError};
use memory_wire::ids::{ContextId, EpochId, Ticket};
use memory_wire::records::{CloseRequest, ControlRequest, ControlResponse, ReleaseRequest};
use thiserror::Error;
use tokio::sync::oneshot;

use crate::agent::Agent;
use crate::clock::Moment;
use crate::context::Payload;
use crate::links::Job;
use crate::queue::{Class, Expiry};
use crate::upstream::{Open, Step, Task};

/// How a toolshed broke the protocol of its link. The link ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum AnswerFault {
    /// Not a response record.
    #[error("malformed response")]
    Malformed(#[from] DecodeError),
    /// It answers what was not asked, or out of order.
    #[error("response out of order")]
    Order,
    /// A ticket of another length.
    #[error("malformed ticket")]
    Ticket,
}

impl Agent {
    /// The next step of an open.
    pub(crate) fn plan(&self, id: &ContextId, open: &Open, now: Moment) -> Step {
        let Some(context) = self.contexts.get(id) else {
            return Step::Refuse(Reason::ContextClosed);
        };
        // What will never pass goes before what may.
        if let Err(reason) = context.knows(&open.principal, now) {
            return Step::Refuse(reason);
        }
        if let Err(reason) = context.confirm(&open.principal, &self.revocations) {
            return Step::Refuse(reason);
        }
        match self.links.usable(open.index) {
            Ok(epoch) => context.plan(open, epoch, now),
            Err(reason) => Step::Refuse(reason),
        }
    }

    /// Puts a step's request in the queue. The receiver is told when to look again, or why not to; it fails when the link
    /// does.
    ///
    /// # Errors
    /// [`Reason::AdmissionTimeout`] when as many wait as may, [`Reason::UpstreamUnavailable`] when the link is gone.
    pub(crate) fn ask(
        &mut self,
        id: &ContextId,
        index: u16,
        task: Task,
        now: Instant,
    ) -> Result<oneshot::Receiver<Result<(), Reason>>, Reason> {
        self.links.usable(index)?;
        let context = self.contexts.get_mut(id).ok_or(Reason::ContextClosed)?;
        let class = if matches!(task, Task::Ticket { .. }) {
            Class::Paced
        } else {
            Class::Asked
        };
        let (caller, outcome) = oneshot::channel();
        if !self.links.push(index, *id, task, class, Some(caller), now) {
            return Err(Reason::AdmissionTimeout);
        }
        context.upstream_mut(index).queued(&task);
        Ok(outcome)
    }

    /// The next request to send to a toolshed, if one may be sent now. It counts as sent.
    pub(crate) fn next_message(&mut self, index: u16, now: Moment) -> Option<Vec<u8>> {
        loop {
            let link = self.links.link_mut(index)?;
            let epoch = link.epoch;
            let sequence = link.queue.next_sequence();
            let mut job = link.queue.next(now.monotonic)?;
            let built = self.build(index, &epoch, &job, sequence, now);
            let context = self.contexts.get_mut(&job.context);
            match built {
                Ok(Some(Payload { bytes, statement })) => {
                    if let Some(context) = context {
                        context
                            .upstream_mut(index)
                            .sent(&job.task, statement, now.monotonic);
                    }
                    job.statement = statement;
                    self.links
                        .link_mut(index)?
                        .queue
                        .sent(job, bytes.len(), now.monotonic);
                    return Some(bytes);
                }
                Ok(None) | Err(_) => {
                    if let Some(context) = context {
                        context.upstream_mut(index).unsent(&job.task);
                    }
                    // What has changed since it was asked, the asker will see; what cannot be encoded will not change.
                    job.tell(built.map(|_| ()).map_err(|_| Reason::Internal));
                }
            }
        }
    }

    /// The whole request of a job, or `None` when there is nothing left to say.
    fn build(
        &self,
        index: u16,
        epoch: &EpochId,
        job: &Job,
        sequence: u64,
        now: Moment,
    ) -> Result<Option<Payload>, EncodeError> {
        let payload = match (&job.task, self.contexts.get(&job.context)) {
            // The context is gone by the time that its end is told.
            (Task::Close, _) => Some(Payload {
                bytes: CloseRequest {
                    context: job.context,
                }
                .encode()?,
                statement: None,
            }),
            (Task::Revoke { principal }, _) => Some(Payload {
                bytes: ReleaseRequest {
                    context: job.context,
                    principal: *principal,
                }
                .encode()?,
                statement: None,
            }),
            // Nothing is proved to anybody for who is revoked by now.
            (task, Some(context))
                if task.proves().is_some_and(|principal| {
                    context.confirm(principal, &self.revocations).is_err()
                }) =>
            {
                None
            }
            (task, Some(context)) => context.payload(
                (index, epoch),
                task,
                job.caller.is_none(),
                &self.signer,
                now,
            )?,
            (_, None) => None,
        };
        let Some(Payload {
            bytes: payload,
            statement,
        }) = payload
        else {
            return Ok(None);
        };
        let request = ControlRequest {
            sequence,
            operation: job.task.operation(),
            payload,
        };
        Ok(Some(Payload {
            bytes: request.encode()?,
            statement,
        }))
    }

    /// Takes a toolshed's answer.
    ///
    /// # Errors
    /// [`AnswerFault`]: the link is to end.
    pub(crate) fn answer(
        &mut self,
        index: u16,
        message: &[u8],
        now: Moment,
    ) -> Result<(), AnswerFault> {
        let response = ControlResponse::decode(message)?;
        let Some(link) = self.links.link_mut(index) else {
            return Ok(());
        };
        let asked = link.queue.oldest_sent();
        let mut job = link
            .queue
            .answer(response.sequence)
            .ok_or(AnswerFault::Order)?;
        if let (Some(asked), Some(history)) = (asked, self.links.history(index)) {
            let took = now.since(asked);
            history.answers.observe(took);
            history.last_answer.set(Some(took));
            history.refusals.add(u64::from(!response.is_success()));
        }
        let Some(context) = self.contexts.get_mut(&job.context) else {
            return Ok(());
        };
        let upstream = context.upstream_mut(index);
        if response.is_success() {
            let ticket = match (
                &job.task,
                <[u8; Ticket::LEN]>::try_from(response.payload.as_slice()),
            ) {
                (Task::Ticket { .. }, Ok(ticket)) => Some(Ticket::new(ticket)),
                (Task::Ticket { .. }, Err(_)) => return Err(AnswerFault::Ticket),
                _ => None,
            };
            upstream.granted(&job.task, job.statement, ticket, now.monotonic);
            // The list may have changed while the toolshed was asked.
            let confirmed = match job.task.proves() {
                Some(principal) => context.confirm(principal, &self.revocations),
                None => Ok(()),
            };
            job.tell(confirmed);
        } else {
            let reason = upstream.refused(&job.task, now.monotonic);
            tracing::info!(
                reason = %Reason::ControlRefused,
                connection = %context.connection,
                toolshed = index,
                operation = job.task.operation().code(),
                "a toolshed refused a control request"
            );
            job.tell(Err(reason));
        }
        Ok(())
    }

    /// Refuses everybody who has waited for a toolshed too long.
    pub(crate) fn expire(&mut self, index: u16, now: Instant) {
        let contexts = &mut self.contexts;
        let Some(link) = self.links.link_mut(index) else {
            return;
        };
        let mut late = 0;
        link.queue.expire(now, |job, expiry| {
            late += 1;
            let upstream = contexts
                .get_mut(&job.context)
                .map(|context| context.upstream_mut(index));
            let reason = match expiry {
                Expiry::Unsent => {
                    if let Some(upstream) = upstream {
                        upstream.unsent(&job.task);
                    }
                    Reason::AdmissionTimeout
                }
                Expiry::Unanswered => {
                    if let Some(upstream) = upstream {
                        upstream.given_up(&job.task);
                    }
                    Reason::ControlTimeout
                }
            };
            job.tell(Err(reason));
        });
        if let Some(history) = self.links.history(index) {
            history.timeouts.add(late);
        }
    }

    /// When [`Self::expire`] or [`Self::next_message`] has something to do next without anything arriving.
    pub(crate) fn deadline(&mut self, index: u16, now: Instant) -> Option<Instant> {
        self.links.link_mut(index)?.queue.deadline(now)
    }
}
