//! Finds out which hosts answer ARP requests, repeatedly, from the client: a process in the network namespace of the
//! client, and its results.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, sendto, socket,
};
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr};

use super::PROBE;

/// The time between two requests for the same address.
const PERIOD: Duration = Duration::from_millis(50);

/// A process that sends ARP requests and records the answers.
pub struct Probe {
    child: Child,
}

/// The answers to one ARP request: the milliseconds since the begin, and the hardware addresses.
pub struct Answers {
    pub after: u64,
    pub from: BTreeSet<String>,
}

impl Probe {
    /// Sends ARP requests for these addresses from a network namespace, until [`Self::end`].
    pub fn start(namespace: &str, addresses: &[IpAddr]) -> Self {
        let child = Command::new("ip")
            .args(["netns", "exec", namespace])
            .arg(std::env::current_exe().unwrap())
            .args([PROBE, "10.0.9.200"])
            .args(addresses.iter().map(ToString::to_string))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    /// Stops the process, and returns the answers to each request for each address.
    pub fn end(mut self) -> BTreeMap<IpAddr, Vec<Answers>> {
        self.child.kill().unwrap();
        let mut all: BTreeMap<IpAddr, BTreeMap<u64, Answers>> = BTreeMap::new();
        for line in BufReader::new(self.child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            // The last line may be incomplete.
            let [after, number, address, hardware] = words[..] else { continue };
            let answers = all.entry(address.parse().unwrap()).or_default();
            let after = after.parse().unwrap();
            let answers =
                answers.entry(number.parse().unwrap()).or_insert_with(|| Answers { after, from: BTreeSet::new() });
            answers.from.insert(hardware.to_owned());
        }
        self.child.wait().unwrap();
        all.into_iter().map(|(address, answers)| (address, answers.into_values().collect())).collect()
    }
}

/// Sends ARP requests for these addresses on `eth0` until it is killed. Prints a line for each answer: the milliseconds
/// since the begin, the number of the request, the address and the hardware address.
pub fn ask(own: Ipv4Addr, addresses: &[Ipv4Addr]) {
    let link = getifaddrs().unwrap().find_map(|interface| {
        let link = interface.address?.as_link_addr().copied()?;
        (interface.interface_name == "eth0").then_some(link)
    });
    let link: LinkAddr = link.unwrap();
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let packets = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).unwrap();
    bind(packets.as_raw_fd(), &link).unwrap();
    let hardware = EthernetAddress(link.addr().unwrap());
    let (begin, mut out) = (Instant::now(), std::io::stdout().lock());
    let mut asked: BTreeMap<Ipv4Addr, u64> = BTreeMap::new();
    loop {
        for address in addresses {
            *asked.entry(*address).or_default() += 1;
            let frame = question(hardware, own, *address);
            // A frame is lost while the interface is down.
            let _ = sendto(packets.as_raw_fd(), &frame, &link, MsgFlags::empty());
        }
        sleep(PERIOD);
        let mut frame = [0; 1_600];
        while let Ok(length) = recv(packets.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            if let Some((address, hardware)) = answer(&frame[..length], own)
                && let Some(number) = asked.get(&address)
            {
                writeln!(out, "{} {number} {address} {hardware}", begin.elapsed().as_millis()).unwrap();
            }
        }
        out.flush().unwrap();
    }
}

fn question(hardware: EthernetAddress, own: Ipv4Addr, address: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: hardware,
        source_protocol_addr: own,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: address,
    };
    let ethernet =
        EthernetRepr { src_addr: hardware, dst_addr: EthernetAddress::BROADCAST, ethertype: EthernetProtocol::Arp };
    let mut frame = vec![0; ethernet.buffer_len() + arp.buffer_len()];
    let mut whole = EthernetFrame::new_unchecked(&mut frame[..]);
    ethernet.emit(&mut whole);
    arp.emit(&mut ArpPacket::new_unchecked(whole.payload_mut()));
    frame
}

/// The address and the hardware address of an ARP reply to us.
fn answer(frame: &[u8], own: Ipv4Addr) -> Option<(Ipv4Addr, EthernetAddress)> {
    let ethernet = EthernetFrame::new_checked(frame).ok().filter(|frame| frame.ethertype() == EthernetProtocol::Arp)?;
    match ArpRepr::parse(&ArpPacket::new_checked(ethernet.payload()).ok()?).ok()? {
        ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        } if target_protocol_addr == own => Some((source_protocol_addr, source_hardware_addr)),
        _ => None,
    }
}
