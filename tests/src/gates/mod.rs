//! The gates, grouped by what they are about. Names start with the number of the gate in the design.

mod acts;
mod allowances;
mod bodies;
mod bystander;
mod creation;
mod credit;
mod crowd;
mod denial;
mod directory;
mod drain;
mod durable;
mod edge;
mod exhaustion;
mod framings;
mod half_open;
mod host;
mod impostor;
mod latency;
mod leases;
mod load;
mod malformed;
mod model;
mod moves;
mod mutations;
mod opens;
mod party;
mod quotas;
mod reach;
mod records;
mod revoke;
mod roles;
mod routing;
mod slow;
mod start;
mod statements;
mod tenants;
mod upstream;
mod vanished;

use std::future::Future;
use std::pin::Pin;

use crate::report::Figures;
use crate::{GateError, Stage};

/// What a gate gives.
pub type GateResult = Result<Figures, GateError>;

/// A gate under way.
pub type Running<'a> = Pin<Box<dyn Future<Output = GateResult> + 'a>>;

/// One thing that a user would notice.
#[derive(Debug, Clone, Copy)]
pub struct Gate {
    /// Its name in reports.
    pub name: &'static str,
    /// Drives it on a stage that other gates use too: it leaves the stage as it found it.
    pub run: for<'a> fn(&'a Stage) -> Running<'a>,
    /// It waits for time to pass, on a stage of its own: it runs beside the others.
    pub waits: bool,
}

impl Gate {
    /// Whether the words of `--only` mean this gate: its name, or the number in front of it.
    pub fn is_meant(&self, words: &str) -> bool {
        let number = self.name.split_once('-').map(|(number, _)| number);
        self.name == words || number == Some(words)
    }
}

macro_rules! gates {
    ($($name:literal => $run:path $(, waits $waits:literal)?;)+) => {
        &[$(Gate {
            name: $name,
            run: |stage| Box::pin($run(stage)),
            waits: false $(|| $waits)?,
        }),+]
    };
}

/// Every gate, in the order of running.
pub const ALL: &[Gate] = gates![
    "1-two-toolsheds" => routing::two_toolsheds;
    "2-denials" => routing::denials;
    "3-renewal" => leases::renewal;
    "4-release" => leases::release;
    "5-expiry" => leases::expiry;
    "6-limits" => quotas::limits;
    "6-tenant-cap" => tenants::dedicated_sockets;
    "7-twelve-spaces" => quotas::twelve_spaces;
    "8-creation" => creation::by_its_own_key;
    "9-dedicated" => creation::dedicated_sockets;
    "authentication-table" => statements::table;
    "authentication-expiry" => statements::expiry, waits true;
    "routing-table" => opens::table;
    "10-pinned-audience" => routing::pinned_audience;
    "11-framings" => framings::same_result;
    "12-large-request" => bodies::large_request;
    "12-large-response" => bodies::large_response;
    "12-response-edge" => edge::response;
    "13-upload-credit" => credit::exact;
    "13-forged-credit" => credit::forged;
    "14-slow-reader" => slow::slow_reader;
    "15-records" => records::malformed;
    "16-request-window" => load::request_window;
    "17-many-workers" => load::many_workers;
    "18-malformed-input" => malformed::malformed_input;
    "20-incomplete-clients" => vanished::timed_out;
    "21-tcp-reset" => reach::tcp_reset;
    "21-browser" => reach::browser;
    "22-killed-worker" => upstream::killed_worker;
    "23-stopped-toolshed" => upstream::stopped_toolshed;
    "24-stalled-toolshed" => upstream::stalled_toolshed;
    "25-durable-sessions" => durable::across_restarts;
    "nothing-lost" => mutations::nothing_lost;
    "random-schedules" => model::schedules;
    "26-data-handshake" => impostor::data_handshake;
    "26-misbehaving-data" => impostor::misbehaving_data;
    "26-misbehaving-links" => impostor::misbehaving_links;
    "27-killed-roles" => roles::killed_roles;
    "28-absent-toolshed" => start::absent_toolshed;
    "28-frozen-offer" => start::frozen_offer;
    "29-broken-directory" => moves::broken_directory;
    "29-advanced-epoch" => moves::advanced_epoch;
    "29-moved-space" => moves::moved_space;
    "29-changed-toolsheds" => moves::changed_toolsheds;
    "30-full-disk" => exhaustion::full_disk;
    "30-no-descriptors" => exhaustion::no_descriptors;
    "30-no-processes" => exhaustion::no_processes;
    "30-clock-steps" => impostor::clock_steps;
    "31-drain" => drain::drains;
    "36-revoke-principal" => revoke::principal;
    "crowd-stalled" => crowd::stalled;
    "crowd-returning" => crowd::returning;
    "half-open-clients" => half_open::vanished_clients;
    "host-worker-descriptors" => host::worker_descriptors;
    "host-worker-memory" => host::worker_memory;
    "host-agent-memory" => host::agent_memory;
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_every_part_of_its_gate() {
        let meant = |words| ALL.iter().filter(|gate| gate.is_meant(words)).count();
        assert_eq!(meant("12"), 3);
        assert_eq!(meant("1"), 1);
        assert_eq!(meant("21-browser"), 1);
        assert_eq!(meant("2-"), 0);
    }
}
