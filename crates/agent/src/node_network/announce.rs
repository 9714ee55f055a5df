//! Announces to the neighbours that an address is on this node.
//!
//! - **IPv4**: two gratuitous ARP packets to all hosts, the request of RFC 5227 and the reply of RFC 5944 (4.6): some
//!   hosts and switches learn from requests only, and others from replies only.
//! - **IPv6**: one unsolicited neighbour advertisement (RFC 4861, 7.2.6) to all nodes. It has the override flag,
//!   without which a neighbour keeps its entry, and the router flag if the interface forwards: without it, a neighbour
//!   that uses this node as a router would remove it from its list of routers.
//!
//! Frames can get lost, so a caller repeats the announcement after seconds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Result, anyhow};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv6Packet,
    Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
};

use super::interface::{Interface, NoInterface, not_ethernet, remedy};

/// For so long, a hardware address serves further announcements. That of a bond can change, but the kernel lists all
/// addresses of the node with it, and an agent may announce a thousand addresses at once.
const FRESH: Duration = Duration::from_secs(1);

/// Keep it open, because closing the socket takes the kernel milliseconds.
#[derive(Debug)]
pub struct Announcer {
    socket: OwnedFd,
    /// The link address that was read last, with the index of its interface.
    link: Mutex<Option<(u32, LinkAddr, Instant)>>,
}

impl Announcer {
    pub fn open() -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        // Without a protocol the socket receives nothing, so no task needs to read it.
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None).map_err(|reason| {
            anyhow!("can't open a packet socket: {}{}", io::Error::from(reason), remedy(reason, "CAP_NET_RAW"))
        })?;
        Ok(Self { socket, link: Mutex::default() })
    }

    pub fn announce(&self, interface: &Interface, address: IpAddr) -> Result<()> {
        let refused = |reason: nix::Error| {
            let (interface, reason) = (&interface.name, io::Error::from(reason));
            anyhow!("can't announce {address} on interface {interface}: {reason}")
        };
        let link = self.link(interface).map_err(refused)?.ok_or_else(|| NoInterface(interface.name.clone()))?;
        let hardware = EthernetAddress(link.addr().ok_or_else(|| not_ethernet(&interface.name))?);
        let frames = match address {
            IpAddr::V4(address) => arp(hardware, address),
            IpAddr::V6(address) => vec![neighbour_advertisement(hardware, address, forwards(&interface.name))],
        };
        for frame in frames {
            sendto(self.socket.as_raw_fd(), &frame, &link, MsgFlags::empty()).map_err(refused)?;
        }
        Ok(())
    }

    /// The link address of the interface; `None` if it is gone.
    fn link(&self, interface: &Interface) -> nix::Result<Option<LinkAddr>> {
        let mut known = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((index, link, read)) = &*known
            && *index == interface.index
            && read.elapsed() < FRESH
        {
            return Ok(Some(*link));
        }
        let links = getifaddrs()?.filter_map(|entry| entry.address.as_ref()?.as_link_addr().copied());
        let link = links.into_iter().find(|link| u32::try_from(link.ifindex()) == Ok(interface.index));
        *known = link.map(|link| (interface.index, link, Instant::now()));
        Ok(link)
    }
}

/// Whether the interface forwards IPv6, so that its neighbours may use it as a router.
fn forwards(interface: &str) -> bool {
    fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/forwarding")).is_ok_and(|text| text.trim() != "0")
}

fn arp(hardware: EthernetAddress, address: Ipv4Addr) -> Vec<Vec<u8>> {
    let forms = [(ArpOperation::Request, EthernetAddress([0; 6])), (ArpOperation::Reply, hardware)];
    let frame = |(operation, target)| {
        let arp = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: hardware,
            source_protocol_addr: address,
            target_hardware_addr: target,
            target_protocol_addr: address,
        };
        let ethernet =
            EthernetRepr { src_addr: hardware, dst_addr: EthernetAddress::BROADCAST, ethertype: EthernetProtocol::Arp };
        let mut frame = vec![0; ethernet.buffer_len() + arp.buffer_len()];
        let (header, body) = frame.split_at_mut(ethernet.buffer_len());
        ethernet.emit(&mut EthernetFrame::new_unchecked(header));
        arp.emit(&mut ArpPacket::new_unchecked(body));
        frame
    };
    forms.into_iter().map(frame).collect()
}

