//! Keeping keys signed in: renewal before a lease ends, and answers to challenges the router pushes while it holds an open.

use std::sync::Arc;
use std::time::Duration;

use memory_wire::did::Did;
use tokio::sync::mpsc;

use crate::hello::Issued;
use crate::inner::{Held, Inner};
use crate::{ClientError, random};

/// How long the first renewal that was refused for now waits, seconds. It doubles with every further one.
const FIRST_RETRY: u64 = 2;
/// The longest a refused renewal waits, seconds.
const MAX_RETRY: u64 = 30;

/// Runs until the connection ends.
pub(crate) async fn run(inner: Arc<Inner>, mut pushed: mpsc::Receiver<(Did, Issued)>) {
    loop {
        let changed = inner.keys_changed.notified();
        if inner.end().is_some() {
            return;
        }
        let next = inner.next_renewal();
        let due = async {
            match &next {
                Some((_, at)) => {
                    let wait = at.saturating_sub(inner.router_unix());
                    tokio::time::sleep(Duration::from_secs(wait)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            push = pushed.recv() => match push {
                Some((principal, issued)) => answer_push(&inner, &principal, issued).await,
                None => return,
            },
            () = due => if let Some((held, _)) = next {
                let principal = held.identity.did();
                if let Err(error) = inner.sign_in(&held.identity, None).await {
                    give_up_or_postpone(&inner, &principal, &error);
                }
            },
        }
    }
}

async fn answer_push(inner: &Inner, principal: &Did, issued: Issued) {
    if let Some(held) = inner.held(principal)
        && let Err(error) = inner.sign_in(&held.identity, Some(issued)).await
    {
        give_up_or_postpone(inner, principal, &error);
    }
}

fn give_up_or_postpone(inner: &Inner, principal: &Did, error: &ClientError) {
    if error.is_retriable() {
        let now = inner.router_unix();
        inner.reschedule(principal, |held| postpone(held, now, random::bits()));
    } else {
        inner.release(principal);
    }
}

/// Puts a renewal that was refused for now off: ever longer, but with a last try before the lease ends, and none after. The
/// key stays: a challenge that the router pushes for it is still answered.
fn postpone(held: &mut Held, now: u64, random: u64) {
    let longest = (FIRST_RETRY << held.refused.min(4)).min(MAX_RETRY);
    held.refused = held.refused.saturating_add(1);
    // Half of it fixed, half random: never at once, never all clients together.
    let half = longest / 2;
    let at = now + half + random % (half + 1);
    let last = held.expires.saturating_sub(1);
    held.renew = Some(at.min(last)).filter(|at| *at > now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_config::Identity;

    fn held(expires: u64) -> Held {
        Held {
            identity: Arc::new(Identity::from_seed([7; 32]).unwrap()),
            expires,
            previous: None,
            renew: Some(400),
            refused: 0,
        }
    }

    #[test]
    fn a_refused_renewal_is_tried_until_the_lease_ends() {
        for random in [0, 1, u64::MAX] {
            let mut held = held(600);
            let mut now = 400;
            let mut tries = 0;
            while let Some(at) = {
                postpone(&mut held, now, random);
                held.renew
            } {
                assert!(at > now && at < 600 && at - now <= MAX_RETRY);
                now = at;
                tries += 1;
                assert!(tries < 200);
            }
            assert!(tries >= 7, "{tries}");
            assert_eq!(now, 599);
        }
    }

    #[test]
    fn a_lapsed_lease_is_not_renewed_by_itself() {
        let mut held = held(600);
        postpone(&mut held, 700, 3);
        assert_eq!(held.renew, None);
    }
}
