//! May a Service have what it newly claims?

use std::net::IpAddr;

use super::claim::{ASKED_ANNOTATION, RECORD_ANNOTATION, parse, texts};
use super::pool::{Claimant, OUTSIDE, Right};
use crate::address::Family;
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
            let what = if place.contains('/') { "annotation " } else { "" };
            wrong.push(format!("{what}{place}: {address} {why}"));
        }
    }
    Ok(wrong)
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
        let mut seen: Vec<Family> = Vec::new();
        for text in texts(&now) {
            let address = parse(text);
            let is_twin = address.is_some_and(|address| seen.contains(&Family::of(address)));
            seen.extend(address.map(Family::of));
            if texts(&old).any(|other| other == text) {
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
