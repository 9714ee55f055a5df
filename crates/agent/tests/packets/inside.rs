//! The commands that the tests run inside of a host: one command a line, one line of answer each.

use std::collections::BTreeMap;
use std::io::{Read, Write, stdin};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clusterip_agent::node_network::firewall::{self, PortRange, ranges};
use clusterip_agent::node_network::{Announcer, Interface, lenient_arp};
use clusterip_failover::assignments::{Port, Protocol};
use futures::{StreamExt, TryStreamExt, stream};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, socket};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

/// Runs commands until the input ends.
pub fn run_commands() {
    let mut inside = Inside {
        runtime: Builder::new_current_thread().enable_all().build().unwrap(),
        interface: None,
        announcer: None,
        connection: None,
        flooding: Arc::default(),
        received: BTreeMap::new(),
    };
    for line in stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        println!("{}", inside.answer(&words).unwrap_or_else(|error| format!("error: {error}")));
    }
}

struct Inside {
    runtime: Runtime,
    interface: Option<Interface>,
    announcer: Option<Announcer>,
    connection: Option<TcpStream>,
    flooding: Arc<AtomicBool>,
    received: BTreeMap<u16, Arc<AtomicU64>>,
}

impl Inside {
    fn answer(&mut self, words: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
        let block_on = &self.runtime;
        let interface = || self.interface.as_ref().unwrap();
        Ok(match *words {
            ["find"] => {
                self.interface = Some(block_on.block_on(Interface::find(None))?);
                self.interface.as_ref().unwrap().name.clone()
            }
            ["find", name] => {
                self.interface = Some(block_on.block_on(Interface::find(Some(name)))?);
                self.interface.as_ref().unwrap().name.clone()
            }
            ["hold", address, milliseconds] => {
                let until = Instant::now() + Duration::from_millis(milliseconds.parse()?);
                match block_on.block_on(interface().hold(address.parse()?, until))? {
                    true => "added".to_owned(),
                    false => "renewed".to_owned(),
                }
            }
            ["release", address] => {
                block_on.block_on(interface().release(address.parse()?))?;
                "released".to_owned()
            }
            // Holds or releases so many addresses of both families, as many at once as an agent.
            ["many", step, count] => {
                let address = |number: u32| match number % 2 {
                    0 => IpAddr::from((0x0a01_0000 + number).to_be_bytes()),
                    _ => IpAddr::from((0xfd01 << 112 | u128::from(number)).to_be_bytes()),
                };
                let until = Instant::now() + Duration::from_secs(600);
                let steps = (0..count.parse()?).map(address).map(|address| async move {
                    Ok::<_, anyhow::Error>(match step {
                        "hold" if interface().hold(address, until).await? => "added",
                        "hold" => "renewed",
                        _ => interface().release(address).await.map(|()| "released")?,
                    })
                });
                let mut done: Vec<_> = block_on.block_on(stream::iter(steps).buffer_unordered(16).try_collect())?;
                done.dedup();
                format!("{done:?}")
            }
            ["held"] => format!("{:?}", block_on.block_on(interface().held())?),
            ["announce", address] => {
                if self.announcer.is_none() {
                    self.announcer = Some(Announcer::open()?);
                }
                self.announcer.as_ref().unwrap().announce(interface(), address.parse()?)?;
                "announced".to_owned()
            }
            ["lenient-arp"] => lenient_arp("eth0")?.unwrap_or("strict enough".to_owned()),
            ["firewall", ref held @ ..] => {
                let held = held.iter().map(|held| ports(held)).collect();
                block_on.block_on(firewall::write(&held))?;
                "written".to_owned()
            }
            ["remove"] => {
                block_on.block_on(firewall::remove())?;
                "removed".to_owned()
            }
            ["listen", port] => {
                let port = port.parse()?;
                let received = self.received.entry(port).or_default();
                listen(port, Arc::clone(received))?;
                "listening".to_owned()
            }
            ["received", port] => self.received[&port.parse()?].load(Ordering::Relaxed).to_string(),
            ["tcp", address, port, seconds] => {
                let to = SocketAddr::new(address.parse()?, port.parse()?);
                match TcpStream::connect_timeout(&to, Duration::from_secs(seconds.parse()?)) {
                    Ok(connection) => echoed(self.connection.insert(connection)),
                    Err(error) => format!("{:?}", error.kind()),
                }
            }
            // Returns the first line of the HTTP response.
            ["http", address, port, path] => {
                let to = SocketAddr::new(address.parse()?, port.parse()?);
                let mut connection = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
                connection.set_read_timeout(Some(Duration::from_secs(5)))?;
                write!(connection, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
                let mut answer = Vec::new();
                connection.read_to_end(&mut answer)?;
                String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
            }
            // Connects from this own address.
            ["from", source, address, port] => {
                let (source, to) =
                    (SocketAddr::new(source.parse()?, 0), SocketAddr::new(address.parse()?, port.parse()?));
                echoed(self.connection.insert(connect_from(source, to)?))
            }
            // Uses the last connection again.
            ["again"] => echoed(self.connection.as_mut().unwrap()),
            ["close"] => {
                self.connection = None;
                "closed".to_owned()
            }
            ["ping", address] => ping(address.parse()?)?,
            ["udp", address, port] => {
                let to = SocketAddr::new(address.parse()?, port.parse()?);
                UdpSocket::bind(("::", 0))?.send_to(b"ping", v6(to))?;
                "sent".to_owned()
            }
            // Sends datagrams to all these ports until `calm`.
            ["flood", address, ref ports @ ..] => {
                let address: IpAddr = address.parse()?;
                let ports: Vec<u16> = ports.iter().map(|port| port.parse()).collect::<Result<_, _>>()?;
                let socket = UdpSocket::bind(("::", 0))?;
                self.flooding.store(true, Ordering::Relaxed);
                let flooding = Arc::clone(&self.flooding);
                thread::spawn(move || {
                    while flooding.load(Ordering::Relaxed) {
                        for port in &ports {
                            // A datagram that can't be sent is not received either.
                            let _ = socket.send_to(b"ping", v6(SocketAddr::new(address, *port)));
                        }
                    }
                });
                "flooding".to_owned()
            }
            ["calm"] => {
                self.flooding.store(false, Ordering::Relaxed);
                "calm".to_owned()
            }
            _ => return Err(format!("what is {words:?}?").into()),
        })
    }
}

/// Parses `ADDRESS=tcp/80,udp/53`, `ADDRESS=` for no ports, or `ADDRESS` for one that is no longer filtered.
fn ports(text: &str) -> (IpAddr, Option<Vec<PortRange>>) {
    let Some((address, ports)) = text.split_once('=') else { return (text.parse().unwrap(), None) };
    let port = |text: &str| {
        let (protocol, number) = text.split_once('/').unwrap();
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            other => panic!("{other}"),
        };
        (protocol, number.parse().unwrap())
    };
    let ports: Vec<Port> = ports.split(',').filter(|port| !port.is_empty()).map(port).collect();
    (address.parse().unwrap(), Some(ranges(&ports)))
}

