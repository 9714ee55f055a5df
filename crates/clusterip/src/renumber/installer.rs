//! Which program installed a cluster, and the steps of an administrator that depend on it.

use std::net::IpAddr;

use clusterip_moves::renumbering::change::Change;
use ipnet::IpNet;

use crate::text::joined;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installer {
    Kubeadm,
    K3s,
    Rke2,
    OpenShift,
    Unknown,
}

impl Installer {
    pub fn of(version: &str, groups: &[String], has_kubeadm_config: bool) -> Self {
        match () {
            () if groups.iter().any(|group| group == "config.openshift.io") => Self::OpenShift,
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
            Self::OpenShift => "OpenShift",
            Self::Unknown => "unknown",
        }
    }

    /// The steps between `begin` and `finish`, in order. `ranges` are those of the cluster afterwards, `dns` the old
    /// and the new addresses of the cluster's DNS.
    pub fn steps(self, change: &Change, ranges: &[IpNet], dns: &[(IpAddr, IpAddr)]) -> Vec<String> {
        let firsts: Vec<(IpAddr, IpAddr)> = change.firsts().collect();
        let (old, new) = (joined(firsts.iter().map(|it| it.0), ","), joined(firsts.iter().map(|it| it.1), ","));
        let ranges = joined(ranges, ",");
        let dns = match dns {
            [] => "NEW_DNS_ADDRESS".to_owned(),
            dns => joined(dns.iter().map(|it| it.1), ","),
        };
        let switch = || "clusterip renumber switch".to_owned();
        let restart = "one control-plane node after the other, and wait until its API server is ready again";
        let file = match self {
            Self::K3s => "/etc/rancher/k3s/config.yaml",
            Self::Rke2 => "/etc/rancher/rke2/config.yaml",
            _ => "",
        };
        match self {
            Self::Kubeadm => vec![
                format!(
                    "kubectl -n kube-system edit configmap kubeadm-config: set networking.serviceSubnet to {ranges}, \
                     and add {old} and {new} to apiServer.certSANs"
                ),
                format!(
                    "on each control-plane node: kubectl -n kube-system get configmap kubeadm-config -o \
                     jsonpath='{{.data.ClusterConfiguration}}' >kubeadm.yaml; mv \
                     /etc/kubernetes/pki/apiserver.{{crt,key}} /root/; kubeadm init phase certs apiserver --config \
                     kubeadm.yaml"
                ),
                format!(
                    "in /etc/kubernetes/manifests/kube-apiserver.yaml and kube-controller-manager.yaml: set \
                     --service-cluster-ip-range={ranges}: {restart}"
                ),
                switch(),
                format!("kubectl -n kube-system edit configmap kubelet-config: set clusterDNS to {dns}"),
                format!(
                    "on each node: set clusterDNS to {dns} in /var/lib/kubelet/config.yaml; systemctl restart kubelet"
                ),
            ],
            Self::K3s | Self::Rke2 => vec![
                format!("on each server: add {old} and {new} to tls-san in {file}, and restart the server"),
                format!(
                    "on each server: set service-cidr to {ranges} and cluster-dns to {dns} in {file}, and restart the \
                     server: {restart}; {} itself does not support this change",
                    self.as_str()
                ),
                switch(),
                "on each agent: restart the agent, so that its kubelet gets the new DNS address".to_owned(),
            ],
            Self::OpenShift | Self::Unknown => vec![
                format!("add {new} to the serving certificate of each API server, and keep {old}"),
                format!(
                    "set --service-cluster-ip-range={ranges} for each kube-apiserver and kube-controller-manager: \
                     {restart}"
                ),
                switch(),
                format!("set clusterDNS of each kubelet to {dns}, and restart the kubelet"),
            ],
        }
        .into_iter()
        .chain([
            "restart the Pods that are older than the previous steps".to_owned(),
            "clusterip renumber finish".to_owned(),
        ])
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installer_is_known_by_what_it_leaves_in_the_cluster() {
        struct Case {
            version: &'static str,
            group: &'static str,
            kubeadm: bool,
            expected: Installer,
        }
        let case = |version, group, kubeadm, expected| Case { version, group, kubeadm, expected };
        for Case { version, group, kubeadm, expected } in [
            case("v1.36.3", "apps", true, Installer::Kubeadm),
            case("v1.36.3", "apps", false, Installer::Unknown),
            case("v1.36.3+k3s1", "helm.cattle.io", false, Installer::K3s),
            case("v1.36.3+rke2r1", "helm.cattle.io", false, Installer::Rke2),
            case("v1.36.3", "config.openshift.io", false, Installer::OpenShift),
        ] {
            assert_eq!(Installer::of(version, &[group.to_owned()], kubeadm), expected, "{version} {group}");
        }
    }
}
