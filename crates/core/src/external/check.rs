//! May a Service have what it newly claims?

use std::net::IpAddr;

use super::claim::{Place, places};
use super::pool::{Claimant, OUTSIDE, Right};
use crate::address::Family;
use crate::annotations::{
    ASKED_ANNOTATION, RECORD_ANNOTATION, TOO_LONG_FOR_ADDRESSES, address, is_too_long_for_addresses, parts,
};
use crate::cluster::LookupError;
use crate::json::quote;
use crate::service::Service;

/// What is wrong with addresses that the Service claims for others to give: those of our pools that it may
/// not have. What lies outside of every pool is none of our business.
pub(super) fn check_claims(
    claimant: &Claimant<'_>,
    claims: &[(&'static str, IpAddr)],
) -> Result<Vec<String>, LookupError> {
    let mut wrong = Vec::new();
    for (place, address) in claims {
        if let Right::Refused(why) = claimant.right_to(*address)? {
            wrong.push(format!("{}: {address} {why}", words(place)));
        }
    }
    Ok(wrong)
}

/// What is wrong with addresses that the Service newly claims and that would not count as held: another Service
/// could get them too. One is named of each place.
pub(super) fn check_beyond(claimant: &Claimant<'_>, before: Option<&Service>) -> Vec<String> {
    let had = before.map(places).unwrap_or_default();
    let complaint = |place: Place<'_>| {
        let (address, pool) =
            place.beyond().find_map(|address| Some((address, claimant.external.pool_of(address)?)))?;
        Some(format!("{}: {address} of pool {:?} is one too many: {}", words(place.name), pool.name, place.limit()))
    };
    places(claimant.service).into_iter().filter(|place| !had.contains(place)).filter_map(complaint).collect()
}

/// A place of claims as a message names it.
fn words(place: &str) -> String {
    if place.contains('/') { format!("annotation {place}") } else { place.to_owned() }
}

/// What is wrong with the addresses that the Service newly asks us for. `families` are its own, empty where
/// they are not known.
pub(super) fn check_asked(
    claimant: &Claimant<'_>,
    before: Option<&Service>,
    families: &[Family],
) -> Result<Vec<String>, LookupError> {
    let mut wrong = Vec::new();
    for key in [ASKED_ANNOTATION, RECORD_ANNOTATION] {
        let of = |service: &'_ Service| service.annotations.get(key).cloned().unwrap_or_default();
        let (now, old) = (of(claimant.service), before.map(of).unwrap_or_default());
        if is_too_long_for_addresses(&now) {
            // The part that is quoted is short.
            let longest = TOO_LONG_FOR_ADDRESSES - 1;
            let complaint = || format!("annotation {key}: {} is longer than {longest} characters", quote(&now));
            wrong.extend((now != old).then(complaint));
            continue;
        }
        let mut seen: Vec<Family> = Vec::new();
        for text in parts(&now) {
            let address = address(text);
            let is_twin = address.is_some_and(|address| seen.contains(&Family::of(address)));
            seen.extend(address.map(Family::of));
            if parts(&old).any(|other| other == text) {
                continue;
            }
            let why = match address {
                None => Some("is no address".to_owned()),
                Some(_) if is_twin => Some("is one too many: a Service has one of each family".to_owned()),
                Some(address) => refused(claimant, address, families)?,
            };
            // What is an address is short, and harmless.
            let text = address.map_or_else(|| quote(text), |address| address.to_string());
            wrong.extend(why.map(|why| format!("annotation {key}: {text} {why}")));
        }
    }
    Ok(wrong)
}

fn refused(claimant: &Claimant<'_>, address: IpAddr, families: &[Family]) -> Result<Option<String>, LookupError> {
    let family = Family::of(address);
    if !families.is_empty() && !families.contains(&family) {
        return Ok(Some(format!("is of {family}: the Service is not")));
    }
    Ok(match claimant.right_to(address)? {
        Right::Free(_) => None,
        Right::Refused(why) => Some(why),
        Right::Outside => Some(OUTSIDE.to_owned()),
    })
}
