//! The expressions of the fence read the same addresses as the parser of the core, whatever a text contains.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::Method;
use clusterip_core::annotations::{
    FOREIGN_ANNOTATIONS, RECORD_ANNOTATION, REQUESTED_ADDRESS_ANNOTATION, claimed_addresses,
};
use clusterip_core::external::claim::{ClaimField, LOAD_BALANCER_IP};
use kube::Client;
use serde_json::{Value, json};

use super::support::{
    BY_POLICY, UNFENCED, create, dry_run, fenced_pool, send, tenant, unfenced_service, until_refused,
};
use crate::chaos::Random;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::move_helpers::path;
use crate::support::webhook_cluster::{annotated, within};

const FENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/fence");

/// A fenced pool. Its name in messages is `kind "fuzz"`.
struct Fenced {
    kind: &'static str,
    cidrs: [&'static str; 2],
    inside: [&'static str; 6],
}

const FENCED: [Fenced; 2] = [
    Fenced {
        kind: "ServicePool",
        cidrs: ["172.21.8.0/24", "fd00:21::800/120"],
        inside: ["172.21.8.20", "172.21.8.0", "172.21.8.255", "fd00:21::807", "fd00:21::8ff", "172.21.8.7"],
    },
    Fenced {
        kind: "ExternalPool",
        cidrs: ["198.18.8.10-198.18.9.20", "fd00:8::/64"],
        inside: ["198.18.8.10", "198.18.9.20", "198.18.8.255", "fd00:8::1", "fd00:8::ffff:1.2.3.4", "198.18.9.7"],
    },
];

/// Addresses next to the pools, and texts that are no addresses.
const OTHER: [&str; 16] = [
    "172.21.7.255",
    "172.21.9.0",
    "198.18.8.9",
    "198.18.9.21",
    "fd00:9::1",
    "203.0.113.7",
    "auto",
    "lb.example.com",
    "10.0.9.0/24",
    "203.0.113.7-203.0.113.9",
    "fe80::1%eth0",
    "fd00:9::1%a\nb",
    "3221225985",
    "*",
    "",
    "١٧٢.21.8.20",
];
/// White space by the definition of Unicode, and characters that only look like it.
const BLANKS: [&str; 12] =
    [" ", "\t", "\n", "\r", "\u{b}", "\u{c}", "\u{85}", "\u{a0}", "\u{2003}", "\u{3000}", "\u{200b}", "\u{feff}"];

fn below(random: &mut Random, limit: usize) -> usize {
    random.below(limit as u64) as usize
}

/// A text that may be an address.
fn part(random: &mut Random, inside: &[&str]) -> String {
    let pick = |random: &mut Random, from: &[&str]| from[below(random, from.len())].to_owned();
    let mut text = if below(random, 2) == 0 { pick(random, inside) } else { pick(random, &OTHER) };
    for _ in 0..below(random, 3) {
        // The text is changed at a character, or at one of its ends.
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let at = match below(random, 4) {
            0 => 0,
            1 => text.len(),
            _ => ends[below(random, ends.len())],
        };
        match below(random, 10) {
            0..4 => text.insert_str(at, &pick(random, &BLANKS)),
            4 => text.insert(at, '0'),
            5 => text = text.to_uppercase(),
            6 if text.parse::<std::net::Ipv4Addr>().is_ok() => text = format!("::ffff:{text}"),
            7 => text.insert_str(at, &pick(random, &[".", ":", "::", "%", "/32", "-", "\"", "'", "\\", "0x", "é"])),
            8 if at < text.len() => drop(text.remove(at)),
            _ => {}
        }
    }
    text
}

fn text(random: &mut Random, inside: &[&str]) -> String {
    let parts: Vec<String> = (0..below(random, 5)).map(|_| part(random, inside)).collect();
    parts.join(",")
}

/// A variant of a text: white space is removed or inserted, or a part is added.
fn variant(random: &mut Random, text: &str, inside: &[&str]) -> String {
    let mut parts: Vec<String> = text.split(',').map(str::to_owned).collect();
    let at = below(random, parts.len());
    match below(random, 6) {
        0..3 => parts[at] = parts[at].chars().filter(|letter| !letter.is_whitespace()).collect(),
        3 => parts[at].insert_str(0, BLANKS[below(random, BLANKS.len())]),
        4 => parts.push(part(random, inside)),
        _ => parts.reverse(),
    }
    parts.join(",")
}

/// The fields of a Service with texts that its author chooses: the name in messages, and the text.
type Fields = Vec<(String, String)>;

fn fields(mut text: impl FnMut(&str) -> String) -> Fields {
    let annotations = [REQUESTED_ADDRESS_ANNOTATION, RECORD_ANNOTATION].into_iter().chain(FOREIGN_ANNOTATIONS);
    let mut names: Vec<String> = annotations.map(|key| format!("annotation {key}")).collect();
    names.push(LOAD_BALANCER_IP.to_owned());
    names.into_iter().map(|name| (name.clone(), text(&name))).collect()
}

fn with_fields(name: &str, fields: &Fields) -> Value {
    let mut service =
        annotated(name, json!({}), json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/no"}));
    service["spec"]["allocateLoadBalancerNodePorts"] = false.into();
    for (name, text) in fields {
        match name.strip_prefix("annotation ") {
            Some(key) => service["metadata"]["annotations"][key] = text.as_str().into(),
            None => service["spec"]["loadBalancerIP"] = text.as_str().into(),
        }
    }
    service
}

/// Whether a part of a field may be an address for another program although the expressions can't read the part: it has
/// the form of an address, or the core says that kube-vip looks it up.
fn is_unreadable(field: &str, part: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|digit| digit.is_ascii_digit());
    let before_zone = part.split('%').next().unwrap_or_default();
    let known = [LOAD_BALANCER_IP].into_iter().chain(FOREIGN_ANNOTATIONS);
    let texts = [part.to_owned()];
    let claims = known.filter(|name| field.strip_prefix("annotation ").unwrap_or(field) == *name);
    claims.map(|name| ClaimField { name, texts: &texts }).any(|claim| claim.new_name(None).is_some())
        || part.split('.').count() == 4 && part.split('.').all(digits)
        || before_zone.contains(':') && before_zone.chars().all(|c| c.is_ascii_hexdigit() || ".:".contains(c))
}

/// Compares the parts that the fence refuses, or `None` if it refuses nothing, with those that the parser of the core
/// reads as addresses of the pool or can't compare with it. `before` are the fields before the request.
fn compare(fenced: &Fenced, before: &Fields, after: &Fields, refusal: Option<&str>) -> Result<(), String> {
    let in_pool = |address: IpAddr| match fenced.kind {
        "ServicePool" => fenced.cidrs.iter().any(|range| within(address, range)),
        _ => {
            within(address, fenced.cidrs[1])
                || matches!(address, IpAddr::V4(address)
            if ([198, 18, 8, 10]..=[198, 18, 9, 20]).contains(&address.octets()))
        }
    };
    let mut must = BTreeSet::new();
    for (nth, (field, text)) in after.iter().enumerate() {
        let had: Vec<&str> =
            before.get(nth).map(|(_, text)| text.split(',').map(str::trim).collect()).unwrap_or_default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty() && !had.contains(part)) {
            let is_readable = part.parse::<IpAddr>().is_ok_and(|address| address == address.to_canonical());
            let is_in_pool = claimed_addresses(part).into_iter().any(in_pool);
            if is_in_pool || !is_readable && is_unreadable(field, part) {
                must.insert(format!("{field}: {part}"));
            }
        }
    }
    let Some(refusal) = refusal else {
        return if must.is_empty() { Ok(()) } else { Err(format!("not refused: {must:?}")) };
    };
    if must.is_empty() {
        return Err(format!("refused without a reason: {refusal}"));
    }
    // A long list, or one with line breaks, is not in the message.
    let Some((_, lines)) = refusal.split_once("denied request: ") else { return Err(refusal.to_owned()) };
    if lines.contains(" and others ") || lines.starts_with("an address lies in") {
        return Ok(());
    }
    let is_named = |line: &String| line.split('\n').all(|piece| lines.contains(piece));
    let missing: Vec<_> = must.iter().filter(|line| !is_named(line)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} are not in: {refusal}")) }
}

/// The refusal by the fence; `None` if the request is allowed.
///
/// # Errors
/// Another error of the API server.
fn refusal(result: Result<Value, String>) -> Result<Option<String>, String> {
    match result {
        Ok(_) => Ok(None),
        Err(message) if message.contains(BY_POLICY) => Ok(Some(message)),
        Err(message) => Err(message),
    }
}

/// Sends creates and updates of random texts to the API server, in dry runs.
async fn compare_random(
    client: &Client,
    namespace: &str,
    fenced: &Fenced,
    stored: &[(String, Fields)],
    random: &mut Random,
) {
    let (mut refused, mut allowed, mut wrong) = (0, 0, Vec::new());
    let mut check = |before: &Fields, after: &Fields, result| {
        let refusal = refusal(result).unwrap_or_else(|error| panic!("{after:?}: {error}"));
        *if refusal.is_some() { &mut refused } else { &mut allowed } += 1;
        if let Err(why) = compare(fenced, before, after, refusal.as_deref()) {
            wrong.push(format!("{why}\n  before {before:?}\n  after {after:?}"));
        }
    };
    for nth in 0..160 {
        // Most requests have one text: if another text is refused as well, this one proves nothing.
        let only = below(random, 8);
        let mut seen = 0;
        let after = fields(|_| {
            seen += 1;
            if nth % 4 == 0 || seen == only + 1 { text(random, &fenced.inside) } else { String::new() }
        });
        let mut service = with_fields("web", &after);
        service["spec"]["clusterIP"] = UNFENCED.into();
        check(&Vec::new(), &after, dry_run(client, namespace, &service).await);
    }
    for (name, before) in stored {
        for _ in 0..8 {
            let mut after = before.clone();
            let at = below(random, after.len());
            after[at].1 = variant(random, &before[at].1, &fenced.inside);
            let path = format!("{}?dryRun=All", path(namespace, name));
            check(before, &after, send(client, Method::PATCH, &path, &with_fields(name, &after)).await);
        }
    }
    assert!(wrong.is_empty(), "{} wrong, such as {}", wrong.len(), wrong[0]);
    assert!(refused > 50 && allowed > 50, "{refused} refused, {allowed} allowed");
}

#[tokio::test]
async fn random_texts_are_read_as_by_the_parser_of_the_core() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::dual_stack() });
    plane.install_pools().await;
    let (namespace, client) = tenant(&plane, "mallory").await;
    for fenced in &FENCED {
        let seed = std::process::id().into();
        eprintln!("{}: seed {seed}", fenced.kind);
        let mut random = Random(seed);
        let mut stored = Vec::new();
        for nth in 0..20 {
            let name = format!("{}-{nth}", fenced.kind.to_lowercase());
            let before = fields(|_| text(&mut random, &fenced.inside));
            let mut service = with_fields(&name, &before);
            service["spec"]["clusterIP"] =
                format!("172.21.0.{}", 20 + 40 * usize::from(fenced.kind == "ServicePool") + nth).into();
            create(&client, &namespace, &service).await.unwrap();
            stored.push((name, before));
        }
        plane.apply(&fenced_pool(fenced.kind, "fuzz", &fenced.cidrs, "another-team").to_string()).await;
        plane.kubectl(&["apply", "-k", FENCE]).await.ok();
        until_refused(&client, &namespace, &unfenced_service("web", json!({"externalIPs": [fenced.inside[0]]}))).await;
        compare_random(&client, &namespace, fenced, &stored, &mut random).await;
        plane.kubectl(&["delete", "-k", FENCE]).await.ok();
        plane.kubectl(&["delete", &fenced.kind.to_lowercase(), "fuzz"]).await.ok();
    }
}

/// A policy can't know whether its binding refuses or warns, so the condition is there twice.
#[test]
fn warnings_have_the_condition_of_refusals() {
    let text = std::fs::read_to_string(format!("{FENCE}/fence.yaml")).unwrap();
    let condition = |anchor: &str| {
        let (_, after) = text.split_once(&format!("matchConditions: &{anchor}\n")).unwrap();
        after.split_once("    variables:").unwrap().0.to_owned()
    };
    let refusals = condition("denies").replace("pool-denies", "pool-warns").replace("== 'Deny'", "== 'Warn'");
    assert_eq!(condition("warns"), refusals);
}
