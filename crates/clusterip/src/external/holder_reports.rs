//! Decides which changes of holders to report: a new one at once, a missing one if that lasts longer than a change.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// How long an address may be without a holder. If a node fails, another one takes over within 25 s.
pub const GRACE: Duration = Duration::from_secs(45);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    pub address: IpAddr,
    pub uid: String,
    /// Whether the status of the Service contains the address. Then its holder was reported already.
    pub shown: bool,
    pub holder: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderReport {
    pub address: IpAddr,
    pub uid: String,
    /// The node that holds the address now; `None` if no node has held it for [`GRACE`].
    pub node: Option<String>,
    /// The node that held the address before this one; `None` if unknown.
    pub before: Option<String>,
}

#[derive(Debug, Default)]
pub struct HolderReports {
    known: BTreeMap<IpAddr, Known>,
    begun: bool,
}

#[derive(Debug)]
struct Known {
    uid: String,
    last: Option<String>,
    /// When the address lost its holder; `None` if it has one.
    unheld: Option<Instant>,
    /// Whether the last report said that no node holds the address.
    reported_unheld: bool,
}

impl HolderReports {
    /// The changes to report now, ordered by address, of all `assigned` ones. The first call reports no holder of an
    /// address that the status of the Service shows, because the previous leader has reported it.
    pub fn changes(&mut self, assigned: Vec<Assigned>, now: Instant) -> Vec<HolderReport> {
        let owners: BTreeMap<IpAddr, &str> = assigned.iter().map(|one| (one.address, &*one.uid)).collect();
        self.known.retain(|address, known| owners.get(address) == Some(&&*known.uid));
        let mut changes: Vec<HolderReport> = Vec::new();
        for Assigned { address, uid, shown, holder } in assigned {
            let known = self.known.entry(address).or_insert_with(|| Known {
                uid: uid.clone(),
                last: holder.clone().filter(|_| shown && !self.begun),
                unheld: None,
                reported_unheld: false,
            });
            match holder {
                Some(node) => {
                    known.unheld = None;
                    if known.last.as_ref() != Some(&node) || std::mem::take(&mut known.reported_unheld) {
                        let before = known.last.replace(node.clone()).filter(|before| *before != node);
                        known.reported_unheld = false;
                        changes.push(HolderReport { address, uid, node: Some(node), before });
                    }
                }
                None => {
                    let since = *known.unheld.get_or_insert(now);
                    if now >= since + GRACE && !known.reported_unheld {
                        known.reported_unheld = true;
                        changes.push(HolderReport { address, uid, node: None, before: None });
                    }
                }
            }
        }
        self.begun = true;
        changes.sort_by_key(|report| report.address);
        changes
    }

    /// When the next report is due if no holder changes; `None` if no report is pending.
    pub fn next(&self) -> Option<Instant> {
        let waiting = self.known.values().filter(|known| !known.reported_unheld);
        waiting.filter_map(|known| known.unheld).map(|since| since + GRACE).min()
    }
}

impl HolderReport {
    pub fn reason(&self) -> (&'static str, bool) {
        match self.node {
            Some(_) => ("ExternalAddressHeld", false),
            None => ("ExternalAddressNotHeld", true),
        }
    }

