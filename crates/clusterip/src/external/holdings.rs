//! What people are told of who holds the addresses of Services: whenever that changes, and when nobody does for
//! longer than it takes to change.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// How long nobody may hold an address before that is told. Another takes over from a node that has died within
/// 25 s, and one that could not hold it gives it back in less.
pub const GRACE: Duration = Duration::from_secs(45);

/// An address that a Service is to have, as it is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Which one.
    pub address: IpAddr,
    /// The UID of the Service.
    pub uid: String,
    /// Whether the status of the Service shows it: then it was told that it is held.
    pub shown: bool,
    /// The node that holds it.
    pub holder: Option<String>,
}

/// What is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A node holds it, which did not before; where another did, it has taken it over.
    Held {
        /// Which one.
        address: IpAddr,
        /// The UID of the Service.
        uid: String,
        /// By which node.
        node: String,
        /// Which other node held it before, where that is known.
        before: Option<String>,
    },
    /// Nobody has held it for a while.
    NotHeld {
        /// Which one.
        address: IpAddr,
        /// The UID of the Service.
        uid: String,
    },
}

/// Who holds what, as far as it was told.
#[derive(Debug, Default)]
pub struct Holdings {
    known: BTreeMap<IpAddr, Known>,
    begun: bool,
}

#[derive(Debug)]
struct Known {
    uid: String,
    /// Who held it last.
    last: Option<String>,
    /// Since when nobody does.
    unheld: Option<Instant>,
    /// Whether the last that was told is that nobody holds it.
    told_unheld: bool,
}

impl Holdings {
    /// What is to be told now, in the order of the addresses. These are all that there are.
    ///
    /// At the first look it is not told again that an address is held which the Service's status shows: whoever led
    /// before has.
    pub fn look(&mut self, assigned: Vec<Assigned>, now: Instant) -> Vec<News> {
        self.known.retain(|address, known| {
            assigned.iter().any(|assigned| assigned.address == *address && assigned.uid == known.uid)
        });
        let mut news: Vec<News> = Vec::new();
        for Assigned { address, uid, shown, holder } in assigned {
            let known = self.known.entry(address).or_insert_with(|| Known {
                uid: uid.clone(),
                last: holder.clone().filter(|_| shown && !self.begun),
                unheld: None,
                told_unheld: false,
            });
            match holder {
                Some(node) => {
                    known.unheld = None;
                    if known.last.as_ref() != Some(&node) || std::mem::take(&mut known.told_unheld) {
                        let before = known.last.replace(node.clone()).filter(|before| *before != node);
                        known.told_unheld = false;
                        news.push(News::Held { address, uid, node, before });
                    }
                }
                None => {
                    let since = *known.unheld.get_or_insert(now);
                    if now >= since + GRACE && !known.told_unheld {
                        known.told_unheld = true;
                        news.push(News::NotHeld { address, uid });
                    }
                }
            }
        }
        self.begun = true;
        news.sort_by_key(News::address);
        news
    }

    /// When there is something to be told, if nothing changes.
    pub fn next(&self) -> Option<Instant> {
        let waiting = self.known.values().filter(|known| !known.told_unheld);
        waiting.filter_map(|known| known.unheld).map(|since| since + GRACE).min()
    }
}

