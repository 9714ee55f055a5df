use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::family::{Family, number};

/// The addresses of one family from a first to a last one: a CIDR, any other range, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    first: IpAddr,
    last: IpAddr,
    /// The CIDR, if the span was written as one.
    cidr: Option<IpNet>,
}

impl Span {
    /// The addresses from `first` to `last`, both included; `None` if `last` is before `first` or of the other family.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        let is_range = Family::of(first) == Family::of(last) && first <= last;
        is_range.then_some(Self { first, last, cidr: None })
    }

    pub fn first(&self) -> IpAddr {
        self.first
    }

    pub fn last(&self) -> IpAddr {
        self.last
    }

    pub fn family(&self) -> Family {
        Family::of(self.first)
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        Family::of(address) == self.family() && self.first <= address && address <= self.last
    }

    pub fn meets(&self, other: &Self) -> bool {
        self.family() == other.family() && self.first <= other.last && other.first <= self.last
    }

    /// The number of addresses; at most `u128::MAX`.
    pub fn count(&self) -> u128 {
        let (first, last) = self.numbers().into_inner();
        (last - first).saturating_add(1)
    }

    /// The addresses as numbers: those of IPv4 have 32 bits, those of IPv6 128.
    pub fn numbers(&self) -> RangeInclusive<u128> {
        number(self.first)..=number(self.last)
    }

    /// The numbers of the addresses that a host can have: all of a range. A CIDR of more than two addresses loses its
    /// network address, and for IPv4 its broadcast address.
    pub(super) fn host_numbers(&self) -> RangeInclusive<u128> {
        let (mut first, mut last) = self.numbers().into_inner();
        if self.cidr.is_some() && last - first > 1 {
            first += 1;
            last -= u128::from(self.family() == Family::V4);
        }
        first..=last
    }
}

impl From<IpNet> for Span {
    fn from(cidr: IpNet) -> Self {
        Self { first: cidr.network(), last: cidr.broadcast(), cidr: Some(cidr) }
    }
}

impl From<IpAddr> for Span {
    fn from(address: IpAddr) -> Self {
        Self { first: address, last: address, cidr: None }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cidr {
            Some(cidr) => cidr.fmt(f),
            None if self.first == self.last => self.first.fmt(f),
            None => write!(f, "{}-{}", self.first, self.last),
        }
    }
}