/// The address for a socket of both families.
fn v6(to: SocketAddr) -> SocketAddr {
    let address = match to.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    SocketAddr::new(address.into(), to.port())
}

/// A connection from this address.
fn connect_from(source: SocketAddr, to: SocketAddr) -> nix::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::empty(), None)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(source))?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(socket.into())
}

/// Echoes TCP, and counts UDP datagrams, of both families.
fn listen(port: u16, received: Arc<AtomicU64>) -> std::io::Result<()> {
    let any = (Ipv6Addr::UNSPECIFIED, port);
    let tcp = TcpListener::bind(any)?;
    thread::spawn(move || {
        for connection in tcp.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut &connection, &mut &connection));
        }
    });
    let udp = UdpSocket::bind(any)?;
    thread::spawn(move || {
        while udp.recv_from(&mut [0; 16]).is_ok() {
            received.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// The answer to an echo request.
fn ping(address: IpAddr) -> std::io::Result<String> {
    let (family, protocol, request) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128),
    };
    // The kernel fills in the checksum, and gives this socket only the answers to its own requests.
    let socket = UdpSocket::from(socket(family, SockType::Datagram, SockFlag::empty(), protocol)?);
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    socket.send_to(&[request, 0, 0, 0, 0, 0, 0, 1], (address, 0))?;
    let mut answer = [0; 16];
    let (_, from) = socket.recv_from(&mut answer)?;
    Ok(format!("type {} from {}", answer[0], from.ip()))
}

/// Sends a text over a connection, and checks that it comes back.
fn echoed(connection: &mut TcpStream) -> String {
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut bytes = [0; 4];
    match connection.write_all(b"ping").and_then(|()| connection.read_exact(&mut bytes)) {
        Ok(()) if &bytes == b"ping" => "answered".to_owned(),
        Ok(()) => format!("answered {bytes:?}"),
        Err(error) => format!("{:?}", error.kind()),
    }
}