impl News {
    /// The address that it is about.
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Held { address, .. } | Self::NotHeld { address, .. } => *address,
        }
    }

    /// The UID of the Service that it is about.
    pub fn uid(&self) -> &str {
        match self {
            Self::Held { uid, .. } | Self::NotHeld { uid, .. } => uid,
        }
    }

    /// The reason of the Event, and whether somebody should look at it.
    pub fn reason(&self) -> (&'static str, bool) {
        match self {
            Self::Held { .. } => ("ExternalAddressHeld", false),
            Self::NotHeld { .. } => ("ExternalAddressNotHeld", true),
        }
    }

    /// In full.
    pub fn note(&self) -> String {
        match self {
            Self::Held { address, node, before: None, .. } => format!("{address} is held by node {node}"),
            Self::Held { address, node, before: Some(before), .. } => {
                format!("{address} is held by node {node}, which took it over from node {before}")
            }
            Self::NotHeld { address, .. } => format!(
                "{address} has been held by no node for {} s: is there a ready node that its pool's `nodes` match, \
                 with an agent that runs? What agents log says more",
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
    fn what_is_told_when() {
        const UNHELD: &str = "warning a ExternalAddressNotHeld: 10.0.9.10 has been held by no node for 45 s: is there a \
                              ready node that its pool's `nodes` match, with an agent that runs? What agents log says \
                              more";
        let one = |shown: bool, holder: &str| vec![assigned(10, "a", shown, holder)];
        let held = |text: &str| format!("a ExternalAddressHeld: 10.0.9.10 is held by node {text}");
        // After how many seconds what was seen, and what was told then.
        type Row<'a> = (&'a str, Vec<(u64, Vec<Assigned>, Vec<String>)>);
        let rows: Vec<Row<'_>> = vec![
            (
                "it gets a holder, once",
                vec![
                    (0, one(false, ""), vec![]),
                    (3, one(false, "n1"), vec![held("n1")]),
                    (4, one(true, "n1"), vec![]),
                    (90, one(true, "n1"), vec![]),
                ],
            ),
            (
                "it changes hands, in the time that takes",
                vec![
                    (0, one(false, "n1"), vec![held("n1")]),
                    (10, one(true, ""), vec![]),
                    (35, one(false, "n2"), vec![held("n2, which took it over from node n1")]),
                ],
            ),
            (
                "its holder was away for a moment",
                vec![
                    (0, one(false, "n1"), vec![held("n1")]),
                    (10, one(true, ""), vec![]),
                    (54, one(false, "n1"), vec![]),
                    (200, one(true, "n1"), vec![]),
                ],
            ),
            (
                "nobody holds it any more, and then somebody does",
                vec![
                    (0, one(false, "n1"), vec![held("n1")]),
                    (10, one(true, ""), vec![]),
                    (54, one(false, ""), vec![]),
                    (55, one(false, ""), vec![UNHELD.to_owned()]),
                    (500, one(false, ""), vec![]),
                    (510, one(false, "n1"), vec![held("n1")]),
                    (511, one(true, "n1"), vec![]),
                ],
            ),
            ("nobody ever holds it", vec![(0, one(false, ""), vec![]), (45, one(false, ""), vec![UNHELD.to_owned()])]),
            (
                "another led before, and has told",
                vec![
                    (0, one(true, "n1"), vec![]),
                    (9, one(true, "n2"), vec![held("n2, which took it over from node n1")]),
                ],
            ),
            ("another led before, and has not told yet", vec![(0, one(false, "n1"), vec![held("n1")])]),
            (
                "another Service has it, whose status shows it still",
                vec![
                    (0, one(true, "n1"), vec![]),
                    (
                        5,
                        vec![assigned(10, "b", true, "n1")],
                        vec!["b ExternalAddressHeld: 10.0.9.10 is held by node n1".to_owned()],
                    ),
                    (6, vec![], vec![]),
                    (7, vec![assigned(10, "b", false, "")], vec![]),
                    (51, vec![assigned(10, "b", false, "")], vec![]),
                ],
            ),
            (
                "two at once",
                vec![(
                    0,
                    vec![assigned(11, "b", false, "n2"), assigned(10, "a", false, "n1")],
                    vec![held("n1"), "b ExternalAddressHeld: 10.0.9.11 is held by node n2".to_owned()],
                )],
            ),
        ];
        for (name, looks) in rows {
            let (mut holdings, begin) = (Holdings::default(), Instant::now());
            for (after, seen, expected) in looks {
                let news = holdings.look(seen, begin + Duration::from_secs(after));
                let told = |news: &News| {
                    let (reason, warning) = news.reason();
                    format!("{}{} {reason}: {}", if warning { "warning " } else { "" }, news.uid(), news.note())
                };
                assert_eq!(news.iter().map(told).collect::<Vec<_>>(), expected, "{name}, after {after} s");
            }
        }
    }

    #[test]
    fn when_there_is_more_to_tell() {
        let (mut holdings, begin) = (Holdings::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        for (at, holder, expected) in
            [(0, "", Some(45)), (10, "", Some(45)), (20, "n1", None), (30, "", Some(75)), (75, "", None)]
        {
            holdings.look(vec![assigned(10, "a", false, holder)], after(at));
            assert_eq!(holdings.next(), expected.map(after), "after {at} s");
        }
    }
}
