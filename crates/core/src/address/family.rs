use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Serialize;

/// An IP family, written as Kubernetes writes it: `IPv4` or `IPv6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Family {
    /// `IPv4`
    #[serde(rename = "IPv4")]
    V4,
    /// `IPv6`
    #[serde(rename = "IPv6")]
    V6,
}

impl Family {
    /// The family of an address.
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

    /// The other one of the two.
    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    /// The number of bits of an address: 32 or 128.
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The address with the number `value`; for IPv4 the lower 32 bits count.
    pub(crate) fn address(self, value: u128) -> IpAddr {
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
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
