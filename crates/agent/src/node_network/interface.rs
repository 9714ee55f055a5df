//! The interface with the addresses that this node holds.
//!
//! An address is added as a /32 or /128, so that it creates no route to a network. Its metric [`MARK`] tells it from
//! addresses of other programs: the kernel (4.18 and later) stores one for both families, and without a prefix route it
//! has no other effect. A label does not fit after a long name, and exists for IPv4 only, where it is for readers of `ip
//! address`; kernels before 5.18 drop the protocol of an address silently.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail, ensure};
use futures::TryStreamExt;
use nix::errno::Errno;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};
use rtnetlink::{Handle, LinkGetRequest, RouteMessageBuilder, new_connection};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

#[derive(Debug, thiserror::Error)]
#[error("interface {0} does not exist: name one of those that `ip link` lists")]
pub struct NoInterface(pub(super) String);

pub(super) fn not_ethernet(interface: &str) -> Error {
    anyhow!("interface {interface} is not an Ethernet interface, so addresses can't be announced on it: name another")
}

pub(super) fn remedy(reason: Errno, capability: &str) -> String {
    if reason == Errno::EPERM { format!(": {capability} is needed") } else { String::new() }
}

/// The metric of addresses of this crate: "cip" in ASCII.
const MARK: u32 = u32::from_be_bytes(*b"\0cip");
const LABEL: &str = ":cip";
/// The value that the kernel takes for an unlimited lifetime.
const FOREVER: u32 = u32::MAX;
const LABEL_LENGTH: usize = 15;
/// For so long, a list of addresses serves further calls. The kernel lists the addresses of all interfaces, and an agent
/// may hold or release a thousand addresses at once.
const FRESH: Duration = Duration::from_millis(500);

/// The addresses of an interface, as they were listed and as this process has changed them since.
#[derive(Debug, Default)]
struct Listed {
    /// `None` if they must be listed again.
    at: Option<Instant>,
    /// An address can be present twice, with two prefix lengths.
    messages: BTreeMap<IpAddr, Vec<AddressMessage>>,
}

/// An interface, by its index: if another one gets its name, [`Interface::hold`] returns [`NoInterface`].
#[derive(Clone, Debug)]
pub struct Interface {
    pub name: String,
    pub(crate) index: u32,
    handle: Handle,
    listed: Arc<Mutex<Listed>>,
}

impl Interface {
    /// Finds the interface with this name, or that of the best default route of IPv4, or if there is none, of IPv6.
    pub async fn find(name: Option<&str>) -> Result<Self> {
        let (connection, handle, _) =
            new_connection().map_err(|error| anyhow!("can't open a netlink socket: {error}"))?;
        // The task ends when the last handle is dropped.
        tokio::spawn(connection);
        let (request, wanted) = match name {
            // The kernel would treat an empty name as no name.
            Some("") => bail!(NoInterface("\"\"".to_owned())),
            Some(name) => (handle.link().get().match_name(name.to_owned()), name.to_owned()),
            None => {
                let index = index_of_default_route(&handle).await?.ok_or_else(|| {
                    anyhow!("the main routing table has no default route for IPv4 or IPv6: name the interface")
                })?;
                (handle.link().get().match_index(index), format!("number {index}"))
            }
        };
        let link = link(request, &wanted).await?;
        let name = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
        let name = name.unwrap_or(wanted);
        if link.header.link_layer_type != LinkLayerType::Ether {
            return Err(not_ethernet(&name));
        }
        Ok(Self { name, index: link.header.index, handle, listed: Arc::default() })
    }

