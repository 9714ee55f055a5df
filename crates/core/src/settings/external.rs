//! The settings about external addresses: reads `external`, and checks its pools against each other and against the
//! ranges of Services and Nodes.

use std::net::IpAddr;

use super::pools::{self, Common, PoolPaths};
use super::reader::{Reader, is_label_key, parse_cidr};
use super::{AdmissionScope, Mistake, Settings};
use crate::address::{Candidates, Family, Span};
use crate::external::Announcer;
use crate::json::{Located, quote};
use crate::label_selector::LabelSelector;
use crate::service::Service;

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
    pub name: String,
    /// `cidrs`: CIDRs and ranges. They overlap neither each other nor any other range of the settings.
    pub ranges: Vec<Span>,
    /// Ranges and addresses that no Service may have.
    pub exclude: Vec<Span>,
    /// `match`: the Services that the pool is for.
    pub scope: AdmissionScope,
    pub nodes: LabelSelector,
    pub announcer: Announcer,
    /// `loadBalancerClass`: the class of the Services that the pool is for, empty for those without a class. `None`
    /// stands for the classes of the settings.
    pub load_balancer_class: Option<String>,
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
        self.announcer_of(class).is_some()
    }

    /// The program that announces the addresses of Services of type `LoadBalancer` with this class; `None` if they get
    /// none from this policy.
    pub fn announcer_of(&self, class: Option<&str>) -> Option<Announcer> {
        self.pools.iter().find(|pool| self.serves(pool, class)).map(|pool| pool.announcer)
    }

    /// Whether a pool is for Services with this class.
    pub(crate) fn serves(&self, pool: &ExternalPool, class: Option<&str>) -> bool {
        self.classes(pool).any(|own| own == class.unwrap_or_default())
    }

    /// The classes of the Services that a pool is for; an empty one stands for Services without a class.
    fn classes<'s>(&'s self, pool: &'s ExternalPool) -> impl Iterator<Item = &'s str> {
        let own = pool.load_balancer_class.as_deref();
        let of_settings = [Some(self.load_balancer_class.as_str()), self.default.then_some("")];
        own.into_iter().chain(of_settings.into_iter().flatten().filter(move |_| own.is_none()))
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

/// A class has the form of a label key.
const A_CLASS: &str = "a class: expected a label key such as example.com/lan";

impl Reader {
    pub(super) fn external(&mut self, at: &Located<'_>, external: &mut ExternalSettings) -> Vec<PoolPaths> {
        let paths;
        let Some(fields) = self.fields(at, &["pools", "loadBalancerClass", "default"]) else { return Vec::new() };
        (external.pools, paths) = self.required_pools(at, &fields, "external", Self::external_pool).into_iter().unzip();
        let read = |at| self.text(at, is_label_key, A_CLASS);
        if let Some(class) = fields.get("loadBalancerClass").and_then(read) {
            external.load_balancer_class = class;
        }
        external.default = self.field(&fields, "default", Self::flag);
        paths
    }

    fn external_pool(&mut self, at: &Located<'_>) -> Option<(ExternalPool, PoolPaths)> {
        let mut fields =
            self.pool_fields(at, &["name", "cidrs", "exclude", "match", "nodes", "announcer", "loadBalancerClass"])?;
        let pool = ExternalPool {
            name: self.pool_name(&fields),
            ranges: self.pool_ranges(&mut fields, |reader, at| reader.parse(at, span)),
            exclude: self.pool_exclude(&mut fields, |reader, at| reader.parse(at, span_or_address)),
            scope: self.pool_match(&mut fields, Self::external_match),
            nodes: self.field(&fields.fields, "nodes", Self::selector),
            announcer: self.field(&fields.fields, "announcer", |reader, at| {
                reader.choice(at, &Announcer::ALL.map(Announcer::name), &Announcer::ALL)
            }),
            load_balancer_class: self.field(&fields.fields, "loadBalancerClass", |reader, at| {
                reader.text(at, |text| text.is_empty() || is_label_key(text), A_CLASS).map(Some)
            }),
        };
        if pool.announcer != Announcer::Agents && fields.fields.get("nodes").is_some() {
            let reason = "only agents read it: the announcer of the pool chooses the nodes itself";
            self.mistake(at.key_path("nodes"), reason);
        }
        Some((pool, fields.paths))
    }

    fn external_match(&mut self, at: &Located<'_>) -> Option<AdmissionScope> {
        let fields = self.fields(at, &["namespaces", "namespaceSelector", "serviceSelector"])?;
        Some(self.scope(&fields))
    }
}

/// Parses a CIDR or `first-last`.
fn span(text: &str) -> Result<Span, String> {
    let Some((first, last)) = text.split_once('-') else { return parse_cidr(text).map(Into::into) };
    let address = |text: &str| text.trim().parse::<IpAddr>().ok();
    let (Some(first), Some(last)) = (address(first), address(last)) else {
        return Err(format!("{} is not a range such as 10.0.9.10-10.0.9.40", quote(text)));
    };
    Span::new(first, last).ok_or_else(|| match Family::of(first) == Family::of(last) {
        true => format!("{first}-{last} ends before it begins: did you mean {last}-{first}?"),
        false => format!("{first}-{last} mixes IPv4 and IPv6"),
    })
}

fn span_or_address(text: &str) -> Result<Span, String> {
    text.parse().map_or_else(|_| span(text), |address: IpAddr| Ok(address.into()))
}

/// The mistakes in pools of external addresses that contradict each other or the other settings. `paths` has one entry
/// for each pool.
pub(super) fn mistakes(settings: &Settings, paths: &[PoolPaths]) -> Vec<Mistake> {
    let pools = &settings.external.pools;
    let all: Vec<Common<'_>> = pools.iter().map(|pool| Common::new(&pool.name, &pool.ranges, &pool.exclude)).collect();
    let of_range = |pool: usize, range: usize| {
        let (pool, range) = (&pools[pool], pools[pool].ranges[range]);
        let inside = of_the_cluster(settings, &range)
            .map(|inside| format!("{range} overlaps {inside}: an address is either inside of the cluster or external"));
        let is_useless = pool.candidates_in(&range).count() == 0;
        [inside, is_useless.then(|| format!("{range} has no usable address: all are excluded"))]
    };
    // A second pool for the same Services serves those that request one of its addresses.
    let mut mistakes = pools::mistakes(&all, paths, &of_range, &|_, _| false);
    mistakes.extend(announcer_mistakes(&settings.external, paths));
    mistakes
}

/// A Service has one class, and the class selects the program that announces its addresses.
fn announcer_mistakes(external: &ExternalSettings, paths: &[PoolPaths]) -> Vec<Mistake> {
    let mistake = |(index, pool): (usize, &ExternalPool)| {
        let others = external.pools[..index].iter().filter(|other| other.announcer != pool.announcer);
        let shared = |other| external.classes(pool).find(|class| external.serves(other, Some(class)));
        let (other, class) = others.into_iter().find_map(|other| Some((other, shared(other)?)))?;
        let class = if class.is_empty() { "without a class".to_owned() } else { format!("of the class {class}") };
        let (own, name, announcer) = (pool.announcer.name(), &other.name, other.announcer.name());
        let reason = format!(
            "{own} is to announce addresses of Services {class}, and {announcer} those of pool {name:?}: set \
             loadBalancerClass of one of the pools"
        );
        Some(Mistake { path: format!("{}.announcer", paths.get(index)?.path), reason })
    };
    external.pools.iter().enumerate().filter_map(mistake).collect()
}

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
