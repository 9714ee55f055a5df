//! The settings about external addresses: reads `external`, and checks its pools against each other and against the
//! ranges of Services and Nodes.

use std::net::IpAddr;

use super::pools::{self, Common, Kind, PoolPaths};
use super::reader::{Reader, is_label_key};
use super::{AdmissionScope, Mistake, Settings};
use crate::address::{Candidates, Family, Span};
use crate::json::{Located, quote};
use crate::label_selector::LabelSelector;
use crate::services::Service;

/// `external`: which Service may have which external addresses. Without pools, external addresses are left unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalSettings {
    /// `external.pools`, in the order in which they are tried.
    pub pools: Vec<ExternalPool>,
    /// `external.loadBalancerClass`: Services of type LoadBalancer with this class get an address.
    pub load_balancer_class: String,
    /// `external.default`: whether Services of type LoadBalancer without a class get an address too.
    pub default: bool,
}

/// A pool of external addresses, the Services it is for, and the nodes that may hold its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalPool {
    /// A DNS label, unique among the external pools.
    pub name: String,
    /// `cidrs`: CIDRs and ranges. They overlap neither each other nor any other range of the settings.
    pub ranges: Vec<Span>,
    /// Ranges and addresses that no Service may have.
    pub exclude: Vec<Span>,
    /// `match`: the Services that the pool is for.
    pub scope: AdmissionScope,
    /// Selects the nodes that may hold addresses of the pool.
    pub nodes: LabelSelector,
}

impl Default for ExternalSettings {
    fn default() -> Self {
        Self { pools: Vec::new(), load_balancer_class: "clusterip-policy/external".to_owned(), default: false }
    }
}

impl ExternalSettings {
    /// Whether a Service gets its external addresses from this policy: there are pools, the type is `LoadBalancer`, and
    /// the class is [`Self::load_balancer_class`]. With `external.default`, Services without a class count too.
    ///
    /// The rule is that of Kubernetes: `spec.loadBalancerClass` selects one implementation, and one of them may be the
    /// default for Services without a class.
    pub fn is_ours(&self, service: &Service) -> bool {
        service.load_balancer && self.is_our_class(service.load_balancer_class.as_deref())
    }

    /// Whether a Service of type `LoadBalancer` with this class counts in [`Self::is_ours`].
    pub fn is_our_class(&self, class: Option<&str>) -> bool {
        class.map_or(self.default, |class| *class == self.load_balancer_class) && !self.pools.is_empty()
    }

    /// The pool with a range that contains `address`. Excluded addresses count too.
    pub fn pool_of(&self, address: IpAddr) -> Option<&ExternalPool> {
        self.pools.iter().find(|pool| pool.contains(address))
    }
}

impl ExternalPool {
    /// Whether one of the ranges contains the address. Excluded addresses count too.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// Whether the pool has a range of this family.
    pub fn has(&self, family: Family) -> bool {
        self.ranges.iter().any(|range| range.family() == family)
    }

    /// The addresses of `family` that a Service may have: without `exclude`, and without the network address and the
    /// IPv4 broadcast address of a CIDR with more than two addresses.
    pub fn candidates(&self, family: Family) -> Candidates {
        Candidates::of_spans(&self.ranges, &self.exclude, family)
    }

    /// The addresses of [`Self::candidates`] that lie in `range`, one of the ranges.
    pub fn candidates_in(&self, range: &Span) -> Candidates {
        Candidates::of_spans(std::slice::from_ref(range), &self.exclude, range.family())
    }

    /// The parts of `range`, one of the ranges, that no Service may have, in ascending order and as few as possible:
    /// all addresses of it that [`Self::candidates_in`] leaves out.
    pub fn withheld_spans(&self, range: &Span) -> Vec<Span> {
        Candidates::withheld_spans(range, &self.exclude)
    }
}

impl Reader {
    /// Reads `external`.
    pub(super) fn external(&mut self, at: &Located<'_>, external: &mut ExternalSettings) -> Vec<PoolPaths> {
        let paths;
        let Some(fields) = self.fields(at, &["pools", "loadBalancerClass", "default"]) else { return Vec::new() };
        (external.pools, paths) = self.required_pools(at, &fields, "external", Self::external_pool).into_iter().unzip();
        if let Some(class) = fields.get("loadBalancerClass").and_then(|at| self.class(at)) {
            external.load_balancer_class = class;
        }
        if let Some(default) = fields.get("default").and_then(|at| self.flag(at)) {
            external.default = default;
        }
        paths
    }

