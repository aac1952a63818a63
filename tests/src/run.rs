//! Running gates: one after the other, and those that only wait beside them.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use crate::gates::{ALL, Gate};
use crate::report::Outcome;
use crate::stage::StageOptions;
use crate::{GateError, Programs, Stage};

/// How long one gate may take.
const GATE_DEADLINE: Duration = Duration::from_secs(180);

/// What each random schedule adds to that.
const SCHEDULE_DEADLINE: Duration = Duration::from_secs(3);

/// Runs every gate that `only` means (all without it) on one stage, and tells each outcome as it comes.
///
/// # Errors
/// When the stage cannot be set, or not be struck in order.
pub async fn run(
    programs: &Programs,
    only: Option<&str>,
    mut tell: impl FnMut(&Outcome),
) -> Result<Vec<Outcome>, GateError> {
    let meant = |gate: &&Gate| only.is_none_or(|words| gate.is_meant(words));
    let deadline = GATE_DEADLINE + SCHEDULE_DEADLINE * programs.schedules;
    let stage = Stage::set(programs, StageOptions::default()).await?;
    let (waiting, busy): (Vec<&Gate>, Vec<&Gate>) =
        ALL.iter().filter(meant).partition(|gate| gate.waits);
    let mut waiting: FuturesUnordered<_> = waiting
        .into_iter()
        .map(|gate| attempt(gate, &stage, deadline))
        .collect();
    let mut outcomes = Vec::new();
    let mut note = |outcome: Outcome| {
        tell(&outcome);
        outcomes.push(outcome);
    };
    for gate in busy {
        let mut running = pin!(attempt(gate, &stage, deadline));
        let outcome = loop {
            tokio::select! {
                outcome = &mut running => break outcome,
                Some(outcome) = waiting.next() => note(outcome),
            }
        };
        note(outcome);
    }
    while let Some(outcome) = waiting.next().await {
        note(outcome);
    }
    drop(waiting);
    stage.strike().await?;
    Ok(outcomes)
}

async fn attempt(gate: &Gate, stage: &Stage, deadline: Duration) -> Outcome {
    let mark = stage.router.log().mark();
    let began = Instant::now();
    let result = timeout(deadline, (gate.run)(stage))
        .await
        .unwrap_or_else(|_| {
            let found = "it still runs";
            Err(GateError::new(
                "the gate",
                format!("an end within {deadline:?}"),
                found,
            ))
        })
        .map_err(|error| error.with_log(stage.router.log().tail(mark)));
    Outcome {
        gate: gate.name,
        took: began.elapsed(),
        result,
    }
}
