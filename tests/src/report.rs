//! The exercise's output: one line of JSON per gate, then the verdict.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::GateError;

/// What a gate measured; extra members of its line.
pub type Figures = Map<String, Value>;

/// How one gate went.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The gate's name.
    pub gate: &'static str,
    /// What it took.
    pub took: Duration,
    /// What it measured, or why it failed.
    pub result: Result<Figures, GateError>,
}

impl Outcome {
    /// Whether the gate passed.
    pub fn passed(&self) -> bool {
        self.result.is_ok()
    }

    /// The gate's line, such as `{"gate":"1-two-toolsheds","passed":true,"ms":12}`.
    pub fn line(&self) -> String {
        let mut line = format!(
            r#"{{"gate":{},"passed":{},"ms":{}"#,
            json!(self.gate),
            self.passed(),
            self.took.as_millis()
        );
        let extra = match &self.result {
            Ok(figures) => figures.clone(),
            Err(error) => figure("error", error.to_string()),
        };
        for (name, value) in extra {
            line.push_str(&format!(",{}:{value}", json!(name)));
        }
        line.push('}');
        line
    }
}

/// The last line, such as `{"accepted":true,"gates":10}`.
pub fn verdict(outcomes: &[Outcome]) -> String {
    let accepted = !outcomes.is_empty() && outcomes.iter().all(Outcome::passed);
    json!({ "accepted": accepted, "gates": outcomes.len() }).to_string()
}

/// One figure.
pub fn figure(name: &str, value: impl Into<Value>) -> Figures {
    Figures::from_iter([(name.to_owned(), value.into())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_the_documented_lines() {
        let passed = Outcome {
            gate: "1-two-toolsheds",
            took: Duration::from_millis(12),
            result: Ok(Figures::new()),
        };
        assert_eq!(
            passed.line(),
            r#"{"gate":"1-two-toolsheds","passed":true,"ms":12}"#
        );
        let measured = Outcome {
            result: Ok(figure("kib", 3)),
            ..passed.clone()
        };
        assert_eq!(
            measured.line(),
            r#"{"gate":"1-two-toolsheds","passed":true,"ms":12,"kib":3}"#
        );
        assert_eq!(verdict(&[passed]), r#"{"accepted":true,"gates":1}"#);
        assert_eq!(verdict(&[]), r#"{"accepted":false,"gates":0}"#);
    }
}