    pub fn note(&self) -> String {
        let address = self.address;
        match (&self.node, &self.before) {
            (Some(node), None) => format!("{address} is held by node {node}"),
            (Some(node), Some(before)) => {
                format!("{address} is held by node {node}, which took it over from node {before}")
            }
            (None, _) => format!(
                "{address} has been held by no node for {} s: check that a ready node matches `nodes` of its pool and \
                 runs an agent, and read the logs of the agents",
                GRACE.as_secs()
            ),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn assigned(last: u8, uid: &str, shown: bool, holder: &str) -> Assigned {
        let holder = (!holder.is_empty()).then(|| holder.to_owned());
        Assigned { address: IpAddr::from([10, 0, 9, last]), uid: uid.to_owned(), shown, holder }
    }

    #[test]
    fn changes_of_holders_are_reported_once() {
        const UNHELD: &str = "warning a ExternalAddressNotHeld: 10.0.9.10 has been held by no node for 45 s: check that \
                              a ready node matches `nodes` of its pool and runs an agent, and read the logs of the \
                              agents";
        let one = |shown: bool, holder: &str| vec![assigned(10, "a", shown, holder)];
        let held = |text: &str| format!("a ExternalAddressHeld: 10.0.9.10 is held by node {text}");
        struct Look {
            /// The seconds since the begin.
            after: u64,
            assigned: Vec<Assigned>,
            reports: Vec<String>,
        }
        let look = |after, assigned, reports: &[&str]| Look {
            after,
            assigned,
            reports: reports.iter().map(|text| (*text).to_owned()).collect(),
        };
        let (by_n1, taken_over) = (held("n1"), held("n2, which took it over from node n1"));
        let (by_n1, taken_over) = (by_n1.as_str(), taken_over.as_str());
        let rows = [
            (
                "it gets a holder, once",
                vec![
                    look(0, one(false, ""), &[]),
                    look(3, one(false, "n1"), &[by_n1]),
                    look(4, one(true, "n1"), &[]),
                    look(90, one(true, "n1"), &[]),
                ],
            ),
            (
                "it changes hands, in the time that takes",
                vec![
                    look(0, one(false, "n1"), &[by_n1]),
                    look(10, one(true, ""), &[]),
                    look(35, one(false, "n2"), &[taken_over]),
                ],
            ),
            (
                "its holder was away for a moment",
                vec![
                    look(0, one(false, "n1"), &[by_n1]),
                    look(10, one(true, ""), &[]),
                    look(54, one(false, "n1"), &[]),
                    look(200, one(true, "n1"), &[]),
                ],
            ),
            (
                "its holder lets it go, and later a node holds it again",
                vec![
                    look(0, one(false, "n1"), &[by_n1]),
                    look(10, one(true, ""), &[]),
                    look(54, one(false, ""), &[]),
                    look(55, one(false, ""), &[UNHELD]),
                    look(500, one(false, ""), &[]),
                    look(510, one(false, "n1"), &[by_n1]),
                    look(511, one(true, "n1"), &[]),
                ],
            ),
            ("no node ever holds it", vec![look(0, one(false, ""), &[]), look(45, one(false, ""), &[UNHELD])]),
            (
                "another led before, and has told",
                vec![look(0, one(true, "n1"), &[]), look(9, one(true, "n2"), &[taken_over])],
            ),
            ("another led before, and has not told yet", vec![look(0, one(false, "n1"), &[by_n1])]),
            (
                "another Service has it, whose status shows it still",
                vec![
                    look(0, one(true, "n1"), &[]),
                    look(
                        5,
                        vec![assigned(10, "b", true, "n1")],
                        &["b ExternalAddressHeld: 10.0.9.10 is held by node n1"],
                    ),
                    look(6, vec![], &[]),
                    look(7, vec![assigned(10, "b", false, "")], &[]),
                    look(51, vec![assigned(10, "b", false, "")], &[]),
                ],
            ),
            (
                "two at once",
                vec![look(
                    0,
                    vec![assigned(11, "b", false, "n2"), assigned(10, "a", false, "n1")],
                    &[by_n1, "b ExternalAddressHeld: 10.0.9.11 is held by node n2"],
                )],
            ),
        ];
        for (name, looks) in rows {
            let (mut holder_reports, begin) = (HolderReports::default(), Instant::now());
            for Look { after, assigned, reports } in looks {
                let found = holder_reports.changes(assigned, begin + Duration::from_secs(after));
                let text = |report: &HolderReport| {
                    let (reason, warning) = report.reason();
                    format!("{}{} {reason}: {}", if warning { "warning " } else { "" }, report.uid, report.note())
                };
                assert_eq!(found.iter().map(text).collect::<Vec<_>>(), reports, "{name}, after {after} s");
            }
        }
    }

    #[test]
    fn the_next_report_is_due_when_the_grace_period_ends() {
        let (mut holder_reports, begin) = (HolderReports::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        for (at, holder, next_report) in
            [(0, "", Some(45)), (10, "", Some(45)), (20, "n1", None), (30, "", Some(75)), (75, "", None)]
        {
            holder_reports.changes(vec![assigned(10, "a", false, holder)], after(at));
            assert_eq!(holder_reports.next(), next_report.map(after), "after {at} s");
        }
    }
}
