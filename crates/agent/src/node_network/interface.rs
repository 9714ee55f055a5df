//! The interface with the addresses that this node holds.
//!
//! An address is added as a /32 or /128, so that it creates no route to a network. Its mark is its **metric**, which is
//! [`MARK`]: it tells addresses of this crate from those of other programs. The kernel (4.18 and later) stores a metric
//! for addresses of both families, and `ip address` shows it; it has no other effect, because such an address gets no
//! prefix route. Other marks are not reliable: only IPv4 addresses have a label, which must begin with the name of the
//! interface and so does not fit after a long one; the protocol of an address is known only to Linux 5.18 and later,
//! and older kernels drop it silently. For readers of `ip address`, an IPv4 address also gets the label `NAME:cip` if
//! it fits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures::TryStreamExt;
use nix::errno::Errno;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};
use rtnetlink::{Handle, LinkGetRequest, RouteMessageBuilder, new_connection};

use thiserror::Error;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Error)]
pub enum Error {
    /// The interface does not exist, or was deleted.
    #[error("interface {0} does not exist: name one of those that `ip link` lists")]
    NoInterface(String),
    /// Anything else. Contains the full message, with the remedy if it is known.
    #[error("{0}")]
    Other(String),
}

impl Error {
    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::Other(message.into())
    }

    pub(super) fn not_ethernet(interface: &str) -> Self {
        Self::other(format!(
            "interface {interface} is not an Ethernet interface, so addresses can't be announced on it: name another"
        ))
    }
}

/// The missing capability, if the kernel refused an operation because of it.
pub(super) fn remedy(reason: Errno, capability: &str) -> String {
    if reason == Errno::EPERM { format!(": {capability} is needed") } else { String::new() }
}

/// The metric of addresses of this crate: "cip" in ASCII.
const MARK: u32 = u32::from_be_bytes(*b"\0cip");
const LABEL: &str = ":cip";
/// The value that the kernel takes for an unlimited lifetime.
const FOREVER: u32 = u32::MAX;
/// The maximum number of bytes of a label.
const LABEL_LENGTH: usize = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldResult {
    /// The address was added. The caller should announce it.
    Added,
    /// The interface already had the address, and its lifetime was extended.
    Renewed,
}

/// An interface, with a connection to the kernel. Cheap to clone.
///
/// It refers to the interface by its index. If that interface is deleted and another one gets its name, call
/// [`Interface::find`] again. Until then, nothing is held, and [`Interface::hold`] returns [`Error::NoInterface`].
#[derive(Clone, Debug)]
pub struct Interface {
    name: String,
    index: u32,
    handle: Handle,
}

