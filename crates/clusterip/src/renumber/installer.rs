//! Which program installed a cluster, and the steps of an administrator that depend on it.

use std::net::IpAddr;

use askama::Template;
use clusterip_moves::renumbering::change::Change;
use ipnet::IpNet;

use crate::text::joined;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installer {
    Kubeadm,
    K3s,
    Rke2,
    Unknown,
}

impl Installer {
    pub fn of(version: &str, has_kubeadm_config: bool) -> Self {
        match () {
            () if version.contains("+k3s") => Self::K3s,
            () if version.contains("+rke2") => Self::Rke2,
            () if has_kubeadm_config => Self::Kubeadm,
            () => Self::Unknown,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubeadm => "kubeadm",
            Self::K3s => "K3s",
            Self::Rke2 => "RKE2",
            Self::Unknown => "unknown",
        }
    }

    /// The steps between `begin` and `finish`, in order. `ranges` are those of the cluster afterwards, `dns` the new
    /// address of the cluster's DNS, if it changes.
    pub fn steps(self, change: &Change, ranges: &[IpNet], dns: &str) -> anyhow::Result<Vec<String>> {
        let (old, new): (Vec<IpAddr>, Vec<IpAddr>) = change.firsts().unzip();
        let (old, new, ranges) = (joined(old, ","), joined(new, ","), joined(ranges, ","));
        let dns = if dns.is_empty() { "NEW_DNS_ADDRESS" } else { dns };
        let file = format!("/etc/rancher/{}/config.yaml", self.as_str().to_lowercase());
        let steps = Steps { installer: self, old, new, ranges, dns, file }.render()?;
        Ok(steps.lines().map(str::to_owned).collect())
    }
}

/// One step in each line.
#[derive(Template)]
#[template(path = "renumber-steps.txt", escape = "none")]
struct Steps<'s> {
    installer: Installer,
    /// The addresses of `default/kubernetes`.
    old: String,
    new: String,
    ranges: String,
    dns: &'s str,
    /// The configuration of K3s and RKE2.
    file: String,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn installer_is_known_by_what_it_leaves_in_the_cluster() {
        struct Case {
            version: &'static str,
            kubeadm: bool,
            expected: Installer,
        }
        let case = |version, kubeadm, expected| Case { version, kubeadm, expected };
        for Case { version, kubeadm, expected } in [
            case("v1.36.3", true, Installer::Kubeadm),
            case("v1.36.3", false, Installer::Unknown),
            case("v1.36.3+k3s1", false, Installer::K3s),
            case("v1.36.3+rke2r1", false, Installer::Rke2),
        ] {
            assert_eq!(Installer::of(version, kubeadm), expected, "{version} {kubeadm}");
        }
    }

    #[test]
    fn steps_name_the_files_flags_and_addresses_of_the_cluster() {
        let range = |range: &str| [range.parse::<IpNet>().unwrap()];
        let change = Change::new(&range("10.96.0.0/16"), &range("10.100.0.0/16")).unwrap();
        let steps = |installer: Installer| installer.steps(&change, &range("10.100.0.0/16"), "10.100.0.10").unwrap();
        assert_eq!(
            steps(Installer::Rke2),
            [
                "on each server: add 10.96.0.1 and 10.100.0.1 to tls-san in /etc/rancher/rke2/config.yaml, and restart \
                 the server",
                "on each server: set service-cidr to 10.100.0.0/16 and cluster-dns to 10.100.0.10 in \
                 /etc/rancher/rke2/config.yaml, add shutdown-delay-duration=5s to kube-apiserver-arg, so that later \
                 restarts of API servers interrupt no client at the old address, and restart the server: one \
                 control-plane node after the other, and wait until its API server is ready again; RKE2 itself does \
                 not support this change",
                "clusterip renumber switch",
                "on each agent: restart the agent, so that its kubelet gets the new DNS address",
                "clusterip renumber finish: it lists the Pods that know old addresses",
                "restart these Pods",
                "clusterip renumber finish",
            ]
        );
        // K3s ends with its API server, which has no time for a delay.
        assert_eq!(
            steps(Installer::K3s)[1],
            "on each server: set service-cidr to 10.100.0.0/16 and cluster-dns to 10.100.0.10 in \
             /etc/rancher/k3s/config.yaml, and restart the server: one control-plane node after the other, and wait \
             until its API server is ready again; K3s itself does not support this change"
        );
        assert_eq!(
            steps(Installer::Unknown),
            [
                "add 10.100.0.1 to the serving certificate of each API server, and keep 10.96.0.1",
                "set --service-cluster-ip-range=10.100.0.0/16 for each kube-apiserver and kube-controller-manager, and \
                 --shutdown-delay-duration=5s for the API servers, so that later restarts of API servers interrupt no \
                 client at the old address: one control-plane node after the other, and wait until its API server is \
                 ready again",
                "clusterip renumber switch",
                "set clusterDNS of each kubelet to 10.100.0.10, and restart the kubelet",
                "clusterip renumber finish: it lists the Pods that know old addresses",
                "restart these Pods",
                "clusterip renumber finish",
            ]
        );
    }
}
