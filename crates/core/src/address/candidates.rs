use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::band::static_band_len;
use super::block::Blocks;
use super::family::{Family, number};
use super::occupancy::Occupancy;
use super::span::Span;

/// One CIDR of a pool, and the addresses of it that are never handed out.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    /// The CIDR.
    pub cidr: IpNet,
    /// How many addresses, counted from the network address, are kept for addresses set by hand.
    pub reserved: u64,
    /// Ranges and addresses that are never handed out. They may be of another family or outside of the CIDR.
    pub exclude: &'a [IpNet],
}

impl Range<'_> {
    /// The indices that are never handed out: the network address, the IPv4 broadcast address, and the reserved and
    /// excluded addresses. The all-ones address of IPv6 is usable, as in Kubernetes.
    fn withheld(&self, addresses: &Blocks) -> Occupancy {
        let mut withheld = Occupancy::default();
        withheld.insert(0..=u128::from(self.reserved.saturating_sub(1)));
        if Family::of(self.cidr.addr()) == Family::V4 {
            withheld.insert(addresses.last_index()..=addresses.last_index());
        }
        for &excluded in self.exclude {
            if let Some(indices) = addresses.indices(excluded) {
                withheld.insert(indices);
            }
        }
        withheld
    }
}

/// The addresses of one family that a pool may hand out, in bands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// The bands in the order in which they are used: one band, or the dynamic and then the static one.
    pub bands: Vec<Band>,
}

impl Candidates {
    /// The addresses of `ranges` without those they withhold. With `bands`, the static bands of all ranges (see
    /// [`static_band_len`]) come after their dynamic bands.
    pub fn new(ranges: &[Range<'_>], bands: bool) -> Self {
        let (mut dynamic, mut fixed) = (Band::default(), Band::default());
        for range in ranges {
            let addresses = Blocks::addresses(range.cidr);
            let withheld = range.withheld(&addresses);
            let static_len = if bands { static_band_len(range.cidr) } else { 0 };
            let last = addresses.last_index();
            if static_len > 0 {
                fixed.extend(&addresses, withheld.gaps(0..=static_len));
            }
            if static_len < last {
                let first = if static_len > 0 { static_len + 1 } else { 0 };
                dynamic.extend(&addresses, withheld.gaps(first..=last));
            }
        }
        Self { bands: if bands { vec![dynamic, fixed] } else { vec![dynamic] } }
    }

    /// The host addresses of `family` in `ranges`, without `exclude`, in one band.
    pub fn of_spans(ranges: &[Span], exclude: &[Span], family: Family) -> Self {
        let mut withheld = Occupancy::default();
        exclude.iter().filter(|span| span.family() == family).for_each(|span| withheld.insert(span.numbers()));
        let mut band = Band::default();
        for range in ranges.iter().filter(|range| range.family() == family) {
            withheld.gaps(range.host_numbers()).for_each(|run| band.push(family, run));
        }
        Self { bands: vec![band] }
    }

    /// The number of addresses that can be handed out; at most `u128::MAX`.
    pub fn count(&self) -> u128 {
        self.bands.iter().fold(0, |sum, band| sum.saturating_add(band.count))
    }

    /// Whether `address` is one of the candidates.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.bands.iter().any(|band| band.contains(address))
    }
}

/// Addresses with positions from 0: range after range, ascending in each range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Band {
    runs: Vec<Run>,
    count: u128,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    /// The position of the first address.
    position: u128,
    family: Family,
    /// The numbers of the first and the last address.
    first: u128,
    last: u128,
}

impl Band {
    fn extend(&mut self, addresses: &Blocks, runs: impl Iterator<Item = RangeInclusive<u128>>) {
        for run in runs {
            let (Some(first), Some(last)) = (addresses.address(*run.start()), addresses.address(*run.end())) else {
                continue;
            };
            self.push(Family::of(first), number(first)..=number(last));
        }
    }

    fn push(&mut self, family: Family, numbers: RangeInclusive<u128>) {
        let (first, last) = numbers.into_inner();
        self.runs.push(Run { position: self.count, family, first, last });
        self.count = self.count.saturating_add((last - first).saturating_add(1));
    }

    /// The number of addresses; at most `u128::MAX`.
    pub fn count(&self) -> u128 {
        self.count
    }

    /// The address at a position; `None` behind the last one.
    pub fn address(&self, position: u128) -> Option<IpAddr> {
        let run = &self.runs[self.runs.partition_point(|run| run.position <= position).checked_sub(1)?];
        let value = run.first.checked_add(position - run.position)?;
        (value <= run.last).then(|| run.family.address(value))
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (family, value) = (Family::of(address), number(address));
        self.runs.iter().any(|run| run.family == family && run.first <= value && value <= run.last)
    }
}