impl Interface {
    /// Finds the interface with this name. Without a name, finds the interface of the default route in the main table:
    /// the IPv4 route, or if there is none, the IPv6 route. Of several default routes, the one with the lowest metric
    /// counts.
    pub async fn find(name: Option<&str>) -> Result<Self> {
        let (connection, handle, _) =
            new_connection().map_err(|error| Error::other(format!("can't open a netlink socket: {error}")))?;
        // The task ends when the last handle is dropped.
        tokio::spawn(connection);
        let (request, wanted) = match name {
            // The kernel would treat an empty name as no name.
            Some("") => return Err(Error::NoInterface("\"\"".to_owned())),
            Some(name) => (handle.link().get().match_name(name.to_owned()), name.to_owned()),
            None => {
                let index = index_of_default_route(&handle).await?.ok_or_else(|| {
                    Error::other("the main routing table has no default route for IPv4 or IPv6: name the interface")
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
            return Err(Error::not_ethernet(&name));
        }
        Ok(Self { name, index: link.header.index, handle })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Whether both are the same interface, and not two interfaces with the same name.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.index == other.index
    }

    /// Checks that the interface transmits frames: it is up, and so is its link.
    pub async fn check_up(&self) -> Result<()> {
        let link = link(self.handle.link().get().match_index(self.index), &format!("number {}", self.index)).await;
        let link = link.map_err(|error| match error {
            Error::NoInterface(_) => Error::NoInterface(self.name.clone()),
            error => error,
        })?;
        if link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp) {
            return Ok(());
        }
        Err(Error::other(format!("interface {} or its link is down: it transmits no frames", self.name)))
    }

    /// Adds `address` to the interface for the duration `valid`. Then the kernel removes it, unless this function is
    /// called again before. Fractions of a second are ignored.
    ///
    /// The address is *deprecated* from the beginning: it answers, but the node does not choose it as the source of its
    /// own connections, which would break when the address moves. There is no duplicate address detection, because it
    /// would keep the address from answering for seconds, and the caller decides which node holds the address.
    ///
    /// # Errors
    /// If the address is on the interface without the mark of this crate, or if the kernel refuses.
    pub async fn hold(&self, address: IpAddr, valid: Duration) -> Result<HoldResult> {
        if address.is_unspecified() || address.is_loopback() || address.is_multicast() || address == Ipv4Addr::BROADCAST
        {
            return Err(Error::other(format!("can't hold {address}: it is not the address of a single host")));
        }
        let seconds = u32::try_from(valid.as_secs()).ok().filter(|seconds| (1..FOREVER).contains(seconds));
        let seconds = seconds.ok_or_else(|| {
            Error::other(format!("can't hold {address} for {valid:?}: a lifetime is between 1 second and 136 years"))
        })?;
        // An address can be present twice, with two prefix lengths.
        let mut there = self.messages().await?;
        there.retain(|message| of(message) == Some(address));
        if !there.iter().all(ours) {
            return Err(Error::other(format!(
                "another program has added {address} to interface {}: remove it, or exclude it from the pool",
                self.name
            )));
        }
        let held = if there.is_empty() { HoldResult::Added } else { HoldResult::Renewed };
        let mut request = self.handle.address().add(self.index, address, length(address)).replace();
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
        match request.execute().await {
            Ok(()) => Ok(held),
            Err(error) if address.is_ipv6() && errno(&error) == Errno::EACCES => Err(Error::other(format!(
                "can't add {address} to interface {0}: IPv6 is disabled there, see net.ipv6.conf.{0}.disable_ipv6",
                self.name
            ))),
            Err(error) => Err(self.refused(&format!("add {address} to"), &error)),
        }
    }

    /// Removes `address` from the interface. An address that is absent, or lacks the mark of this crate, is left alone.
    pub async fn release(&self, address: IpAddr) -> Result<()> {
        for message in
            self.messages().await?.into_iter().filter(|message| of(message) == Some(address) && ours(message))
        {
            match self.handle.address().del(message).execute().await {
                Ok(()) => {}
                // The lifetime of the address has just ended.
                Err(error) if errno(&error) == Errno::EADDRNOTAVAIL => {}
                Err(error) => {
                    return Err(self.refused(&format!("remove {address} from"), &error));
                }
            }
        }
        Ok(())
    }

    /// The addresses that [`hold`](Self::hold) has added to the interface, in this process or an earlier one, and that
    /// the kernel has not removed yet; sorted.
    pub async fn held(&self) -> Result<Vec<IpAddr>> {
        let mut held: Vec<_> = self.messages().await?.iter().filter(|message| ours(message)).filter_map(of).collect();
        held.sort_unstable();
        Ok(held)
    }

    async fn messages(&self) -> Result<Vec<AddressMessage>> {
        let messages = self.handle.address().get().set_link_index_filter(self.index).execute();
        messages.try_collect().await.map_err(|error| self.refused("list the addresses of", &error))
    }

    fn refused(&self, operation: &str, error: &rtnetlink::Error) -> Error {
        match errno(error) {
            Errno::ENODEV => Error::NoInterface(self.name.clone()),
            _ => kernel_error(operation, &self.name, error),
        }
    }
}

async fn link(request: LinkGetRequest, wanted: &str) -> Result<LinkMessage> {
    match request.execute().try_next().await {
        Ok(Some(link)) => Ok(link),
        // The kernel reports a name that is too long for an interface as out of range.
        Ok(None) => Err(Error::NoInterface(wanted.to_owned())),
        Err(error) if matches!(errno(&error), Errno::ENODEV | Errno::ERANGE | Errno::EINVAL) => {
            Err(Error::NoInterface(wanted.to_owned()))
        }
        Err(error) => Err(kernel_error("read the attributes of", wanted, &error)),
    }
}

async fn index_of_default_route(handle: &Handle) -> Result<Option<u32>> {
    let ipv4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let ipv6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for family in [ipv4, ipv6] {
        let routes = handle.route().get(family).execute();
        let routes: Vec<RouteMessage> = routes
            .try_collect()
            .await
            .map_err(|error| Error::other(format!("can't list the routes of the kernel: {}", reason(&error))))?;
        let default = routes.iter().filter_map(default_route).min_by_key(|(metric, _)| *metric);
        if let Some((_, index)) = default {
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
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let of_interface = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    };
    local.or_else(|| message.attributes.iter().find_map(of_interface))
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

fn kernel_error(operation: &str, interface: &str, error: &rtnetlink::Error) -> Error {
    let remedy = remedy(errno(error), "CAP_NET_ADMIN");
    Error::other(format!("can't {operation} interface {interface}: {}{remedy}", reason(error)))
}
