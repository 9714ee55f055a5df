//! Checks that only the holder of an address answers ARP for it.
//!
//! In IPVS mode, kube-proxy puts the addresses of all Services on an interface on every node. Linux answers ARP for any of
//! its addresses, on any interface, so every node would answer for every external address. With `strictARP: true`,
//! kube-proxy changes the two settings that prevent that. (An IPv6 address is answered for only on its own interface.)

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Result, anyhow};

const SETTINGS: &str = "/proc/sys/net/ipv4/conf";
/// The interface on which kube-proxy in IPVS mode has the addresses of Services.
const IPVS: &str = "kube-ipvs0";
/// The lowest strict values of `arp_ignore` and `arp_announce`.
const STRICT: (u8, u8) = (1, 2);

/// Why every node answers ARP for every external address, if kube-proxy runs in IPVS mode without strict settings.
pub fn lenient_arp(interface: &str) -> Result<Option<String>> {
    lenient(Path::new(SETTINGS), interface)
}

fn lenient(settings: &Path, interface: &str) -> Result<Option<String>> {
    if !settings.join(IPVS).exists() {
        return Ok(None);
    }
    // The kernel applies the higher value of `all` and the interface.
    let read = |name: &str| -> Result<u8> {
        let of = |scope: &str| number(&settings.join(scope).join(name));
        Ok(of("all")?.unwrap_or_default().max(of(interface)?.unwrap_or_default()))
    };
    let (ignore, announce) = (read("arp_ignore")?, read("arp_announce")?);
    Ok((ignore < STRICT.0 || announce < STRICT.1).then(|| {
        format!(
            "kube-proxy runs in IPVS mode without strictARP (arp_ignore is {ignore}, at least {} is needed; \
             arp_announce is {announce}, {} is needed): every node answers ARP for every external address. \
             Set ipvs.strictARP in kube-proxy's configuration",
            STRICT.0, STRICT.1
        )
    }))
}

fn number(path: &Path) -> Result<Option<u8>> {
    let unreadable = |reason: String| anyhow!("can't read {}: {reason}", path.display());
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
        struct Case {
            name: &'static str,
            ipvs: bool,
            /// `arp_ignore` and `arp_announce` of `all`.
            all: (u8, u8),
            /// `arp_ignore` and `arp_announce` of the interface.
            own: (u8, u8),
            expected: Option<(u8, u8)>,
        }
        let cases = [
            Case { name: "not IPVS", ipvs: false, all: (0, 0), own: (0, 0), expected: None },
            Case { name: "IPVS with the defaults", ipvs: true, all: (0, 0), own: (0, 0), expected: Some((0, 0)) },
            Case { name: "strictARP", ipvs: true, all: (1, 2), own: (0, 0), expected: None },
            Case { name: "strict only on the interface", ipvs: true, all: (0, 0), own: (1, 2), expected: None },
            Case { name: "one setting on each scope", ipvs: true, all: (1, 0), own: (0, 2), expected: None },
            Case { name: "stricter than strictARP", ipvs: true, all: (2, 2), own: (0, 0), expected: None },
            Case { name: "arp_announce not strict", ipvs: true, all: (1, 1), own: (0, 0), expected: Some((1, 1)) },
            Case { name: "arp_ignore not strict", ipvs: true, all: (0, 2), own: (0, 0), expected: Some((0, 2)) },
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
            let expected = expected.map(|(ignore, announce)| {
                format!(
                    "kube-proxy runs in IPVS mode without strictARP (arp_ignore is {ignore}, at least 1 is needed; \
                     arp_announce is {announce}, 2 is needed): every node answers ARP for every external address. \
                     Set ipvs.strictARP in kube-proxy's configuration"
                )
            });
            assert_eq!(lenient(settings.path(), "eth0").unwrap(), expected, "{name}");
        }
    }
}
