//! Checks that only the holder of an address answers ARP for it.
//!
//! In IPVS mode, kube-proxy puts the addresses of all Services on its own interface `kube-ipvs0` on every node. Linux
//! answers ARP for any of its addresses, on any interface, so every node would answer for every external address.
//! With `strictARP: true`, kube-proxy changes the two settings that prevent that. (An IPv6 address is answered for only
//! on its own interface.)

use std::io::ErrorKind;
use std::path::Path;
use std::{fmt, fs};

use super::interface::{Error, Result};

const SETTINGS: &str = "/proc/sys/net/ipv4/conf";
/// The interface on which kube-proxy in IPVS mode has the addresses of Services.
const IPVS: &str = "kube-ipvs0";
/// The lowest strict values of `arp_ignore` and `arp_announce`.
const STRICT: (u8, u8) = (1, 2);

/// kube-proxy runs in IPVS mode without strict ARP, so every node answers ARP for every address of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LenientArp {
    pub arp_ignore: u8,
    pub arp_announce: u8,
}

impl fmt::Display for LenientArp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arp_ignore, arp_announce } = self;
        write!(
            f,
            "kube-proxy runs in IPVS mode without strictARP (arp_ignore is {arp_ignore}, at least {} is needed; \
             arp_announce is {arp_announce}, {} is needed): every node answers ARP for every external address. \
             Set ipvs.strictARP in kube-proxy's configuration",
            STRICT.0, STRICT.1
        )
    }
}

/// The settings of ARP on the interface if they are not strict; `None` if they are, or if kube-proxy does not run in
/// IPVS mode.
pub fn lenient_arp(interface: &str) -> Result<Option<LenientArp>> {
    lenient(Path::new(SETTINGS), interface)
}

fn lenient(settings: &Path, interface: &str) -> Result<Option<LenientArp>> {
    if !settings.join(IPVS).exists() {
        return Ok(None);
    }
    // The kernel applies the higher value of `all` and the interface.
    let read = |name: &str| -> Result<u8> {
        let of = |scope: &str| number(&settings.join(scope).join(name));
        Ok(of("all")?.unwrap_or_default().max(of(interface)?.unwrap_or_default()))
    };
    let lenient = LenientArp { arp_ignore: read("arp_ignore")?, arp_announce: read("arp_announce")? };
    let strict = lenient.arp_ignore >= STRICT.0 && lenient.arp_announce >= STRICT.1;
    Ok((!strict).then_some(lenient))
}

fn number(path: &Path) -> Result<Option<u8>> {
    let unreadable = |reason: String| Error::other(format!("can't read {}: {reason}", path.display()));
    match fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| unreadable(format!("{:?} is not a number", text.trim()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_ipvs_without_strict_arp_is_lenient() {
        let some = |arp_ignore, arp_announce| Some(LenientArp { arp_ignore, arp_announce });
        struct Case {
            name: &'static str,
            ipvs: bool,
            /// `arp_ignore` and `arp_announce` of `all`.
            all: (u8, u8),
            /// `arp_ignore` and `arp_announce` of the interface.
            own: (u8, u8),
            expected: Option<LenientArp>,
        }
        let cases = [
            Case { name: "not IPVS", ipvs: false, all: (0, 0), own: (0, 0), expected: None },
            Case { name: "IPVS with the defaults", ipvs: true, all: (0, 0), own: (0, 0), expected: some(0, 0) },
            Case { name: "strictARP", ipvs: true, all: (1, 2), own: (0, 0), expected: None },
            Case { name: "strict only on the interface", ipvs: true, all: (0, 0), own: (1, 2), expected: None },
            Case { name: "one setting on each scope", ipvs: true, all: (1, 0), own: (0, 2), expected: None },
            Case { name: "stricter than strictARP", ipvs: true, all: (2, 2), own: (0, 0), expected: None },
            Case { name: "arp_announce not strict", ipvs: true, all: (1, 1), own: (0, 0), expected: some(1, 1) },
            Case { name: "arp_ignore not strict", ipvs: true, all: (0, 2), own: (0, 0), expected: some(0, 2) },
        ];
        for Case { name, ipvs, all, own, expected } in cases {
            let settings = tempfile::tempdir().unwrap();
            for (scope, (ignore, announce)) in [("all", all), ("eth0", own)] {
                fs::create_dir(settings.path().join(scope)).unwrap();
                fs::write(settings.path().join(scope).join("arp_ignore"), format!("{ignore}\n")).unwrap();
                fs::write(settings.path().join(scope).join("arp_announce"), format!("{announce}\n")).unwrap();
            }
            if ipvs {
                fs::create_dir(settings.path().join(IPVS)).unwrap();
            }
            assert_eq!(lenient(settings.path(), "eth0").unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn warning_names_the_setting_to_change() {
        assert_eq!(
            LenientArp { arp_ignore: 0, arp_announce: 1 }.to_string(),
            "kube-proxy runs in IPVS mode without strictARP (arp_ignore is 0, at least 1 is needed; arp_announce is 1, \
             2 is needed): every node answers ARP for every external address. \
             Set ipvs.strictARP in kube-proxy's configuration"
        );
    }
}
