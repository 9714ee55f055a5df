//! Logs as text or JSON.
//!
//! Both formats write one line per event to standard error. Tenants choose names that are logged, and log lines are shown
//! in terminals: characters that would control a terminal or forge a line are escaped.

use std::fmt::{self, Debug};
use std::io::{self, Write};

use anyhow::Context;
use clap::{Args, ValueEnum};
use tracing::Dispatch;
use tracing::dispatcher::set_global_default;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::field::{RecordFields, VisitOutput as _};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::layer::SubscriberExt;

use crate::harmless_text::{harmless, harmless_json};

/// How the names of all our crates begin, and so the targets of their log lines.
const OUR_CRATES: &str = "clusterip";

/// The targets of the lines "failed with …" and "Unsuccessful data error parse: …" that kube logs for failed requests.
/// The error of the request, which is reported by our crates, says the same, and names the API server.
const REPORTED_TWICE: [(&str, LevelFilter); 2] =
    [("kube_client::client::builder", LevelFilter::OFF), ("kube_client::client", LevelFilter::ERROR)];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// For programs: one JSON object per line
    Json,
}

/// The least important level that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Errors
    Error,
    /// Errors and warnings
    Warn,
    /// Also a line for each decision
    #[default]
    Info,
    /// Also the steps that led to it
    Debug,
    /// Everything
    Trace,
}

/// Arguments that concern logs.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Logging {
    /// How log lines look
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub log_format: LogFormat,
    /// The least important level that is logged
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t)]
    pub log_level: LogLevel,
}

impl Logging {
    pub fn start(self) -> anyhow::Result<()> {
        set_global_default(self.dispatch(io::stderr)).context("logs can't be set up twice")
    }

    fn dispatch<W: Write + 'static>(self, sink: impl Fn() -> W + Send + Sync + 'static) -> Dispatch {
        let level = match self.log_level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        // Messages of dependencies are for their developers, except for warnings and errors.
        let filter = Targets::new()
            .with_target(OUR_CRATES, level)
            .with_targets(REPORTED_TWICE)
            .with_default(level.min(LevelFilter::WARN));
        let sink = move || HarmlessWriter { sink: sink(), format: self.log_format };
        // If standard error is closed, the fallback for internal errors would print there, and panic.
        let lines = tracing_subscriber::fmt::layer().with_writer(sink).with_ansi(false).log_internal_errors(false);
        // The writer escapes.
        let lines = lines.with_ansi_sanitization(false);
        match self.log_format {
            LogFormat::Text => {
                let lines = lines.with_target(false).fmt_fields(QuotedFields);
                Dispatch::new(tracing_subscriber::registry().with(lines).with(filter))
            }
            LogFormat::Json => {
                let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
                Dispatch::new(tracing_subscriber::registry().with(lines).with(filter))
            }
        }
    }
}

/// Writes the fields of an event as `key=value`, so that a program can tell where each value ends.
struct QuotedFields;

impl<'w> FormatFields<'w> for QuotedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = QuotedVisitor(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct QuotedVisitor<'w>(DefaultVisitor<'w>);

impl Visit for QuotedVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.record_str(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() == "message" || !is_ambiguous(&text) {
            true => self.0.record_debug(field, &format_args!("{text}")),
            false => self.0.record_str(field, &text),
        }
    }
}

/// Whether a value would be read as several values, or as none, without quotes.
fn is_ambiguous(value: &str) -> bool {
    value.is_empty() || value.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '='))
}

/// Escapes lines before they reach another writer. A log line arrives in one write.
struct HarmlessWriter<W> {
    sink: W,
    format: LogFormat,
}

