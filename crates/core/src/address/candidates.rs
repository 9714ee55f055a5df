use std::hash::Hasher;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde::Serialize;
use siphasher::sip128::{Hasher128, SipHasher24};

use super::blocks::{Blocks, Occupancy, static_band_len};
use super::span::{Family, Span, number};

/// One CIDR of a pool, and the addresses of it that are never handed out.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    pub cidr: IpNet,
    /// How many addresses, counted from the network address, are kept for addresses set by hand.
    pub reserved: u64,
    /// Ranges and addresses that are never handed out. They may be of another family or outside of the CIDR.
    pub exclude: &'a [IpNet],
    /// Addresses that are reserved for one Service each. They may be of another family or outside of the CIDR.
    pub for_services: &'a [IpAddr],
}

impl Range<'_> {
    /// The parts of the range that are not handed out to every Service, in ascending order and as few as possible.
    /// [`Candidates::new`] leaves out the same addresses. An address that is withheld for several reasons counts as
    /// reserved for a Service, otherwise as excluded.
    pub fn withheld_spans(&self) -> Vec<WithheldSpan> {
        let addresses = Blocks::addresses(self.cidr);
        let mut for_services = Occupancy::default();
        for &address in self.for_services {
            for_services.extend(addresses.indices(address.into()));
        }
        let excluded = self.excluded(&addresses);
        let mut others = excluded.clone();
        others.extend(for_services.ranges());
        let last_reserved = self.reserved.checked_sub(1).map(|last| u128::from(last).min(addresses.last_index()));
        let by_hand = last_reserved.into_iter().flat_map(|last| others.gaps(0..=last));
        let parts = for_services
            .ranges()
            .map(|part| (part, Withholding::ForService))
            .chain(excluded.ranges().flat_map(|part| for_services.gaps(part)).map(|part| (part, Withholding::Excluded)))
            .chain(by_hand.map(|part| (part, Withholding::ByHand)));
        let span = |(part, why): (RangeInclusive<u128>, Withholding)| {
            let span = Span::new(addresses.address(*part.start())?, addresses.address(*part.end())?)?;
            Some(WithheldSpan { span, why })
        };
        let mut spans: Vec<WithheldSpan> = parts.filter_map(span).collect();
        spans.sort_unstable_by_key(|withheld| withheld.span.first());
        spans
    }

    /// The indices that no Service gets: those kept for addresses set by hand, and those of [`Self::excluded`].
    fn withheld(&self, addresses: &Blocks) -> Occupancy {
        let mut withheld = self.excluded(addresses);
        if let Some(last) = self.reserved.checked_sub(1) {
            withheld.insert(0..=u128::from(last));
        }
        withheld
    }

    /// The indices that no Service may have: the network address, the IPv4 broadcast address, and the excluded
    /// addresses. The all-ones address of IPv6 is usable, as in Kubernetes.
    fn excluded(&self, addresses: &Blocks) -> Occupancy {
        let mut excluded = Occupancy::default();
        excluded.insert(0..=0);
        if Family::of(self.cidr.addr()) == Family::V4 {
            excluded.insert(addresses.last_index()..=addresses.last_index());
        }
        for &range in self.exclude {
            excluded.extend(addresses.indices(range));
        }
        excluded
    }
}

/// Consecutive addresses of a range that are not handed out to every Service, for the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithheldSpan {
    pub span: Span,
    pub why: Withholding,
}

/// Why an address is not handed out to every Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Withholding {
    /// It is kept for addresses set by hand.
    #[serde(rename = "reserved")]
    ByHand,
    /// No Service may have it: it is excluded, or the network or broadcast address.
    Excluded,
    /// It is reserved for one Service. Neighbouring addresses may be reserved for different Services.
    ForService,
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
    ///
    /// Addresses reserved for Services leave gaps among the positions, so a reservation does not change the order of
    /// the other addresses.
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
            for &address in range.for_services {
                dynamic.skip(address);
                fixed.skip(address);
            }
        }
        Self { bands: if bands { vec![dynamic, fixed] } else { vec![dynamic] } }
    }

    /// The host addresses of `family` in `ranges`, without `exclude`, in one band.
    pub(crate) fn of_spans(ranges: &[Span], exclude: &[Span], family: Family) -> Self {
        let withheld = numbers_of(exclude, family);
        let mut band = Band::default();
        for range in ranges.iter().filter(|range| range.family() == family) {
            withheld.gaps(range.host_numbers()).for_each(|run| band.push(family, run));
        }
        Self { bands: vec![band] }
    }

    /// The parts of `range` that `Self::of_spans` withholds, in ascending order and as few as possible.
    pub fn withheld_spans(range: &Span, exclude: &[Span]) -> Vec<Span> {
        let family = range.family();
        let mut usable = Occupancy::default();
        numbers_of(exclude, family).gaps(range.host_numbers()).for_each(|run| usable.insert(run));
        let span = |run: RangeInclusive<u128>| Span::new(family.address(*run.start()), family.address(*run.end()));
        usable.gaps(range.numbers()).filter_map(span).collect()
    }

    /// The number of addresses that can be handed out; at most `u128::MAX`.
    pub fn count(&self) -> u128 {
        self.bands.iter().fold(0, |sum, band| sum.saturating_add(band.count - band.skipped.len()))
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.bands.iter().any(|band| band.position(address).is_some())
    }
}

