//! Times that are allowed and yet wrong for most deployments.

use std::time::Duration;

use super::finding::Finding;
use super::subject::Subject;

/// What a service manager gives a service to stop when nobody says otherwise (systemd-system.conf(5),
/// DefaultTimeoutStopSec).
const DEFAULT_STOP: Duration = Duration::from_secs(90);
/// What `run` and the listener take beyond pre-drain and drain.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Toolsheds have been seen silent for 45 s under load; a link that is cut then has all clients come back at once.
const SHORTEST_SILENCE: Duration = Duration::from_secs(60);

pub(super) fn check(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    let times = &subject.config.timeouts;
    let stop = times.pre_drain + times.drain + STOP_GRACE;
    if stop > DEFAULT_STOP && subject.is_sound(&["timeouts.pre_drain", "timeouts.drain"]) {
        findings.push(
            subject
                .at(
                    "timeouts.drain",
                    Finding::warning("a service manager kills sooner than the drain ends"),
                )
                .found(format!(
                    "{}s with timeouts.pre_drain and the grace for stopping",
                    stop.as_secs()
                ))
                .allowed(format!(
                    "at most {}s, the usual time to stop",
                    DEFAULT_STOP.as_secs()
                ))
                .mend(format!(
                    "set TimeoutStopSec={} or more in the service, or shorten the drain",
                    stop.as_secs() + 1
                )),
        );
    }
    if times.link_silence < SHORTEST_SILENCE && subject.is_sound(&["timeouts.link_silence"]) {
        findings.push(
            subject
                .at(
                    "timeouts.link_silence",
                    Finding::warning("a toolshed under load is taken for dead"),
                )
                .found(format!("{}s", times.link_silence.as_secs()))
                .allowed(format!(
                    "at least {}s: toolsheds fall silent under load",
                    SHORTEST_SILENCE.as_secs()
                ))
                .mend("leave timeouts.link_silence at its default"),
        );
    }
}