impl<W: Write> Write for HarmlessWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let mut shown = match self.format {
            LogFormat::Text => harmless(text),
            LogFormat::Json => harmless_json(text.to_owned()),
        };
        shown.push('\n');
        self.sink.write_all(shown.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::*;
    use crate::harmless_text::steers;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(log_format: LogFormat, log_level: LogLevel, log: impl FnOnce()) -> Vec<String> {
        let memory = Memory::default();
        let sink = memory.clone();
        let dispatch = Logging { log_format, log_level }.dispatch(move || sink.clone());
        tracing::dispatcher::with_default(&dispatch, log);
        let text = String::from_utf8(memory.0.lock().unwrap().clone()).unwrap();
        text.split_terminator('\n').map(str::to_owned).collect()
    }

    /// The lines of a log as text, without their time.
    fn text_lines(log_level: LogLevel, log: impl FnOnce()) -> Vec<String> {
        let lines = logged(LogFormat::Text, log_level, log);
        lines.iter().map(|line| line.split_once(' ').unwrap().1.trim_start().to_owned()).collect()
    }

    const NASTY: &str = "a\nERROR forged \u{1b}[31m\u{9b}1m\u{202e}\u{7f}b";

    #[test]
    fn text_lines_escape_control_characters_and_quote_values_with_spaces() {
        let lines = text_lines(LogLevel::Info, || {
            let failed = io::Error::other("no answer");
            tracing::info!(service = NASTY, "named {NASTY}");
            tracing::info!(service = %NASTY, "shown");
            tracing::info!(source = %"ClusterAdmissionPolicy a", %failed, "settings in use");
            tracing::info!(address = %"10.0.0.1", free = 7, leads = true, empty = %"", a = %"b=c", pool = "p", "plain");
            tracing::info!(error = &failed as &dyn std::error::Error, said = %"\"so\"", kind = ?Some("x"), "other");
        });
        let expected = [
            r#"INFO named a\nERROR forged \u{1b}[31m\u{9b}1m\u{202e}\u{7f}b service="a\nERROR forged \u{1b}[31m\u{9b}1m\u{202e}\u{7f}b""#,
            r#"INFO shown service="a\nERROR forged \u{1b}[31m\u{9b}1m\u{202e}\u{7f}b""#,
            r#"INFO settings in use source="ClusterAdmissionPolicy a" failed="no answer""#,
            r#"INFO plain address=10.0.0.1 free=7 leads=true empty="" a="b=c" pool="p""#,
            r#"INFO other error="no answer" said="\"so\"" kind="Some(\"x\")""#,
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn failed_requests_are_not_logged_twice() {
        let lines = text_lines(LogLevel::Info, || {
            tracing::error!(target: "kube_client::client::builder", "failed with error");
            tracing::warn!(target: "kube_client::client", "Unsuccessful data error parse: 404 page not found");
            tracing::error!(target: "kube_client::client", "another error");
            tracing::warn!(target: "kube_client::config", "another warning");
        });
        assert_eq!(lines, ["ERROR another error", "WARN another warning"]);
    }

    #[test]
    fn json_lines_are_one_escaped_object_with_the_original_values() {
        let lines = logged(LogFormat::Json, LogLevel::Info, || {
            tracing::info!(service = NASTY, pool = "linux", free = 7, "allocated");
        });
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(!lines[0].chars().any(steers), "{:?}", lines[0]);
        let mut object: Value = serde_json::from_str(&lines[0]).unwrap();
        assert!(object.as_object_mut().unwrap().remove("timestamp").is_some());
        let expected = json!({
            "level": "INFO",
            "message": "allocated",
            "service": NASTY,
            "pool": "linux",
            "free": 7,
            "target": "clusterip_cluster::logging::tests",
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn each_level_includes_the_more_important_levels() {
        let all = || {
            tracing::error!("error");
            tracing::warn!("warn");
            tracing::info!("info");
            tracing::debug!("debug");
            tracing::trace!("trace");
            tracing::error!(target: "kube", "their error");
            tracing::warn!(target: "kube", "their warning");
            tracing::info!(target: "kube", "their info");
            tracing::error!(target: "kube_client::client::builder", "failed with error client error (Connect)");
        };
        use LogLevel::{Debug, Error, Info, Trace, Warn};
        let lines = [
            (Error, "ERROR error"),
            (Warn, "WARN warn"),
            (Info, "INFO info"),
            (Debug, "DEBUG debug"),
            (Trace, "TRACE trace"),
            (Error, "ERROR their error"),
            (Warn, "WARN their warning"),
        ];
        let levels = [Error, Warn, Info, Debug, Trace];
        for (at, level) in levels.into_iter().enumerate() {
            let is_shown = |(of, _): &&(LogLevel, &str)| levels[..=at].contains(of);
            let expected: Vec<_> = lines.iter().filter(is_shown).map(|(_, line)| *line).collect();
            assert_eq!(text_lines(level, all), expected, "{level:?}");
        }
    }
}
