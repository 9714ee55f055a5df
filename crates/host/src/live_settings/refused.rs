//! Reports settings that can't be used in Events on their ConfigMap.

use std::time::Duration;

use clusterip_runtime::api_error::error_message;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::timeout;

/// The time limit for writing an Event.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest note in bytes that the API server accepts in an Event.
const MAX_NOTE_LENGTH: usize = 1024;
/// The largest number of Events for one version of the settings.
const MAX_EVENTS: usize = 8;

/// Reports mistakes in Events on the ConfigMap.
pub(super) async fn publish_events(client: Client, about: ObjectReference, mistakes: String) {
    for note in notes(&mistakes) {
        // A recorder considers two Events that differ only in their note to be the same one, and keeps the old note. So
        // each Event has its own recorder.
        let recorder = Recorder::new(client.clone(), Reporter::from("clusterip"));
        let event = Event {
            type_: EventType::Warning,
            reason: "SettingsRefused".to_owned(),
            note: Some(note),
            action: "ReadSettings".to_owned(),
            secondary: None,
        };
        match timeout(REQUEST_TIMEOUT, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = error_message(&error), "writing an event about the refused settings failed")
            }
            Err(_) => {
                tracing::warn!(
                    "writing an event about the refused settings failed: no answer within {REQUEST_TIMEOUT:?}"
                )
            }
        }
    }
}

/// Distributes mistakes, one per line, to as few notes as possible.
fn notes(mistakes: &str) -> Vec<String> {
    const HEAD: &str = "settings refused, the previous ones stay in use:";
    const MORE: &str = "\nand more: the log names all";
    let room = MAX_NOTE_LENGTH - MORE.len();
    let mut notes = vec![HEAD.to_owned()];
    for mistake in mistakes.lines() {
        let mistake = cut(mistake, room - HEAD.len() - 1);
        if notes.last().is_none_or(|note| note.len() + 1 + mistake.len() > room) {
            if notes.len() == MAX_EVENTS {
                if let Some(last) = notes.last_mut() {
                    last.push_str(MORE);
                }
                break;
            }
            notes.push(HEAD.to_owned());
        }
        if let Some(note) = notes.last_mut() {
            note.push('\n');
            note.push_str(mistake);
        }
    }
    notes
}

/// The longest prefix of a text that fits, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_fit_into_event_notes() {
        struct Case {
            name: &'static str,
            mistakes: Vec<String>,
            count: usize,
        }
        let head = "settings refused, the previous ones stay in use:";
        assert_eq!(notes("a: wrong\nb: wrong"), [format!("{head}\na: wrong\nb: wrong")]);
        let cases = [
            Case { name: "as many as fit", mistakes: vec!["x".repeat(100); 9], count: 1 },
            Case { name: "one more", mistakes: vec!["x".repeat(100); 10], count: 2 },
            Case { name: "a single mistake that is too long", mistakes: vec!["é".repeat(2000)], count: 1 },
            Case { name: "very many", mistakes: vec!["x".repeat(100); 1000], count: MAX_EVENTS },
        ];
        for Case { name, mistakes, count } in cases {
            let notes = notes(&mistakes.join("\n"));
            assert_eq!(notes.len(), count, "{name}");
            assert!(notes.iter().all(|note| note.len() <= MAX_NOTE_LENGTH && note.starts_with(head)), "{name}");
            let told = notes.iter().map(|note| note.matches('x').count()).sum::<usize>();
            let more = notes.last().unwrap().ends_with("and more: the log names all");
            assert_eq!(more, told < mistakes.iter().map(|m| m.matches('x').count()).sum(), "{name}");
        }
    }
}
