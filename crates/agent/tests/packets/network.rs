//! Hosts on one bridge, each in its own network namespace.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::INSIDE;

/// What network namespaces need and this machine lacks.
pub fn lacking() -> Option<&'static str> {
    let works = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !works("ip", &["-Version"]) {
        return Some("ip: sudo apt-get install iproute2");
    }
    if !works("nft", &["--version"]) {
        return Some("nft: sudo apt-get install nftables");
    }
    let name = format!("cip-{}-try", id());
    if !works("ip", &["netns", "add", &name]) {
        return Some("to be root, with CAP_SYS_ADMIN and CAP_NET_ADMIN");
    }
    let worked = works("ip", &["netns", "exec", &name, "nft", "add", "table", "inet", "try"]);
    works("ip", &["netns", "delete", &name]);
    (!worked).then_some("nftables in the kernel")
}

/// Runs a program and returns its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Waits until `wanted` accepts the value of `seen`; panics after 30 seconds.
pub fn until<T: std::fmt::Debug>(what: &str, mut seen: impl FnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let began = Instant::now();
    loop {
        let value = seen();
        if wanted(&value) {
            return value;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "not within 30 s: {what}; last seen {value:?}");
        sleep(Duration::from_millis(50));
    }
}

/// A network namespace, which is deleted when this value is dropped.
pub struct Namespace(pub String);

impl Namespace {
    fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("cip-{}-{}-{name}", id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        run("ip", &["netns", "add", &name]);
        let namespace = Self(name);
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, arguments: &str) -> String {
        run("ip", &[&["-netns", &self.0][..], &arguments.split(' ').collect::<Vec<_>>()].concat())
    }

    /// Changes a kernel setting of the namespace: a path below /proc/sys.
    pub fn set(&self, setting: &str, value: &str) {
        self.exec(&["sh", "-c", &format!("echo '{value}' > /proc/sys/{setting}")]);
    }

    /// Runs another program in the namespace.
    pub fn exec(&self, command: &[&str]) -> String {
        run("ip", &[&["netns", "exec", &self.0][..], command].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A test may have failed already: do not panic again.
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// A host: a namespace with `eth0` on the bridge, 10.0.9.N/24 and fd00:9::N/64.
pub struct Host {
    pub namespace: Namespace,
    pub number: u8,
}

impl Host {
    pub fn hardware(&self) -> String {
        format!("02:00:00:00:09:{:02x}", self.number)
    }

    /// Starts this program inside of the host, with all capabilities.
    pub fn inside(&self) -> Inside {
        self.inside_as(&[])
    }

    /// Starts this program inside of the host by another program, such as `setpriv`.
    pub fn inside_as(&self, starter: &[&str]) -> Inside {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.namespace.0])
            .args(starter)
            .arg(std::env::current_exe().unwrap())
            .arg(INSIDE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Inside { child, input, output }
    }

    /// The addresses of `eth0` except its link-local one, without their remaining lifetimes.
    pub fn addresses(&self) -> Vec<String> {
        let told = self.namespace.ip("-oneline address show dev eth0");
        let lines = told.lines().filter(|line| !line.contains("inet6 fe80:"));
        let line = |line: &str| line.split_once("eth0").unwrap().1.split('\\').next().unwrap().trim().to_owned();
        lines.map(line).collect()
    }

    /// The hardware address that the host knows for another address, in any state of the entry; followed by ` router`
    /// if the host takes the neighbour for a router.
    pub fn neighbour(&self, address: &str) -> Option<String> {
        let told = self.namespace.ip(&format!("neighbour show {address} dev eth0"));
        let mut words = told.split_whitespace().skip_while(|word| *word != "lladdr").skip(1);
        let hardware = words.next()?;
        Some(if words.next() == Some("router") { format!("{hardware} router") } else { hardware.to_owned() })
    }
}

/// Hosts on one bridge.
pub struct Network {
    /// A host that holds no addresses.
    pub client: Host,
    /// 10.0.9.1, 10.0.9.2 and so on.
    pub nodes: Vec<Host>,
    bridge: Namespace,
}

impl Network {
    pub fn new(nodes: u8) -> Self {
        let bridge = Namespace::new("bridge");
        bridge.ip("link add bridge type bridge mcast_snooping 0");
        bridge.ip("link set bridge up");
        let host = |name: &str, number: u8| {
            let host = Host { namespace: Namespace::new(name), number };
            plug(&bridge, name, &host);
            host
        };
        Self {
            client: host("client", 200),
            nodes: (1..=nodes).map(|number| host(&format!("node-{number}"), number)).collect(),
            bridge,
        }
    }

    /// Sets the other end of a node's interface down, like pulling the cable.
    pub fn unplug(&self, node: usize) {
        self.bridge.ip(&format!("link set node-{} down", node + 1));
    }

    /// Reverts [`Self::unplug`].
    pub fn plug_in(&self, node: usize) {
        self.bridge.ip(&format!("link set node-{} up", node + 1));
    }

    /// Deletes the interface of a node and creates it again, without its addresses.
    pub fn plug_anew(&self, node: usize) {
        self.bridge.ip(&format!("link delete node-{}", node + 1));
        plug(&self.bridge, &format!("node-{}", node + 1), &self.nodes[node]);
    }
}

/// Connects a host to the bridge.
fn plug(bridge: &Namespace, name: &str, host: &Host) {
    let (end, hardware, number) = (&host.namespace, host.hardware(), host.number);
    bridge.ip(&format!("link add {name} type veth peer name eth0 netns {} address {hardware}", end.0));
    bridge.ip(&format!("link set {name} master bridge up"));
    end.ip("link set eth0 up");
    end.ip(&format!("address add 10.0.9.{number}/24 dev eth0"));
    end.ip(&format!("address add fd00:9::{number}/64 dev eth0 nodad"));
}

/// This program inside of a host. It is killed when this value is dropped.
pub struct Inside {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Inside {
    /// The answer to a command.
    pub fn ask(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command and compares the answer.
    #[track_caller]
    pub fn expect(&mut self, command: &str, answer: &str) {
        assert_eq!(self.ask(command), answer, "{command}");
    }

    /// Kills the program with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
