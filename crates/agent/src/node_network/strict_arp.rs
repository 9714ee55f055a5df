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
mod tests;
