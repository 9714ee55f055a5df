use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde::Serialize;

/// An IP family, written as Kubernetes writes it: `IPv4` or `IPv6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Family {
    #[serde(rename = "IPv4")]
    V4,
    #[serde(rename = "IPv6")]
    V6,
}

impl Family {
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Parses `IPv4` or `IPv6`. Case matters: the API server refuses any other spelling.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "IPv4" => Some(Self::V4),
            "IPv6" => Some(Self::V6),
            _ => None,
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The address with the number `value`; for IPv4 the lower 32 bits count.
    pub fn address(self, value: u128) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::from_bits(value as u32)),
            Self::V6 => IpAddr::V6(Ipv6Addr::from_bits(value)),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The address as a number, the inverse of `Family::address`.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Parses an address as any program that acts on it might: Kubernetes ignores leading zeros of octets and of groups,
/// and an IPv4-mapped IPv6 address is that IPv4 address. Before Kubernetes 1.36, the API server accepts and stores
/// these forms in `spec.clusterIP`. A stricter parser would let a Service take an address of a pool in a form that this
/// policy does not recognise.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let mut plain = String::with_capacity(text.len());
    let mut at_start = true;
    for (index, digit) in text.char_indices() {
        let is_leading =
            at_start && digit == '0' && text[index + 1..].starts_with(|next: char| next.is_ascii_hexdigit());
        if !is_leading {
            at_start = matches!(digit, '.' | ':');
            plain.push(digit);
        }
    }
    Some(plain.parse::<IpAddr>().ok()?.to_canonical())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_ignored_and_mapped_addresses_are_ipv4() {
        let rows = [
            ("172.21.1.77", Some("172.21.1.77")),
            ("172.021.001.0077", Some("172.21.1.77")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("000.00.0.00", Some("0.0.0.0")),
            ("::ffff:172.21.1.77", Some("172.21.1.77")),
            ("::0ffff:172.21.1.77", Some("172.21.1.77")),
            ("::0FFFF:172.021.001.077", Some("172.21.1.77")),
            ("0:0:0:0:0:00ffff:ac15:14d", Some("172.21.1.77")),
            ("fd00:21::00077", Some("fd00:21::77")),
            ("0fd00:00021:0000:0::77", Some("fd00:21::77")),
            ("::", Some("::")),
            ("::1", Some("::1")),
            ("1::", Some("1::")),
            ("::0000001", Some("::1")),
            ("", None),
            ("0", None),
            ("None", None),
            ("172.21.1", None),
            ("172.21..77", None),
            ("172.21.1.256", None),
            ("172.21.1.0x7", None),
            ("172.21.1.77 ", None),
            ("fd00::10000", None),
            ("fd00:::1", None),
            ("fe80::1%eth0", None),
            ("１72.21.1.77", None),
        ];
        for (text, expected) in rows {
            let expected = expected.and_then(|expected| expected.parse().ok());
            assert_eq!(parse_address(text), expected, "{text:?}");
        }
    }
}
