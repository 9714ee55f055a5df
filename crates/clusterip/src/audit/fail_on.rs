//! Which findings make an audit fail.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::model::{Audit, Kind};

/// A value of `--fail-on`: which findings let the command fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailOn {
    /// Any finding.
    Any,
    /// A finding of this kind.
    Kind(Kind),
}

impl FailOn {
    /// Whether an audit has a finding that this value selects.
    pub fn is_met(self, audit: &Audit) -> bool {
        audit.findings.iter().any(|finding| match self {
            Self::Any => true,
            Self::Kind(kind) => finding.kind == kind,
        })
    }
}

impl ValueEnum for FailOn {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [FailOn; 30] = [
            FailOn::Any,
            FailOn::Kind(Kind::HalfMoved),
            FailOn::Kind(Kind::Misplaced),
            FailOn::Kind(Kind::ByHand),
            FailOn::Kind(Kind::NoPool),
            FailOn::Kind(Kind::Unmatched),
            FailOn::Kind(Kind::Denied),
            FailOn::Kind(Kind::MixedNodes),
            FailOn::Kind(Kind::NotReady),
            FailOn::Kind(Kind::Full),
            FailOn::Kind(Kind::OutsideRanges),
            FailOn::Kind(Kind::UnusableRange),
            FailOn::Kind(Kind::OverKubernetes),
            FailOn::Kind(Kind::OverDns),
            FailOn::Kind(Kind::LowestOrder),
            FailOn::Kind(Kind::OtherWebhook),
            FailOn::Kind(Kind::SharedBlock),
            FailOn::Kind(Kind::WrongNodePool),
            FailOn::Kind(Kind::OutsideNodePool),
            FailOn::Kind(Kind::WithheldBlock),
            FailOn::Kind(Kind::NoBlock),
            FailOn::Kind(Kind::FullNodePool),
            FailOn::Kind(Kind::SharedExternal),
            FailOn::Kind(Kind::RefusedExternal),
            FailOn::Kind(Kind::ForeignExternal),
            FailOn::Kind(Kind::NotHeld),
            FailOn::Kind(Kind::NoExternal),
            FailOn::Kind(Kind::WrongIngress),
            FailOn::Kind(Kind::IdleClaim),
            FailOn::Kind(Kind::FullExternalPool),
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Any => Some(PossibleValue::new("any").help("Any finding")),
            Self::Kind(kind) => kind.to_possible_value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_can_be_failed_on() {
        let kinds: Vec<FailOn> = Kind::value_variants().iter().map(|kind| FailOn::Kind(*kind)).collect();
        assert_eq!(FailOn::value_variants()[1..], kinds);
        assert_eq!(FailOn::value_variants()[0], FailOn::Any);
    }
}
