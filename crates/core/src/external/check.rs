//! Checks the external addresses that a Service newly claims.

use std::net::IpAddr;

use super::claim::{EXTERNAL_IPS, MAX_EXTERNAL_IPS, claim_fields};
use super::pool::{Claimant, OUTSIDE, Right};
use crate::address::{Family, parse_address};
use crate::annotations::{
    MAX_ADDRESSES, RECORD_ANNOTATION, REQUESTED_ADDRESS_ANNOTATION, TOO_LONG_FOR_ADDRESSES, is_too_long_for_addresses,
    parts,
};
use crate::json::quote;
use crate::lookups::LookupError;
use crate::services::Service;

/// Lists the mistakes in addresses that the Service claims and that other programs assign: addresses of our pools that
/// the Service may not have. Addresses outside of every pool are ignored.
pub(super) fn check_claims(
    claimant: &Claimant<'_>,
    claims: &[(&'static str, IpAddr)],
) -> Result<Vec<String>, LookupError> {
    let mut wrong = Vec::new();
    for (field, address) in claims {
        if let Right::Refused(why) = claimant.right_to(*address)? {
            wrong.push(format!("{}: {address} {why}", field_label(field)));
        }
    }
    Ok(wrong)
}

/// Lists the newly claimed addresses that would not count as held, so that another Service could get them too: at most
/// one for each field.
pub(super) fn check_beyond(claimant: &Claimant<'_>, before: Option<&Service>) -> Vec<String> {
    let had = before.map(claim_fields).unwrap_or_default();
    let mut wrong = Vec::new();
    for field in claim_fields(claimant.service) {
        let in_a_pool = |address: IpAddr| claimant.external.pool_of(address).is_some();
        if !had.contains(&field)
            && let Some(address) = field.beyond(&in_a_pool)
        {
            let most = if field.name == EXTERNAL_IPS { MAX_EXTERNAL_IPS } else { MAX_ADDRESSES };
            wrong.push(format!(
                "{}: {address} is one too many: at most {most} addresses count, in a text of at most {} characters",
                field_label(field.name),
                TOO_LONG_FOR_ADDRESSES - 1
            ));
        }
    }
    wrong
}

/// The name of a field or an annotation in messages.
fn field_label(field: &str) -> String {
    if field.contains('/') { format!("annotation {field}") } else { field.to_owned() }
}

/// Lists the mistakes in the addresses that the Service newly requests from this policy. `families` are those of the
/// Service, empty if they are unknown.
pub(super) fn check_requested(
    claimant: &Claimant<'_>,
    before: Option<&Service>,
    families: &[Family],
) -> Result<Vec<String>, LookupError> {
    let mut wrong = Vec::new();
    for key in [REQUESTED_ADDRESS_ANNOTATION, RECORD_ANNOTATION] {
        let of = |service: &'_ Service| service.annotations.get(key).cloned().unwrap_or_default();
        let (now, old) = (of(claimant.service), before.map(of).unwrap_or_default());
        if is_too_long_for_addresses(&now) {
            // `quote` cuts the value.
            let longest = TOO_LONG_FOR_ADDRESSES - 1;
            if now != old {
                wrong.push(format!("annotation {key}: {} is longer than {longest} characters", quote(&now)));
            }
            continue;
        }
        let mut seen: Vec<Family> = Vec::new();
        for text in parts(&now) {
            let address = parse_address(text);
            let is_duplicate = address.is_some_and(|address| seen.contains(&Family::of(address)));
            seen.extend(address.map(Family::of));
            if parts(&old).any(|other| other == text) {
                continue;
            }
            let why = match address {
                None => Some("is not an IP address".to_owned()),
                Some(_) if is_duplicate => Some("is one too many: a Service has one of each family".to_owned()),
                Some(address) => refused(claimant, address, families)?,
            };
            // A parsed address is short and harmless, so it is not quoted.
            let text = address.map_or_else(|| quote(text), |address| address.to_string());
            wrong.extend(why.map(|why| format!("annotation {key}: {text} {why}")));
        }
    }
    Ok(wrong)
}

fn refused(claimant: &Claimant<'_>, address: IpAddr, families: &[Family]) -> Result<Option<String>, LookupError> {
    let family = Family::of(address);
    if !families.is_empty() && !families.contains(&family) {
        return Ok(Some(format!("is {family}, which is not a family of the Service")));
    }
    Ok(match claimant.right_to(address)? {
        Right::Free(_) => None,
        Right::Refused(why) => Some(why),
        Right::Outside => Some(OUTSIDE.to_owned()),
    })
}
