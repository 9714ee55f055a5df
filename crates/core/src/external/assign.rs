//! Assigns external addresses to a Service.

use std::net::IpAddr;

use super::pool::{Claimant, OUTSIDE, Right};
use crate::address::{Family, Order};
use crate::annotations::{RECORD_ANNOTATION, REQUESTED_ADDRESS_ANNOTATION, in_record, recorded_addresses};
use crate::decision::{External, RecordChange};
use crate::lookups::LookupError;
use crate::services::{FamilyPolicy, Service};
use crate::settings::ExternalPool;

/// Assigns one address of each of the Service's families: an address that it requests or already has, otherwise a free
/// one of its pool, tried in an order that is derived from `key`. `before` is the old Service, if it already got its
/// external addresses from this policy.
pub(super) fn assign(
    claimant: &Claimant<'_>,
    before: Option<&Service>,
    families: &[Family],
    key: &str,
    warnings: &mut Vec<String>,
) -> Result<External, LookupError> {
    let requested = requested_addresses(claimant.service, before);
    let mut found: Vec<(IpAddr, &ExternalPool)> = Vec::new();
    for address in requested {
        let family = Family::of(address);
        let is_wanted = families.is_empty() || families.contains(&family);
        if !is_wanted || found.iter().any(|(other, _)| Family::of(*other) == family) {
            continue;
        }
        let why = match claimant.right_to(address)? {
            Right::Free(pool) => {
                found.push((address, pool));
                continue;
            }
            Right::Refused(why) => why,
            Right::Outside => OUTSIDE.to_owned(),
        };
        warnings.push(format!("{address} {why}: the Service can't have it"));
    }
    let pool = match found.first() {
        Some((_, pool)) => *pool,
        None => {
            let any = [Family::V4, Family::V6];
            let wanted = if families.is_empty() { &any } else { families };
            let Some(pool) = claimant.own_pool(wanted)? else { return Ok(no_matching_pool(claimant, families)) };
            pool
        }
    };
    let families = families_to_assign(families, &found, pool, claimant.service);
    let mut given = Vec::new();
    for family in families {
        let address = match found.iter().find(|(address, _)| Family::of(*address) == family) {
            Some((address, _)) => Some(*address),
            None if pool.has(family) => pick(claimant, pool, family, key, warnings)?,
            None => None,
        };
        given.extend(address);
    }
    Ok(recorded(claimant, pool, given))
}

/// The addresses that the Service requests or already has, the most important first.
fn requested_addresses(service: &Service, before: Option<&Service>) -> Vec<IpAddr> {
    let mut requested = Vec::new();
    let mut add = |text: Option<&String>| {
        for address in text.map(|text| recorded_addresses(text)).unwrap_or_default() {
            if !requested.contains(&address) {
                requested.push(address);
            }
        }
    };
    let field = service.load_balancer_ip.as_ref();
    add(service.annotations.get(REQUESTED_ADDRESS_ANNOTATION));
    add(field.filter(|_| before.and_then(|before| before.load_balancer_ip.as_ref()) != field));
    add(service.annotations.get(RECORD_ANNOTATION));
    // A manifest that replaces the Service without our annotation is not meant to drop its address.
    add(before.and_then(|before| before.annotations.get(RECORD_ANNOTATION)));
    add(field);
    requested
}

/// The families in which addresses are assigned. If the Service's families are unknown, they are derived from the found
/// addresses or from the pool.
fn families_to_assign(
    families: &[Family],
    found: &[(IpAddr, &ExternalPool)],
    pool: &ExternalPool,
    service: &Service,
) -> Vec<Family> {
    if !families.is_empty() {
        return families.to_vec();
    }
    let mut guessed: Vec<Family> = found.iter().map(|(address, _)| Family::of(*address)).collect();
    if guessed.is_empty() {
        guessed.push(if pool.has(Family::V4) { Family::V4 } else { Family::V6 });
    }
    if service.family_policy == FamilyPolicy::SingleStack {
        guessed.truncate(1);
    }
    guessed
}

/// The first address of the pool, in the Service's own order, that no other Service has. If all are taken, adds a
/// warning.
fn pick(
    claimant: &Claimant<'_>,
    pool: &ExternalPool,
    family: Family,
    key: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<IpAddr>, LookupError> {
    let candidates = pool.candidates(family);
    for band in &candidates.bands {
        for address in Order::Spread.walk(key, band.count()).filter_map(|position| band.address(position)) {
            if claimant.holders.other(address)?.is_none() {
                return Ok(Some(address));
            }
        }
    }
    let ranges = pool.ranges.iter().filter(|range| range.family() == family).map(ToString::to_string);
    let (ranges, count) = (ranges.collect::<Vec<_>>().join(", "), candidates.count());
    warnings.push(format!(
        "pool {:?} ({ranges}) is full: all {count} external addresses are used; the Service waits for one",
        pool.name
    ));
    Ok(None)
}

/// The outcome if no pool matches this Service.
fn no_matching_pool(claimant: &Claimant<'_>, families: &[Family]) -> External {
    let names: Vec<String> = families.iter().map(ToString::to_string).collect();
    let of = if names.is_empty() { String::new() } else { format!(" of {}", names.join(" or ")) };
    let reason = format!("no pool of external addresses{of} matches this Service");
    let has_record = claimant.service.annotations.contains_key(RECORD_ANNOTATION);
    let outcome = if has_record { RecordChange::Removed } else { RecordChange::Unchanged };
    External { outcome, pool: None, addresses: Vec::new(), reason: Some(reason) }
}

/// The outcome if the Service gets `given`.
fn recorded(claimant: &Claimant<'_>, pool: &ExternalPool, given: Vec<IpAddr>) -> External {
    let record = claimant.service.annotations.get(RECORD_ANNOTATION);
    let pool_name = Some(pool.name.clone());
    if given.is_empty() {
        let outcome = if record.is_some() { RecordChange::Removed } else { RecordChange::Unchanged };
        let reason = Some(format!("no address of pool {:?} is free", pool.name));
        return External { outcome, pool: pool_name, addresses: given, reason };
    }
    let outcome = if record == Some(&in_record(&given)) { RecordChange::Unchanged } else { RecordChange::Recorded };
    let reason = (outcome == RecordChange::Unchanged).then(|| "already recorded".to_owned());
    External { outcome, pool: pool_name, addresses: given, reason }
}
