use std::net::IpAddr;

use super::family::{Family, number};
use super::occupancy::Occupancy;
use super::span::Span;

/// A set of addresses of both families. Memory grows with the number of ranges, not with the number of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    v4: Occupancy,
    v6: Occupancy,
}

impl AddressSet {
    /// Adds an address. One that is in the set already stays.
    pub fn insert(&mut self, address: IpAddr) {
        self.of(address).insert(number(address)..=number(address));
    }

    /// Removes an address. One that is not in the set is ignored.
    pub fn remove(&mut self, address: IpAddr) {
        self.of(address).remove(number(address)..=number(address));
    }

    /// The addresses in ascending order, those of IPv4 first, in as few spans as possible.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        [(Family::V4, &self.v4), (Family::V6, &self.v6)].into_iter().flat_map(|(family, numbers)| {
            let span = move |(first, last): (u128, u128)| Span::new(family.address(first), family.address(last));
            numbers.ranges().map(|range| range.into_inner()).filter_map(span)
        })
    }

    fn of(&mut self, address: IpAddr) -> &mut Occupancy {
        match Family::of(address) {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}
