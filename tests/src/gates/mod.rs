//! The gates, grouped by what they are about. Names start with the number of the gate in the design.

mod bodies;
mod bystander;
mod credit;
mod framings;
mod host;
mod malformed;
mod reach;
mod routing;

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
}

impl Gate {
    /// Whether the words of `--only` mean this gate: its name, or the number in front of it.
    pub fn is_meant(&self, words: &str) -> bool {
        let number = self.name.split_once('-').map(|(number, _)| number);
        self.name == words || number == Some(words)
    }
}

macro_rules! gates {
    ($($name:literal => $run:path),+ $(,)?) => {
        &[$(Gate { name: $name, run: |stage| Box::pin($run(stage)) }),+]
    };
}

/// Every gate, in the order of running.
pub const ALL: &[Gate] = gates![
    "1-two-toolsheds" => routing::two_toolsheds,
    "2-denials" => routing::denials,
    "10-pinned-audience" => routing::pinned_audience,
    "11-framings" => framings::same_result,
    "12-large-request" => bodies::large_request,
    "12-large-response" => bodies::large_response,
    "13-upload-credit" => credit::exact,
    "13-forged-credit" => credit::forged,
    "18-malformed-input" => malformed::malformed_input,
    "21-tcp-reset" => reach::tcp_reset,
    "21-browser" => reach::browser,
    "host-worker-descriptors" => host::worker_descriptors,
    "host-worker-memory" => host::worker_memory,
    "host-agent-memory" => host::agent_memory,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_every_part_of_its_gate() {
        let meant = |words| ALL.iter().filter(|gate| gate.is_meant(words)).count();
        assert_eq!(meant("12"), 2);
        assert_eq!(meant("1"), 1);
        assert_eq!(meant("21-browser"), 1);
        assert_eq!(meant("2-"), 0);
    }
}
