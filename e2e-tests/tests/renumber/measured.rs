//! Which goals `make bench-renumber` calls missed.

use std::collections::BTreeMap;

use crate::support::move_load::Requests;
use crate::support::renumbering::{Kind, Step, StepResult, missed_goals};

/// A step in which this number of 1,000 requests of a kind failed.
fn step(step: Step, kind: Kind, failed: u64) -> StepResult {
    let requests = Requests { requests: 1_000, failed, ..Requests::default() };
    StepResult { step, seconds: 10, kinds: BTreeMap::from([(kind, requests)]) }
}

/// Nothing failed.
fn before() -> StepResult {
    let kinds = Kind::ALL.map(|kind| (kind, Requests { requests: 1_000, ..Requests::default() }));
    StepResult { step: Step::Before, seconds: 10, kinds: BTreeMap::from(kinds) }
}

#[test]
fn restart_may_interrupt_hardly_more_requests_than_without_a_renumbering() {
    struct Case {
        alone: Option<(Step, Kind, u64)>,
        during: (Step, Kind, u64),
        expected: Option<&'static str>,
    }
    let case = |alone, during, expected| Case { alone, during, expected };
    let api_alone = |failed| Some((Step::RestartsAlone, Kind::ApiNew, failed));
    let dns_alone = |failed| Some((Step::PodsAlone, Kind::OldDns, failed));
    for Case { alone, during, expected } in [
        case(
            None,
            (Step::Begin, Kind::ByName, 1),
            Some("`begin`, Service by name: 1 of 1000 requests failed {}, accepted: 0"),
        ),
        case(None, (Step::Switch, Kind::NewDns, 500), None),
        case(api_alone(0), (Step::RestartsAfterSwitch, Kind::ApiNew, 4), None),
        case(
            api_alone(0),
            (Step::RestartsAfterSwitch, Kind::ApiNew, 5),
            Some("restarts of the API servers after `switch`, API server: 5 of 1000 requests failed {}, accepted: 4"),
        ),
        case(
            api_alone(10),
            (Step::Restarts, Kind::ApiNew, 22),
            Some(
                "restarts of the API servers with the new range, API server: 22 of 1000 requests failed {}, accepted: 21",
            ),
        ),
        case(
            api_alone(10),
            (Step::Restarts, Kind::ByAddress, 1),
            Some(
                "restarts of the API servers with the new range, Service by address: 1 of 1000 requests failed {}, \
                 accepted: 0",
            ),
        ),
        case(None, (Step::Restarts, Kind::ApiNew, 22), None),
        case(dns_alone(6), (Step::Pods, Kind::NewDns, 15), None),
        case(
            dns_alone(6),
            (Step::Pods, Kind::NewDns, 16),
            Some("restarts of the Pods, DNS, new address: 16 of 1000 requests failed {}, accepted: 15"),
        ),
        case(
            dns_alone(6),
            (Step::Pods, Kind::ByName, 1),
            Some("restarts of the Pods, Service by name: 1 of 1000 requests failed {}, accepted: 0"),
        ),
    ] {
        let mut results = vec![before(), step(during.0, during.1, during.2)];
        results.extend(alone.map(|(alone, kind, failed)| step(alone, kind, failed)));
        assert_eq!(missed_goals(&results, 5_000), Vec::from_iter(expected.map(str::to_owned)), "{alone:?} {during:?}");
    }
}

#[test]
fn requests_without_a_renumbering_count_for_no_goal() {
    let results = [before(), step(Step::PodsAlone, Kind::ByName, 0)];
    let missed = "5000 requests to Services and DNS, at least 5001 are wanted";
    assert_eq!(missed_goals(&results, 5_001), [missed]);
    let missed = missed_goals(&[step(Step::Begin, Kind::ByName, 0), step(Step::RestartsAlone, Kind::ApiNew, 0)], 0);
    assert_eq!(missed.len(), Kind::ALL.len() - 1, "{missed:?}");
}
