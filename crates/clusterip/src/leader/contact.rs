//! Whether the API server answers, as the leader election sees it: the election reads the leader's Lease every 2 s.
//! Watches don't show this, because the watches of an API server that hangs only stay silent.

use std::time::Duration;

use tokio::time::Instant;

/// How long the API server may give no answer before this server is not ready. A request for the Lease ends after 5 s
/// without an answer, so at least two requests have failed by then.
pub const MAX_SILENCE: Duration = Duration::from_secs(15);

/// Why a server that got the last answer of the API server at `last` is not ready; `None` if it is ready.
pub fn problem(last: Instant, now: Instant) -> Option<String> {
    let silence = now.saturating_duration_since(last);
    (silence > MAX_SILENCE).then(|| {
        format!(
            "the API server has not answered for {} s: the Lease of the leader could not be read",
            silence.as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_not_ready_if_the_api_server_is_silent() {
        struct Case {
            seconds: u64,
            expected: Option<&'static str>,
        }
        let cases = [
            Case { seconds: 0, expected: None },
            Case { seconds: 15, expected: None },
            Case {
                seconds: 16,
                expected: Some("the API server has not answered for 16 s: the Lease of the leader could not be read"),
            },
        ];
        let last = Instant::now();
        for Case { seconds, expected } in cases {
            assert_eq!(problem(last, last + Duration::from_secs(seconds)).as_deref(), expected, "after {seconds} s");
        }
    }
}
