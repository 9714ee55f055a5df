use std::time::Duration;

use super::*;

#[test]
fn a_stalled_loop_is_dead_and_a_lapsed_heartbeat_is_not_ready() {
    let begin = Instant::now();
    let health = |alive| Health { alive, beat: Some(begin), ..Health::default() };
    const STALLED: Option<&str> = Some("the loop of the agent has been stalled for 60 s");
    const UNREADY: Option<&str> = Some("the heartbeat is not renewed: no address may be held");
    struct Case {
        name: &'static str,
        alive: bool,
        /// The seconds since the last round.
        after: u64,
        liveness: Option<&'static str>,
        readiness: Option<&'static str>,
    }
    let cases = [
        Case { name: "alive", alive: true, after: 0, liveness: None, readiness: None },
        Case { name: "heartbeat not renewed", alive: false, after: 0, liveness: None, readiness: UNREADY },
        Case { name: "59 s without a round", alive: false, after: 59, liveness: None, readiness: UNREADY },
        Case { name: "60 s without a round", alive: true, after: 60, liveness: STALLED, readiness: None },
    ];
    for Case { name, alive, after, liveness, readiness } in cases {
        let health = health(alive);
        assert_eq!(health.liveness_error(begin + Duration::from_secs(after)).as_deref(), liveness, "{name}");
        assert_eq!(health.readiness_error().as_deref(), readiness, "{name}");
    }
}