    fn external_pool(&mut self, at: &Located<'_>) -> Option<(ExternalPool, PoolPaths)> {
        let before = self.mistakes.len();
        let fields = self.fields(at, &["name", "cidrs", "exclude", "match", "nodes"])?;
        let unknown_keys = self.mistakes.len() > before;
        let name = self.pool_name(at, &fields);
        let (range_paths, ranges) = self.pool_ranges(at, &fields, Self::span);
        let (exclude_paths, exclude) = self.pool_exclude(&fields, Self::span_or_address);
        let before_match = self.mistakes.len();
        let matches = fields
            .get("match")
            .and_then(|at| self.fields(at, &["namespaces", "namespaceSelector", "serviceSelector"]))
            .map(|fields| self.scope(&fields));
        let match_is_whole = !unknown_keys && self.mistakes.len() == before_match;
        let nodes = fields.get("nodes").and_then(|at| self.selector(at)).unwrap_or_default();
        let path = at.path.clone();
        let pool_paths =
            PoolPaths { path, cidrs: range_paths, exclude: exclude_paths, match_is_whole, ..PoolPaths::default() };
        Some((ExternalPool { name, ranges, exclude, scope: matches.unwrap_or_default(), nodes }, pool_paths))
    }

    /// Reads a CIDR or `first-last`.
    fn span(&mut self, at: &Located<'_>) -> Option<Span> {
        let text = self.ok(at.text())?;
        let Some((first, last)) = text.split_once('-') else { return self.cidr(at).map(Into::into) };
        let address = |text: &str| text.trim().parse::<IpAddr>().ok();
        let (Some(first), Some(last)) = (address(first), address(last)) else {
            self.mistake(at.path.clone(), format!("{} is not a range such as 10.0.9.10-10.0.9.40", quote(text)));
            return None;
        };
        let span = Span::new(first, last);
        if span.is_none() {
            let reason = if Family::of(first) == Family::of(last) {
                format!("{first}-{last} ends before it begins: did you mean {last}-{first}?")
            } else {
                format!("{first}-{last} mixes IPv4 and IPv6")
            };
            self.mistake(at.path.clone(), reason);
        }
        span
    }

    fn span_or_address(&mut self, at: &Located<'_>) -> Option<Span> {
        match at.value.as_str().and_then(|text| text.parse::<IpAddr>().ok()) {
            Some(address) => Some(address.into()),
            None => self.span(at),
        }
    }

    /// Reads a load balancer class, which has the form of a label key.
    fn class(&mut self, at: &Located<'_>) -> Option<String> {
        let text = self.ok(at.text())?;
        if !is_label_key(text) {
            let reason = format!("{} is not a class: expected a label key such as example.com/lan", quote(text));
            self.mistake(at.path.clone(), reason);
            return None;
        }
        Some(text.to_owned())
    }
}

/// The mistakes in pools of external addresses that contradict each other or the other settings. `paths` has one entry
/// for each pool.
pub(super) fn mistakes(settings: &Settings, paths: &[PoolPaths]) -> Vec<Mistake> {
    let all = settings.external.pools.iter();
    let all: Vec<Common<'_>> = all.map(|pool| Common::new(&pool.name, &pool.ranges, &pool.exclude)).collect();
    pools::mistakes(&all, paths, &OfExternal(settings))
}

struct OfExternal<'s>(&'s Settings);

impl Kind for OfExternal<'_> {
    fn of_range(&self, pool: usize, range: usize, say: &mut dyn FnMut(String)) {
        let pool = &self.0.external.pools[pool];
        let range = pool.ranges[range];
        if let Some(inside) = of_the_cluster(self.0, &range) {
            say(format!("{range} overlaps {inside}: an address is either inside of the cluster or external"));
        }
        if pool.candidates_in(&range).count() == 0 {
            say(format!("{range} has no usable address: all are excluded"));
        }
    }

    /// Always false: a second pool for the same Services serves those that request one of its addresses.
    fn covers(&self, _: usize, _: usize) -> bool {
        false
    }
}

/// The range of the cluster that `range` overlaps, in words.
fn of_the_cluster(settings: &Settings, range: &Span) -> Option<String> {
    let ranges = settings.service_cidrs.iter().map(|cidr| (cidr, "the Service range", None));
    let services =
        settings.pools.iter().flat_map(|pool| pool.cidrs.iter().map(|cidr| (cidr, "Services", Some(&pool.name))));
    let nodes = settings.nodes.pools.iter();
    let nodes = nodes.flat_map(|pool| pool.cidrs.iter().map(|cidr| (cidr, "Nodes", Some(&pool.name))));
    let (cidr, what, pool) = ranges.chain(services).chain(nodes).find(|(cidr, ..)| Span::from(**cidr).meets(range))?;
    Some(match pool {
        Some(name) => format!("{cidr} of the pool {name:?} of {what}"),
        None => format!("{what} {cidr}"),
    })
}
