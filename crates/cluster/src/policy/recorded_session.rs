//! Recorded sessions: the look-ups of a policy and their answers, in the format of `kwctl run
//! --record-host-capabilities-interactions`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::host_calls::{HostCall, HostCalls};
use crate::yaml;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub call: HostCall,
    /// The JSON of the answer, or the text of an error.
    pub answer: Result<String, String>,
}

/// Reads a session file. The error names the first exchange that is invalid.
pub fn read(text: &str) -> anyhow::Result<Vec<Exchange>> {
    #[derive(Deserialize)]
    struct Written {
        request: String,
        response: Response,
    }
    #[derive(Deserialize)]
    #[serde(tag = "type")]
    enum Response {
        Success { payload: String },
        Error { message: String },
    }
    let Value::Array(exchanges) = yaml::single(text)? else { bail!("expected a list of exchanges") };
    let exchange = |(index, value): (usize, Value)| {
        let wrong = |reason: String| anyhow!("exchange {}: {reason}", index + 1);
        let written: Written = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        let call = read_call(&written.request).map_err(wrong)?;
        let answer = match written.response {
            Response::Success { payload } => Ok(payload),
            Response::Error { message } => Err(message),
        };
        Ok(Exchange { call, answer })
    };
    exchanges.into_iter().enumerate().map(exchange).collect()
}

fn read_call(text: &str) -> Result<HostCall, String> {
    let (tag, fields) = text
        .trim_start()
        .strip_prefix('!')
        .and_then(|text| text.split_once('\n'))
        .ok_or("the request does not begin with a tag such as !KubernetesGetResource")?;
    let fields = yaml::single(fields).map_err(|error| error.to_string())?;
    serde_json::from_value(serde_json::json!({ tag.trim(): fields })).map_err(|error| error.to_string())
}

pub fn write(exchanges: &[Exchange]) -> String {
    if exchanges.is_empty() {
        return "[]\n".to_owned();
    }
    let mut text = String::new();
    for exchange in exchanges {
        text.push_str("- type: Exchange\n  request: |\n");
        for line in call_yaml(&exchange.call) {
            let _ = writeln!(text, "    {line}");
        }
        let (kind, key, value) = match &exchange.answer {
            Ok(payload) => ("Success", "payload", payload),
            Err(message) => ("Error", "message", message),
        };
        let _ = writeln!(text, "  response:\n    type: {kind}\n    {key}: {}", quoted(value));
    }
    text
}

fn call_yaml(call: &HostCall) -> Vec<String> {
    let Ok(Value::Object(variant)) = serde_json::to_value(call) else { return Vec::new() };
    let mut lines = Vec::new();
    for (tag, fields) in &variant {
        lines.push(format!("!{tag}"));
        for (key, value) in fields.as_object().into_iter().flatten() {
            match value {
                Value::Array(items) => {
                    lines.push(format!("{key}:"));
                    lines.extend(
                        items.iter().map(|item| format!("- {}", item.as_str().map(quoted).unwrap_or_default())),
                    );
                }
                Value::String(text) => lines.push(format!("{key}: {}", quoted(text))),
                other => lines.push(format!("{key}: {other}")),
            }
        }
    }
    lines
}

/// A YAML scalar in single quotes, or in double quotes if a character must be escaped or ends a line in YAML.
fn quoted(text: &str) -> String {
    let plain =
        |c: char| !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}');
    if text.chars().all(plain) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    // A JSON string is a YAML double-quoted scalar, except for special characters that JSON does not escape.
    let mut scalar = String::new();
    for c in Value::from(text).to_string().chars() {
        if plain(c) {
            scalar.push(c);
        } else {
            // Writing to a string can't fail.
            let _ = write!(scalar, "\\u{:04x}", u32::from(c));
        }
    }
    scalar
}

/// Answers from a recorded session, strictly in order: each look-up must be exactly the recorded one.
pub struct Replay(Mutex<Replayed>);

struct Replayed {
    left: VecDeque<Exchange>,
    asked: usize,
    mismatch: Option<String>,
}

impl Replay {
    pub fn new(exchanges: Vec<Exchange>) -> Self {
        Self(Mutex::new(Replayed { left: exchanges.into(), asked: 0, mismatch: None }))
    }

    pub fn left(&self) -> usize {
        self.0.lock().left.len()
    }

    /// The first look-up that was not the recorded one. If there is one, the result of the evaluation is meaningless.
    pub fn mismatch(&self) -> Option<String> {
        self.0.lock().mismatch.clone()
    }
}

impl HostCalls for Replay {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let mut state = self.0.lock();
        state.asked += 1;
        let number = state.asked;
        let Some(expected) = state.left.pop_front() else {
            let mismatch = || format!("exchange {number} is missing\n  expected: nothing\n  asked:    {call}");
            state.mismatch.get_or_insert_with(mismatch);
            return Err("the list of recorded responses is empty".to_owned());
        };
        if expected.call != *call {
            let text =
                format!("Replay error: unexpected request. Was expecting {:?}, got {call:?} instead", expected.call);
            let expected = expected.call;
            let mismatch = format!("exchange {number} does not match\n  expected: {expected}\n  asked:    {call}");
            state.mismatch.get_or_insert(mismatch);
            return Err(text);
        }
        expected.answer.map(String::into_bytes)
    }
}

pub struct Recorder {
    host: Arc<dyn HostCalls>,
    exchanges: Mutex<Vec<Exchange>>,
}

impl Recorder {
    pub fn new(host: Arc<dyn HostCalls>) -> Self {
        Self { host, exchanges: Mutex::default() }
    }

    pub fn exchanges(&self) -> Vec<Exchange> {
        self.exchanges.lock().clone()
    }
}

impl HostCalls for Recorder {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let answer = self.host.answer(call);
        let written = answer.clone().map(|payload| String::from_utf8_lossy(&payload).into_owned());
        let exchange = Exchange { call: call.clone(), answer: written };
        self.exchanges.lock().push(exchange);
        answer
    }
}