fn numbers_of(spans: &[Span], family: Family) -> Occupancy {
    let mut numbers = Occupancy::default();
    spans.iter().filter(|span| span.family() == family).for_each(|span| numbers.insert(span.numbers()));
    numbers
}

/// Addresses with positions from 0: range after range, ascending in each range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Band {
    runs: Vec<Run>,
    count: u128,
    /// The positions whose addresses are reserved for Services.
    skipped: Occupancy,
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

    /// Takes an address out, but not its position.
    fn skip(&mut self, address: IpAddr) {
        self.skipped.extend(self.position(address).map(|position| position..=position));
    }

    /// The number of positions; at most `u128::MAX`.
    pub fn count(&self) -> u128 {
        self.count
    }

    /// The address at a position; `None` behind the last one, and if the address is reserved for a Service.
    pub fn address(&self, position: u128) -> Option<IpAddr> {
        if self.skipped.contains(position) {
            return None;
        }
        let run = &self.runs[self.runs.partition_point(|run| run.position <= position).checked_sub(1)?];
        let value = run.first.checked_add(position - run.position)?;
        (value <= run.last).then(|| run.family.address(value))
    }

    /// The addresses in the order of their positions, also those reserved for Services.
    pub fn spans(&self) -> Vec<Span> {
        let span = |run: &Run| Span::new(run.family.address(run.first), run.family.address(run.last));
        self.runs.iter().filter_map(span).collect()
    }

    /// The position of an address; `None` if the band does not contain it.
    pub fn position(&self, address: IpAddr) -> Option<u128> {
        let (family, value) = (Family::of(address), number(address));
        let run = self.runs.iter().find(|run| run.family == family && run.first <= value && value <= run.last)?;
        Some(run.position.saturating_add(value - run.first)).filter(|position| !self.skipped.contains(*position))
    }
}

/// The order in which the addresses of a pool are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// From a hashed start in hashed steps. The same key always gives the same order. Different keys rarely collide at
    /// the first address, and rarely again at the next one.
    #[default]
    Spread,
    Lowest,
}

impl Order {
    /// The order of `count` positions (from 0); each of them occurs once.
    ///
    /// `Spread` computes the SipHash-2-4 of `key` with 128 bits of output and an all-zero key. The first 64 bits,
    /// modulo `count`, are the first position. The other 64 bits, modulo `count - 1`, plus one, are the step, which is
    /// increased by one until it has no divisor in common with `count`. This is part of the contract: with any change,
    /// Services would get other addresses when they are created again.
    pub fn walk(self, key: &str, count: u128) -> Walk {
        match self {
            Self::Spread if count > 1 => {
                let mut hasher = SipHasher24::new();
                hasher.write(key.as_bytes());
                let hash = hasher.finish128();
                let mut step = 1 + u128::from(hash.h2) % (count - 1);
                while gcd(step, count) != 1 {
                    // Ends at `count - 1` at the latest, which has no divisor in common with `count`.
                    step += 1;
                }
                Walk { next: u128::from(hash.h1) % count, step, count, left: count }
            }
            Self::Spread | Self::Lowest => Walk { next: 0, step: 1, count, left: count },
        }
    }
}

/// An iterator over the positions below a count, each exactly once; see [`Order::walk`].
#[derive(Clone, Debug)]
pub struct Walk {
    next: u128,
    step: u128,
    count: u128,
    left: u128,
}

impl Walk {
    /// A function that tells after how many other positions a position comes; its result is `None` for positions that the
    /// walk has passed. `None` if the walk is not ascending and has more than 2^62 positions.
    pub fn turns(&self) -> Option<impl Fn(u128) -> Option<u128>> {
        let Self { next, step, count, left } = *self;
        let inverse = if step == 1 { 1 } else { inverse(step, count)? };
        Some(move |position: u128| {
            let ahead = position.checked_sub(next).or_else(|| (count - next).checked_add(position))?;
            Some(ahead * inverse % count).filter(|turn| *turn < left)
        })
    }
}

impl Iterator for Walk {
    type Item = u128;

    fn next(&mut self) -> Option<u128> {
        self.left = self.left.checked_sub(1)?;
        let position = self.next;
        // (position + step) mod count, computed without an intermediate result that could overflow.
        let to_wrap = self.count - self.step.min(self.count);
        self.next = if position >= to_wrap { position - to_wrap } else { position + self.step };
        Some(position)
    }
}

/// The number that gives 1 if it is multiplied by `step` modulo `count`, which have no divisor in common; `None` if `count`
/// is larger than 2^62.
fn inverse(step: u128, count: u128) -> Option<u128> {
    let count = i64::try_from(count).ok().filter(|count| *count <= 1 << 62)?;
    let (mut a, mut b, mut of_a, mut of_b) = (count, i64::try_from(step).ok()?, 0, 1);
    while b != 0 {
        let quotient = a / b;
        (a, b) = (b, a - quotient * b);
        (of_a, of_b) = (of_b, of_a - quotient * of_b);
    }
    u128::try_from(of_a.rem_euclid(count)).ok()
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
