//! What `clusterip renumber check` reports: the findings, and what happens to each Service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;

/// How many findings of a kind are kept. Any user can write objects that cause some.
const MOST_OF_KIND: usize = 50;

/// The command that must wait until a finding is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Before {
    Begin,
    Switch,
    Finish,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    pub before: Before,
    pub kind: &'static str,
    pub object: String,
    pub message: String,
    pub remedy: String,
}

/// Bounded: of the findings of a kind, only the first ones are kept, and the others are counted.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    counts: BTreeMap<(Before, &'static str), usize>,
}

impl Findings {
    pub fn add(&mut self, before: Before, kind: &'static str, object: &str, message: &str, remedy: &str) {
        let (object, message, remedy) = (object.to_owned(), message.to_owned(), remedy.to_owned());
        self.push(Finding { before, kind, object, message, remedy });
    }

    pub fn push(&mut self, finding: Finding) {
        let count = self.counts.entry((finding.before, finding.kind)).or_default();
        *count += 1;
        if *count <= MOST_OF_KIND {
            self.kept.push(finding);
        }
    }

    /// The findings, ordered by the command that they delay, then by kind and object.
    pub fn into_sorted(self) -> Vec<Finding> {
        let mut all = self.kept;
        for ((before, kind), count) in self.counts {
            if let Some(more) = count.checked_sub(MOST_OF_KIND).filter(|more| *more > 0) {
                let (object, remedy) = (format!("{more} more"), "deal with these, and check again".to_owned());
                all.push(Finding { before, kind, object, message: "not shown".to_owned(), remedy });
            }
        }
        all.sort();
        all
    }
}

/// What happens to a Service that has an address of an old range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    Seamless,
    Plain,
    /// `clusterip renumber switch` changes it.
    Switch,
    Stays,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceRow {
    pub namespace: String,
    pub name: String,
    pub addresses: Vec<IpAddr>,
    #[serde(rename = "method")]
    pub way: Way,
    /// What its clients notice, or why it stays.
    pub why: String,
    /// For how many seconds clients that know the old address fail.
    pub interruption_seconds: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_that_are_not_kept_are_counted() {
        let mut findings = Findings::default();
        for nth in 0..MOST_OF_KIND + 2 {
            findings.add(Before::Finish, "mention", &format!("Pod {nth:03}"), "message", "remedy");
        }
        findings.add(Before::Begin, "overlap", "Node a", "message", "remedy");
        let shown: Vec<_> = findings.into_sorted().into_iter().map(|finding| finding.object).collect();
        assert_eq!(shown.len(), MOST_OF_KIND + 2);
        assert_eq!(shown[..3], ["Node a", "2 more", "Pod 000"]);
    }
}
