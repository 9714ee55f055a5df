//! The programs that announce external addresses, and what each of them reads from a Service.
//!
//! Agents of this product read the record. For any other program, the host that assigns addresses also writes the
//! annotation that the program reads. What follows is taken from the sources of MetalLB (controller/service.go), Cilium
//! (operator/pkg/lbipam) and kube-vip (pkg/instance/instance.go).

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::claim::LOAD_BALANCER_IP;
use crate::address::parse_address;
use crate::annotations::{RECORD_ANNOTATION, in_record, is_too_long_for_addresses};
use crate::service::Service;
use crate::service_key::ServiceKey;

/// The program that announces the addresses of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announcer {
    /// `clusterip agent`.
    #[default]
    Agents,
    MetalLb,
    Cilium,
    KubeVip,
}

/// The address that keeps MetalLB and Cilium from choosing one: both refuse a Service whose requested address is in
/// none of their pools. kube-vip would ask a DHCP server for an address.
const NO_ADDRESS: &str = "0.0.0.0";

/// At most this many Services share an address: each decision about one of them compares the ports of all.
const MAX_SHARING: usize = 32;

impl Announcer {
    pub const ALL: [Self; 4] = [Self::Agents, Self::MetalLb, Self::Cilium, Self::KubeVip];

    /// The name in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::MetalLb => "metallb",
            Self::Cilium => "cilium",
            Self::KubeVip => "kube-vip",
        }
    }

    /// The annotations in which the program reads addresses. It reads the first one that a Service has.
    pub fn annotations(self) -> &'static [&'static str] {
        match self {
            Self::Agents => &[],
            Self::MetalLb => &["metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"],
            Self::Cilium => &["lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"],
            Self::KubeVip => &["kube-vip.io/loadbalancerIPs"],
        }
    }

    /// The annotations with the sharing key. The program reads the first one that a Service has.
    fn sharing(self) -> &'static [&'static str] {
        match self {
            Self::Agents | Self::KubeVip => &[],
            Self::MetalLb => &["metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"],
            Self::Cilium => &["lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"],
        }
    }

    /// What the program reads if a Service has no address.
    fn without_address(self) -> &'static str {
        if matches!(self, Self::MetalLb | Self::Cilium) { NO_ADDRESS } else { "" }
    }

    /// The fields and annotations in which an author requests an address from this program.
    pub(crate) fn request_fields(self) -> impl Iterator<Item = &'static str> {
        let field = if self == Self::Agents { None } else { Some(LOAD_BALANCER_IP) };
        self.annotations().iter().copied().chain(field)
    }

    /// Whether a part of such a field requests no address, because [`Announcement::of`] has written it.
    pub(crate) fn is_no_address(self, text: &str) -> bool {
        !text.is_empty() && text == self.without_address()
    }

    /// The sharing key of a Service. A key that is too long to be compared counts as absent.
    pub(crate) fn sharing_key(self, service: &Service) -> Option<&str> {
        let key = self.sharing().iter().find_map(|key| service.annotations.get(key))?;
        (!key.is_empty() && !is_too_long_for_addresses(key)).then_some(key)
    }

    /// Whether the program lets two Services of one namespace share an address: they have the same key, no port of one
    /// is a port of the other, and those with `externalTrafficPolicy: Local` select the same Pods.
    fn lets_share(self, one: &Service, other: &Service) -> bool {
        let key = self.sharing_key(one);
        let (Some(ports), Some(others)) = (&one.ports, &other.ports) else { return false };
        // Cilium does not distinguish protocols here.
        let seen = |&(protocol, port): &(&'static str, u16)| (if self == Self::Cilium { "" } else { protocol }, port);
        let taken: BTreeSet<_> = others.iter().map(seen).collect();
        let has_same_backends = !one.local || one.selector == other.selector && !one.selector.is_empty();
        key.is_some()
            && key == self.sharing_key(other)
            && (one.local, true) == (other.local, has_same_backends)
            && !ports.iter().map(seen).any(|port| taken.contains(&port))
    }
}

/// The Service that is to get an address, for a host that says who has it.
pub struct Sharer<'a> {
    pub service: &'a Service,
    pub namespace: &'a str,
    pub announcer: Announcer,
}

impl Sharer<'_> {
    /// Whether the Service may share an address with all of these Services. `read` returns a Service; `None` if it is
    /// unknown. It is not called if there are too many of them, or if one is in another namespace.
    pub fn shares<'k>(
        &self,
        owners: impl IntoIterator<Item = &'k ServiceKey>,
        mut read: impl FnMut(&ServiceKey) -> Option<Service>,
    ) -> bool {
        if self.announcer.sharing_key(self.service).is_none() {
            return false;
        }
        let owners: Vec<_> = owners.into_iter().take(MAX_SHARING).collect();
        owners.len() < MAX_SHARING
            && owners.iter().all(|owner| owner.namespace == self.namespace)
            && owners
                .iter()
                .all(|owner| read(owner).is_some_and(|other| self.announcer.lets_share(self.service, &other)))
    }
}

/// What is to be written into a Service for the program that announces its addresses, besides the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The annotations to write; an empty text removes the annotation.
    pub annotations: Vec<(&'static str, String)>,
    /// Whether `spec.loadBalancerIP` is to be removed, because the program would read it beside the annotation.
    pub clears_field: bool,
}

impl Announcement {
    /// The announcement of a Service that is to have these addresses, by the program of its class; `None` if it gets no
    /// addresses from this policy any more.
    pub(crate) fn of(service: &Service, announcer: Option<Announcer>, addresses: &[IpAddr]) -> Self {
        let mut announcement = Self::default();
        let record = service.annotations.get(RECORD_ANNOTATION);
        for other in Announcer::ALL {
            let Some(key) = other.annotations().first() else { continue };
            let now = service.annotations.get(key);
            let text = if announcer != Some(other) {
                // Removes what was written for this program before.
                let is_written = now.is_some_and(|now| Some(now) == record || other.is_no_address(now));
                if is_written { String::new() } else { continue }
            } else {
                let field = service.load_balancer_ip.as_ref();
                let is_field =
                    matches!(addresses, [only] if field.and_then(|field| parse_address(field)) == Some(*only));
                // Cilium adds the address of the field to those of the annotation, and MetalLB refuses both.
                announcement.clears_field = field.is_some() && !is_field;
                match addresses {
                    [] => other.without_address().to_owned(),
                    _ if is_field && other == Announcer::MetalLb => String::new(),
                    _ => in_record(addresses),
                }
            };
            if now.map_or("", String::as_str) != text {
                announcement.annotations.push((key, text));
            }
        }
        announcement
    }
}
