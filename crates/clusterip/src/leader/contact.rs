//! Whether the API server answers, as the leader election sees it: the election reads the leader's Lease every 2 s.
//! Watches don't show this, because the watches of an API server that hangs only stay silent.

use std::time::Duration;

use tokio::time::Instant;

/// How long the API server may give no answer before this server is not ready. A request for the Lease ends after 5 s
/// without an answer, so at least two requests have failed by then.
pub const MAX_SILENCE: Duration = Duration::from_secs(15);

/// This many requests in a row that the API server's host refuses show that the API server is down. One may be its
/// restart, or a connection that was closed.
const MAX_REFUSED: u32 = 2;

/// The contact with the API server.
#[derive(Clone, Copy, Debug)]
pub struct Contact {
    /// When the API server last answered.
    pub last: Instant,
    /// How many requests could not be sent since then.
    pub refused: u32,
}

impl Contact {
    /// The API server answers now.
    pub fn now() -> Self {
        Self { last: Instant::now(), refused: 0 }
    }
}

/// Why a server with this contact with the API server is not ready; `None` if it is ready.
pub fn problem(contact: Contact, now: Instant) -> Option<String> {
    let silence = now.saturating_duration_since(contact.last);
    (silence > MAX_SILENCE || contact.refused >= MAX_REFUSED).then(|| {
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
            refused: u32,
            expected: Option<&'static str>,
        }
        let cases = [
            Case { seconds: 0, refused: 0, expected: None },
            Case { seconds: 15, refused: 1, expected: None },
            Case {
                seconds: 4,
                refused: 2,
                expected: Some("the API server has not answered for 4 s: the Lease of the leader could not be read"),
            },
            Case {
                seconds: 16,
                refused: 0,
                expected: Some("the API server has not answered for 16 s: the Lease of the leader could not be read"),
            },
        ];
        let last = Instant::now();
        for Case { seconds, refused, expected } in cases {
            let problem = problem(Contact { last, refused }, last + Duration::from_secs(seconds));
            assert_eq!(problem.as_deref(), expected, "after {seconds} s, {refused} refused");
        }
    }
}