fn neighbour_advertisement(hardware: EthernetAddress, address: Ipv6Addr, router: bool) -> Vec<u8> {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    const ALL_NODES_HARDWARE: EthernetAddress = EthernetAddress([0x33, 0x33, 0, 0, 0, 1]);
    let mut flags = NdiscNeighborFlags::OVERRIDE;
    flags.set(NdiscNeighborFlags::ROUTER, router);
    let icmp =
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr: address, lladdr: Some(hardware.into()) });
    let ip = Ipv6Repr {
        src_addr: address,
        dst_addr: ALL_NODES,
        next_header: IpProtocol::Icmpv6,
        payload_len: icmp.buffer_len(),
        // Receivers drop a packet with any other hop limit, because it may come from another link.
        hop_limit: 255,
    };
    let ethernet = EthernetRepr { src_addr: hardware, dst_addr: ALL_NODES_HARDWARE, ethertype: EthernetProtocol::Ipv6 };
    let mut frame = vec![0; ethernet.buffer_len() + ip.buffer_len() + icmp.buffer_len()];
    let (header, body) = frame.split_at_mut(ethernet.buffer_len());
    ethernet.emit(&mut EthernetFrame::new_unchecked(header));
    let (header, body) = body.split_at_mut(ip.buffer_len());
    ip.emit(&mut Ipv6Packet::new_unchecked(header));
    icmp.emit(&address, &ALL_NODES, &mut Icmpv6Packet::new_unchecked(body), &ChecksumCapabilities::default());
    frame
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HARDWARE: EthernetAddress = EthernetAddress([0x02, 0xfc, 0, 0, 0, 0x0a]);

    /// Joins the bytes of a packet, given in the order of the RFC.
    fn bytes(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn arp_announces_in_both_forms() {
        let own = [0x02, 0xfc, 0, 0, 0, 0x0a];
        let address = [10, 0, 9, 10];
        let before = [&[0xff; 6][..], &own, &[0x08, 0x06], &[0, 1, 8, 0, 6, 4]].concat();
        assert_eq!(
            arp(HARDWARE, Ipv4Addr::new(10, 0, 9, 10)),
            [
                bytes(&[&before, &[0, 1], &own, &address, &[0; 6], &address]),
                bytes(&[&before, &[0, 2], &own, &address, &own, &address]),
            ]
        );
    }

    #[test]
    fn advertisement_has_the_override_and_router_flags() {
        let own = [0x02, 0xfc, 0, 0, 0, 0x0a];
        let address: Ipv6Addr = "fd00::9:10".parse().unwrap();
        let all_nodes = [0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        for (router, flags) in [(false, 0x20), (true, 0xa0)] {
            let body =
                |checksum: [u8; 2]| bytes(&[&[136, 0], &checksum, &[flags, 0, 0, 0], &address.octets(), &[2, 1], &own]);
            // RFC 4443, 2.3: the checksum covers a pseudo-header and the body with a checksum of zero.
            let summed = bytes(&[&address.octets(), &all_nodes, &[0, 0, 0, 32], &[0, 0, 0, 58], &body([0, 0])]);
            let sum: u32 = summed.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
            let expected = bytes(&[
                &[0x33, 0x33, 0, 0, 0, 1],
                &own,
                &[0x86, 0xdd],
                &[0x60, 0, 0, 0, 0, 32, 58, 255],
                &address.octets(),
                &all_nodes,
                &body(checksum.to_be_bytes()),
            ]);
            assert_eq!(neighbour_advertisement(HARDWARE, address, router), expected, "router: {router}");
        }
    }
}