    /// Adds `address` to the interface, unless it is there. The kernel removes it up to a second before `until`, unless this
    /// is called again. Returns whether it was added: `false` also if another program removed it a moment ago.
    ///
    /// The address is *deprecated* from the beginning: it answers, but the node does not choose it as the source of its
    /// own connections, which would break when the address moves. There is no duplicate address detection, because it
    /// would keep the address from answering for seconds.
    pub async fn hold(&self, address: IpAddr, until: Instant) -> Result<bool> {
        if address.is_unspecified() || address.is_loopback() || address.is_multicast() || address == Ipv4Addr::BROADCAST
        {
            bail!("can't hold {address}: it is not the address of a single host");
        }
        let link = link(self.handle.link().get().match_index(self.index), &self.name).await?;
        let is_up = link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp);
        ensure!(is_up, "interface {} or its link is down: it transmits no frames", self.name);
        let mut listed = self.listed().await?;
        let present = listed.messages.get(&address).map_or(&[][..], Vec::as_slice);
        let is_new = present.is_empty();
        ensure!(
            present.iter().all(ours),
            "another program has added {address} to interface {}: remove it, or exclude it from the pool",
            self.name
        );
        // As late as possible: the kernel must not keep the address after `until`.
        let left = until.saturating_duration_since(Instant::now()).as_secs();
        let seconds = u32::try_from(left).ok().filter(|seconds| (1..FOREVER).contains(seconds));
        let seconds = seconds.ok_or_else(|| {
            anyhow!("can't hold {address} for {left} s: a lifetime is between 1 second and 136 years")
        })?;
        let mut request = self.handle.address().add(self.index, address, length(address));
        // What another program has added since the list must not be replaced.
        if !is_new {
            request = request.replace();
        }
        let mut lifetime = CacheInfo::default();
        lifetime.ifa_valid = seconds;
        lifetime.ifa_preferred = 0;
        let attributes = &mut request.message_mut().attributes;
        attributes.push(AddressAttribute::CacheInfo(lifetime));
        attributes.push(AddressAttribute::RoutePriority(MARK));
        if address.is_ipv6() {
            attributes.push(AddressAttribute::Flags(AddressFlags::Nodad | AddressFlags::Noprefixroute));
        } else if self.name.len() + LABEL.len() <= LABEL_LENGTH {
            attributes.push(AddressAttribute::Label(format!("{}{LABEL}", self.name)));
        }
        if is_new {
            // Also if this call is dropped, a release must find the address.
            listed.messages.entry(address).or_default().push(request.message_mut().clone());
        }
        let added = request.execute().await;
        if added.is_err() {
            listed.at = None;
        }
        match added {
            Ok(()) => Ok(is_new),
            Err(error) if address.is_ipv6() && errno(&error) == Errno::EACCES => bail!(
                "can't add {address} to interface {0}: IPv6 is disabled there, see net.ipv6.conf.{0}.disable_ipv6",
                self.name
            ),
            Err(error) => Err(refused(&format!("add {address} to"), &self.name, &error)),
        }
    }

    /// Removes `address` from the interface, unless it lacks the mark of this crate.
    pub async fn release(&self, address: IpAddr) -> Result<()> {
        let mut listed = self.listed().await?;
        let Some(present) = listed.messages.get_mut(&address) else { return Ok(()) };
        while let Some(index) = present.iter().position(ours) {
            match self.handle.address().del(present[index].clone()).execute().await {
                // The lifetime of the address has just ended, or the interface is gone and with it all its addresses.
                Err(error) if matches!(errno(&error), Errno::EADDRNOTAVAIL | Errno::ENODEV) => {}
                Err(error) => return Err(refused(&format!("remove {address} from"), &self.name, &error)),
                Ok(()) => {}
            }
            present.swap_remove(index);
        }
        if present.is_empty() {
            listed.messages.remove(&address);
        }
        Ok(())
    }

    /// The addresses that [`hold`](Self::hold) has added, in this process or an earlier one; sorted.
    pub async fn held(&self) -> Result<Vec<IpAddr>> {
        let listed = self.listed().await?;
        let held = listed.messages.iter().filter(|(_, messages)| messages.iter().any(ours));
        Ok(held.map(|(address, _)| *address).collect())
    }

    /// The addresses of the interface, for one call at a time.
    async fn listed(&self) -> Result<MutexGuard<'_, Listed>> {
        let mut listed = self.listed.lock().await;
        if listed.at.is_none_or(|at| at.elapsed() >= FRESH) {
            let all = self.handle.address().get().set_link_index_filter(self.index).execute();
            let all: Result<Vec<AddressMessage>, _> = all.try_collect().await;
            let all = all.map_err(|error| refused("list the addresses of", &self.name, &error))?;
            let mut messages = BTreeMap::<_, Vec<_>>::new();
            for (address, message) in all.into_iter().filter_map(|message| Some((of(&message)?, message))) {
                messages.entry(address).or_default().push(message);
            }
            *listed = Listed { at: Some(Instant::now()), messages };
        }
        Ok(listed)
    }
}

async fn link(request: LinkGetRequest, wanted: &str) -> Result<LinkMessage> {
    match request.execute().try_next().await {
        Ok(Some(link)) => Ok(link),
        // The kernel reports a name that is too long for an interface as out of range.
        Err(error) if !matches!(errno(&error), Errno::ERANGE | Errno::EINVAL) => {
            Err(refused("read the attributes of", wanted, &error))
        }
        _ => bail!(NoInterface(wanted.to_owned())),
    }
}

async fn index_of_default_route(handle: &Handle) -> Result<Option<u32>> {
    let ipv4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let ipv6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for family in [ipv4, ipv6] {
        let routes: Result<Vec<RouteMessage>, _> = handle.route().get(family).execute().try_collect().await;
        let routes = routes.map_err(|error| anyhow!("can't list the routes of the kernel: {}", reason(&error)))?;
        if let Some((_, index)) = routes.iter().filter_map(default_route).min_by_key(|(metric, _)| *metric) {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn default_route(route: &RouteMessage) -> Option<(u32, u32)> {
    let default = route.header.destination_prefix_length == 0
        && route.header.table == RouteHeader::RT_TABLE_MAIN
        && route.header.kind == RouteType::Unicast;
    let metric = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Priority(metric) => Some(*metric),
        _ => None,
    });
    let interface = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        RouteAttribute::MultiPath(hops) => hops.first().map(|hop| hop.interface_index),
        _ => None,
    });
    interface.filter(|_| default).map(|index| (metric.unwrap_or_default(), index))
}

fn length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address of a message: the local one if the message also has that of a peer.
fn of(message: &AddressMessage) -> Option<IpAddr> {
    let address = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Local(address) => Some((true, *address)),
        AddressAttribute::Address(address) => Some((false, *address)),
        _ => None,
    };
    let addresses = message.attributes.iter().filter_map(address);
    addresses.max_by_key(|(is_local, _)| *is_local).map(|(_, address)| address)
}

fn ours(message: &AddressMessage) -> bool {
    message.attributes.contains(&AddressAttribute::RoutePriority(MARK))
        && of(message).is_some_and(|address| message.header.prefix_len == length(address))
}

fn errno(error: &rtnetlink::Error) -> Errno {
    match error {
        rtnetlink::Error::NetlinkError(message) => Errno::from_raw(message.raw_code().abs()),
        _ => Errno::UnknownErrno,
    }
}

fn reason(error: &rtnetlink::Error) -> String {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io().to_string(),
        error => error.to_string(),
    }
}

fn refused(operation: &str, interface: &str, error: &rtnetlink::Error) -> Error {
    let errno = errno(error);
    if errno == Errno::ENODEV {
        return NoInterface(interface.to_owned()).into();
    }
    anyhow!("can't {operation} interface {interface}: {}{}", reason(error), remedy(errno, "CAP_NET_ADMIN"))
}
