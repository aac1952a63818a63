//! Log lines: one JSON object each on standard error, with the role that wrote it.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use crate::exit::{Exit, Failure};

/// Which log lines are written: a level, or directives `target=level`.
pub(crate) const LEVEL_VARIABLE: &str = "MEMORY_ROUTER_LOG";

/// Starts logging for this process. Called once, and not at all in a worker: what a worker has to say goes over its
/// channel, and its parent logs it. From here on nothing that goes wrong with standard error ends the process.
///
/// # Errors
/// [`Exit::Configuration`] when [`LEVEL_VARIABLE`] cannot be understood.
pub(crate) fn start(role: &'static str) -> Result<(), Failure> {
    let filter = memory_log::filter(LEVEL_VARIABLE)
        .map_err(|error| Failure::because(Exit::Configuration, "no log", error))?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(memory_log::stderr)
        .log_internal_errors(false)
        .fmt_fields(JsonFields::new())
        .event_format(JsonLines { role })
        .finish();
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|error| Failure::because(Exit::Failure, "cannot start logging", error))
}

/// Writes `timestamp`, `level`, `role`, `target`, then the fields of the enclosing spans and of the event itself, all in one
/// flat object. An event that carries its own `role` (a worker's, logged by the spawner) keeps it.
#[derive(Debug)]
struct JsonLines {
    role: &'static str,
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Map::new();
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        line.insert("timestamp".to_owned(), time.into());
        line.insert(
            "level".to_owned(),
            event
                .metadata()
                .level()
                .as_str()
                .to_ascii_lowercase()
                .into(),
        );
        line.insert("role".to_owned(), self.role.into());
        line.insert("target".to_owned(), event.metadata().target().into());
        for span in context
            .event_scope()
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            let extensions = span.extensions();
            let fields = extensions
                .get::<FormattedFields<N>>()
                .map(|fields| fields.fields.as_str());
            if let Some(Ok(Value::Object(fields))) = fields.map(serde_json::from_str) {
                line.extend(fields);
            }
        }
        event.record(&mut Fields(&mut line));
        let text = serde_json::to_string(&line).map_err(|_| fmt::Error)?;
        writeln!(writer, "{text}")
    }
}

/// Adds an event's fields to its line.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn add(&mut self, field: &Field, value: Value) {
        self.0
            .insert(field.name().trim_start_matches("r#").to_owned(), value);
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, crate::exit::story(value).into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // Writing into a string fails only when the value's own formatting does.
        if write!(text, "{value:?}").is_err() {
            text.clear();
        }
        self.add(field, text.into());
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(log: impl FnOnce()) -> Vec<Value> {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .fmt_fields(JsonFields::new())
            .event_format(JsonLines { role: "spawner" })
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_line_is_flat_and_names_the_role() {
        let lines = lines(|| {
            let _span =
                tracing::info_span!("connection", connection = "0123", peer = %"[::1]:5").entered();
            tracing::warn!(
                reason = "rate",
                count = 3_u64,
                accepting = false,
                "dropped \"quoted\"\nline"
            );
        });
        let [line] = &lines[..] else {
            panic!("{lines:?}")
        };
        assert_eq!(line["level"], "warn");
        assert_eq!(line["role"], "spawner");
        assert_eq!(line["connection"], "0123");
        assert_eq!(line["peer"], "[::1]:5");
        assert_eq!(line["reason"], "rate");
        assert_eq!(line["count"], 3);
        assert_eq!(line["accepting"], false);
        assert_eq!(line["message"], "dropped \"quoted\"\nline");
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn an_event_of_a_worker_keeps_its_role() {
        let lines = lines(|| tracing::info!(role = "worker", connection = "0123", "ended"));
        assert_eq!(lines[0]["role"], "worker");
    }
}
