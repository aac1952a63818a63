//! What the demonstration tells: each step with its time, what came out, and the processes.

use std::future::Future;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use serde_json::json;

use super::processes::Surveyed;
use super::stage::Stage;
use crate::exit::Failure;

struct Step {
    what: String,
    took: Duration,
    notes: Vec<String>,
}

/// The account, printed as it grows or as one JSON object at the end.
pub(crate) struct Account {
    json: bool,
    began: Instant,
    steps: Vec<Step>,
    processes: Vec<Surveyed>,
}

impl Account {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            began: Instant::now(),
            steps: Vec::new(),
            processes: Vec::new(),
        }
    }

    /// Does one step; a failure names it.
    pub(crate) async fn step<T>(
        &mut self,
        what: &str,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let result = work.await.map_err(|failure| {
            let exit = failure.exit;
            Failure::new(exit, format!("step \"{what}\": {}", failure.story()))
        })?;
        let took = began.elapsed();
        self.say(&format!("{:>9}  {what}", milliseconds(took)));
        self.steps.push(Step {
            what: what.to_owned(),
            took,
            notes: Vec::new(),
        });
        Ok(result)
    }

    /// Adds to the last step.
    pub(crate) fn note(&mut self, note: String) {
        self.say(&format!("{:>9}  - {note}", ""));
        if let Some(step) = self.steps.last_mut() {
            step.notes.push(note);
        }
    }

    /// The processes as surveyed.
    pub(crate) fn processes(&mut self, survey: Vec<Surveyed>) {
        self.processes = survey;
    }

    /// A line for people. Standard output that is closed is no reason to fail.
    fn say(&self, line: &str) {
        if !self.json {
            drop(writeln!(io::stdout(), "{line}"));
        }
    }

    /// Prints what is left to print; with `kept`, how to connect.
    pub(crate) fn print(&self, kept: Option<&Stage>) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        let text = if self.json {
            self.as_json(kept)
        } else {
            self.as_text(kept)
        };
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| Failure::io("cannot write to standard output", error))
    }

    fn as_text(&self, kept: Option<&Stage>) -> String {
        use std::fmt::Write as _;
        let mut text = format!(
            "\n{:>8}  {:>10}  {:>10}  process\n",
            "pid", "private", "resident"
        );
        for process in &self.processes {
            let private = process
                .private_kib
                .map_or_else(|| "-".to_owned(), |kib| format!("{kib} KiB"));
            let _ = writeln!(
                text,
                "{:>8}  {private:>10}  {:>10}  {}{}",
                process.pid,
                format!("{} KiB", process.resident_kib),
                "  ".repeat(process.depth),
                process.role
            );
        }
        let _ = writeln!(
            text,
            "\nDone in {}.",
            milliseconds(self.began.elapsed()).trim()
        );
        if let Some(stage) = kept {
            let _ = writeln!(
                text,
                "\nStill up. Clients connect to wss://{}/api/storage/memory and trust {}.\n\
                 Keys, directory and configuration are in {}.\n\
                 How it is: memory-router status --config {} --watch; metrics at http://{}/metrics.\nInterrupt to end.",
                stage.host(),
                stage.folder().join("public.pem").display(),
                stage.folder().display(),
                stage.config().display(),
                stage.metrics
            );
        }
        text
    }

    fn as_json(&self, kept: Option<&Stage>) -> String {
        let steps: Vec<_> = self
            .steps
            .iter()
            .map(|step| json!({ "step": step.what, "ms": step.took.as_secs_f64() * 1e3, "notes": step.notes }))
            .collect();
        let mut account = json!({
            "steps": steps,
            "processes": self.processes,
            "ms": self.began.elapsed().as_secs_f64() * 1e3,
        });
        if let (Some(stage), Some(members)) = (kept, account.as_object_mut()) {
            members.insert(
                "kept".to_owned(),
                json!({
                    "url": format!("wss://{}/api/storage/memory", stage.host()),
                    "certificate": stage.folder().join("public.pem"),
                    "folder": stage.folder(),
                    "metrics": format!("http://{}/metrics", stage.metrics),
                }),
            );
        }
        format!("{account}\n")
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
