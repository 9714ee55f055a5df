//! How neighbours learn that an address is here now.
//!
//! - **IPv4**: two gratuitous ARP packets, to all. The first is the announcement of RFC 5227, a *request*
//!   for the address from the address, with the target hardware address zero. The second is the *reply*
//!   form that RFC 5944 describes (4.6), with the own hardware address as the target's too. There are hosts
//!   and switches that take only requests, and others that take only replies, as news.
//! - **IPv6**: one unsolicited neighbour advertisement (RFC 4861, 7.2.6) to all nodes, with the override
//!   flag, without which a neighbour keeps what it has, and the router flag where the interface forwards:
//!   without it, a neighbour would take a router of its own off its list.
//!
//! Either is sent once a call. Frames get lost: RFC 5227 wants two announcements, RFC 4861 up to three
//! advertisements, seconds apart, so a caller repeats it after a while.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv6Packet,
    Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
};

use crate::error::{Error, Result};
use crate::interface::Interface;

/// Sends announcements, from the network namespace in which it was opened. It is to be kept: to close it
/// takes the kernel milliseconds.
#[derive(Debug)]
pub struct Announcer {
    socket: OwnedFd,
}

impl Announcer {
    /// Opens what announcements are sent by.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW`.
    pub fn open() -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        // Without a protocol it receives nothing, so that it needs nobody who reads.
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)
            .map_err(|reason| Error::NoPackets { reason: reason.into() })?;
        Ok(Self { socket })
    }

    /// Tells all neighbours at once that `address` is at the interface, with the hardware address that it
    /// has now: that of a bond changes.
    ///
    /// # Errors
    /// When the interface is gone, down, or takes no more frames now.
    pub fn announce(&self, interface: &Interface, address: IpAddr) -> Result<()> {
        let refused = |reason: nix::Error| {
            let interface = interface.name().to_owned();
            Error::Announcement { address, interface, reason: reason.into() }
        };
        let link = link(interface).map_err(refused)?.ok_or_else(|| Error::NoInterface(interface.name().to_owned()))?;
        let hardware = EthernetAddress(link.addr().ok_or_else(|| Error::NotEthernet(interface.name().to_owned()))?);
        let frames = match address {
            IpAddr::V4(address) => arp(hardware, address),
            IpAddr::V6(address) => vec![neighbour_advertisement(hardware, address, forwards(interface.name()))],
        };
        for frame in frames {
            sendto(self.socket.as_raw_fd(), &frame, &link, MsgFlags::empty()).map_err(refused)?;
        }
        Ok(())
    }
}

/// Where frames for the interface are sent to, and its hardware address.
fn link(interface: &Interface) -> nix::Result<Option<LinkAddr>> {
    Ok(getifaddrs()?
        .filter_map(|entry| entry.address.as_ref().and_then(|address| address.as_link_addr().copied()))
        .find(|link| u32::try_from(link.ifindex()) == Ok(interface.index())))
}

/// Whether the interface forwards IPv6, and its neighbours may have it as a router.
fn forwards(interface: &str) -> bool {
    fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/forwarding")).is_ok_and(|text| text.trim() != "0")
}

/// The announcement, and its reply form.
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
    /// All nodes of a link, and the hardware address that stands for them.
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    const ALL_NODES_HARDWARE: EthernetAddress = EthernetAddress([0x33, 0x33, 0, 0, 0, 1]);
    let flags = match router {
        true => NdiscNeighborFlags::OVERRIDE | NdiscNeighborFlags::ROUTER,
        false => NdiscNeighborFlags::OVERRIDE,
    };
    let icmp =
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr: address, lladdr: Some(hardware.into()) });
    let ip = Ipv6Repr {
        src_addr: address,
        dst_addr: ALL_NODES,
        next_header: IpProtocol::Icmpv6,
        payload_len: icmp.buffer_len(),
        // With any other it is not of this link, and dropped.
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

    /// The bytes, as the RFCs have them; those that are alike in a row joined.
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
    fn an_advertisement_overrides_and_tells_of_a_router() {
        let own = [0x02, 0xfc, 0, 0, 0, 0x0a];
        let address: Ipv6Addr = "fd00::9:10".parse().unwrap();
        let all_nodes = [0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        for (router, flags) in [(false, 0x20), (true, 0xa0)] {
            let body =
                |checksum: [u8; 2]| bytes(&[&[136, 0], &checksum, &[flags, 0, 0, 0], &address.octets(), &[2, 1], &own]);
            // RFC 4443, 2.3: over a pseudo-header and the body with a checksum of zero.
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
