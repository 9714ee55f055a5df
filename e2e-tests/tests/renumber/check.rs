//! `clusterip renumber check`

use serde_json::{Value, json};

use crate::support::cluster::Place;
use crate::support::command::{self, Ended};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;

async fn check(plane: &ControlPlane, arguments: &[&str]) -> Ended {
    let arguments = [&["renumber", "check"], arguments].concat();
    command::clusterip(plane.folder(), plane.kubeconfig(), &arguments).await
}

/// A cluster like one of kubeadm, in which many objects know addresses of the Service range.
async fn kubeadm_cluster() -> ControlPlane {
    let options = Options { service_ranges: vec!["10.96.0.0/16".to_owned()], ..Options::default() };
    let plane = ControlPlane::start(options);
    plane.install_pools().await;
    let shop = Place { client: plane.client(), namespace: plane.namespace("shop").await };
    for (name, address) in [("idle", [10, 96, 1, 1]), ("cart", [10, 96, 1, 2]), ("hook", [10, 96, 1, 3])] {
        shop.service_at(name, address, json!({}), json!({})).await;
    }
    shop.service_at("db", [10, 96, 1, 4], json!({}), json!({"selector": null})).await;
    shop.service_named("fixed", json!({}), json!({"clusterIP": "10.96.1.5"})).await;
    let in_range = |name: &str, namespace: &str, kind: &str, version: &str, more: Value| {
        let mut object = json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": name, "namespace": namespace}});
        json_patch::merge(&mut object, &more);
        object
    };
    let ready = |service: &str| {
        json!({"metadata": {"labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true}}], "ports": [{"port": 80}]})
    };
    let kubeadm = "kind: ClusterConfiguration\nnetworking: {serviceSubnet: 10.96.0.0/16}\n";
    let env = json!([{"name": "DB", "value": "tcp://10.96.1.4:5432"}]);
    let client_config = json!({"url": "https://10.96.1.2:443/check"});
    let webhook = |name: &str, client_config: Value| {
        json!({"webhooks": [{"name": name, "clientConfig": client_config, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
            "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["none"],
                "operations": ["CREATE"]}]}]})
    };
    let validating = "ValidatingWebhookConfiguration";
    let admission = "admissionregistration.k8s.io/v1";
    let objects = [
        in_range("cart", "shop", "EndpointSlice", "discovery.k8s.io/v1", ready("cart")),
        in_range("db", "shop", "EndpointSlice", "discovery.k8s.io/v1", ready("db")),
        in_range(
            "kubeadm-config",
            "kube-system",
            "ConfigMap",
            "v1",
            json!({"data": {"ClusterConfiguration": kubeadm}}),
        ),
        in_range(
            "coredns",
            "kube-system",
            "ConfigMap",
            "v1",
            json!({"data": {"Corefile": ".:53 {\n    kubernetes \
            cluster.local {\n        ttl 30\n    }\n    cache 30\n    forward . 10.96.7.7\n}\n"}}),
        ),
        in_range(
            "kube-dns",
            "kube-system",
            "Service",
            "v1",
            json!({"metadata": {"labels": {"k8s-app": "kube-dns"}},
            "spec": {"clusterIP": "10.96.0.10", "selector": {"k8s-app": "kube-dns"},
                "ports": [{"port": 53, "protocol": "UDP"}]}}),
        ),
        in_range(
            "client",
            "shop",
            "Pod",
            "v1",
            json!({"spec": {"automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "registry.example.com/main", "env": env}]}}),
        ),
        in_range(
            "db-only",
            "shop",
            "NetworkPolicy",
            "networking.k8s.io/v1",
            json!({"spec": {"podSelector": {},
            "egress": [{"to": [{"ipBlock": {"cidr": "10.96.1.4/32"}}]}], "policyTypes": ["Egress"]}}),
        ),
        in_range("by-address", "", validating, admission, webhook("a.example.com", client_config)),
        in_range(
            "by-name",
            "",
            validating,
            admission,
            webhook("b.example.com", json!({"service": {"namespace": "shop", "name": "hook"}})),
        ),
        in_range(
            "node-a",
            "",
            "Node",
            "v1",
            json!({"spec": {"podCIDRs": ["10.100.8.0/24"], "podCIDR": "10.100.8.0/24"}}),
        ),
        in_range(
            "shop",
            "",
            "ServicePool",
            "clusterip-policy.io/v1alpha1",
            json!({"spec": {"cidrs": ["10.96.1.0/24"]}}),
        ),
        // Its reserved covers the address of default/kubernetes, and not that of DNS.
        in_range(
            "infra",
            "",
            "ServicePool",
            "clusterip-policy.io/v1alpha1",
            json!({"spec": {"cidrs": ["10.96.0.0/24"], "reserved": 5, "match": {"namespaces": ["infra"]}}}),
        ),
    ];
    for object in objects {
        plane.apply(&object.to_string()).await;
    }
    plane
}

const TABLE: &str = r#"10.96.0.0/16 becomes 10.100.0.0/16; Kubernetes VERSION, installer: kubeadm

NAMESPACE    SERVICE     ADDRESS     METHOD    WHAT HAPPENS
default      kubernetes  10.96.0.1   switch    clients notice nothing: an alias holds the old address until finish
kube-system  kube-dns    10.96.0.10  switch    clients notice nothing: an alias holds the old address until finish
shop         cart        10.96.1.2   seamless  clients notice nothing: both addresses answer until the grace period ends
shop         db          10.96.1.4   plain     clients fail until DNS forgets the old address; without a selector, no temporary Service can keep it (up to 35 s)
shop         fixed       10.96.1.5   stays     its address was set by hand: remove clusterIP from its manifest, delete the Service and create it again
shop         hook        10.96.1.3   stays     the control plane calls it (ValidatingWebhookConfiguration by-name): move it with --called-by-control-plane shop/hook
shop         idle        10.96.1.1   plain     clients notice nothing: no endpoint is ready

BEFORE  KIND         OBJECT                                     WHAT TO DO
begin   overlap      Node node-a                                it has 10.100.8.0/24, which overlaps with the new range 10.100.0.0/16: choose another range
begin   pool         ServicePool infra                          it could give another Service 10.100.0.10, to which 10.96.0.10 is changed by the switch: add 10.96.0.10 to its exclude, or let its reserved contain it
switch  address      ConfigMap kube-system/kubeadm-config       data.ClusterConfiguration names 10.96.0.0/16: change it with the steps of the administrator
switch  certificate  API server 127.0.0.1:PORT0                 its certificate does not name 10.100.0.1: add 10.100.0.1 to the certificate, and keep the old one
switch  certificate  API servers                                their certificates can't be read from here: 192.0.2.1:PORT0 (…): check them yourself: add 10.100.0.1 to the certificate, and keep the old one
finish  address      ConfigMap kube-system/coredns              data.Corefile names 10.96.7.7: change it to the new address, or to the name of the Service
finish  address      NetworkPolicy shop/db-only                 spec.egress[0].to[0].ipBlock.cidr names 10.96.1.4/32: change it to the new address, or to the name of the Service
finish  address      Pod shop/client                            spec.containers[0].env[0].value names 10.96.1.4:5432: change it to the new address, or to the name of the Service
finish  address      ValidatingWebhookConfiguration by-address  webhooks[0].clientConfig.url names 10.96.1.2:443: change it to the new address, or to the name of the Service
finish  kubelet      Nodes node-a                               the configuration of 1 kubelet can't be read: the API server answers 500: check clusterDNS on these nodes

After clusterip renumber begin:
  1. kubectl -n kube-system edit configmap kubeadm-config: set networking.serviceSubnet to 10.100.0.0/16, and add 10.96.0.1 and 10.100.0.1 to the list apiServer.certSANs
  2. on each control-plane node, as root: kubectl --kubeconfig /etc/kubernetes/admin.conf -n kube-system get configmap kubeadm-config -o jsonpath='{.data.ClusterConfiguration}' >kubeadm.yaml && printf -- '---\n%s\nkind: InitConfiguration\nlocalAPIEndpoint:\n  advertiseAddress: "%s"\n' "$(grep ^apiVersion: kubeadm.yaml)" "$(sed -n 's/.*--advertise-address=//p' /etc/kubernetes/manifests/kube-apiserver.yaml)" >>kubeadm.yaml && mv /etc/kubernetes/pki/apiserver.{crt,key} /root/ && kubeadm init phase certs apiserver --config kubeadm.yaml
  3. in /etc/kubernetes/manifests/kube-apiserver.yaml and kube-controller-manager.yaml: set --service-cluster-ip-range=10.100.0.0/16, and in kube-apiserver.yaml also --shutdown-delay-duration=5s, so that later restarts of API servers interrupt no client at the old address: one control-plane node after the other, and wait until its API server is ready again: kubectl -n kube-system get pods shows kube-apiserver with a new age and as ready after about a minute
  4. clusterip renumber switch
  5. kubectl -n kube-system edit configmap kubelet-config: set clusterDNS to 10.100.0.10
  6. on each node: set clusterDNS to 10.100.0.10 in /var/lib/kubelet/config.yaml; systemctl restart kubelet
  7. clusterip renumber finish: it lists the Pods that know old addresses
  8. restart these Pods
  9. clusterip renumber finish

7 Services: 1 seamless, 2 plain, 2 by the switch, 2 to change by hand; 2 problems before clusterip renumber begin
"#;

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_what_happens_to_each_service_and_what_must_be_done() {
    let plane = kubeadm_cluster().await;
    let port = plane.server().rsplit(':').next().unwrap().to_owned();
    // Why an address of a documentation range can't be reached depends on the network of this machine.
    let shown = |ended: &Ended| {
        let text = ended.stdout.replace(&port, "PORT0").replace(plane.version(), "VERSION");
        let (before, rest) = text.split_once("192.0.2.1:PORT0 (").unwrap();
        let (_, after) = rest.split_once("): check them").unwrap();
        format!("{before}192.0.2.1:PORT0 (…): check them{after}")
    };
    let checked = check(&plane, &["--to", "10.100.0.0/16"]).await;
    assert_eq!(checked.stderr, "");
    assert_eq!(shown(&checked), TABLE);
    assert_eq!(checked.status, 1);

    let document = check(&plane, &["--to", "10.100.0.0/24", "-o", "json"]).await;
    let document: Value = serde_json::from_str(&document.stdout).unwrap();
    let mut findings = document["findings"].as_array().unwrap().iter();
    let pool = findings.find(|finding| finding["object"] == "ServicePool shop").unwrap();
    assert_eq!(
        *pool,
        json!({"before": "begin", "kind": "pool", "object": "ServicePool shop",
            "message": "10.96.1.0/24 has no place in the new range, which is smaller",
            "remedy": "choose a larger range, or change the pool first"})
    );
    let summary = json!({"seamless": 1, "plain": 2, "switch": 2, "stay": 2, "ready": false});
    assert_eq!(document["summary"], summary);

    for (to, error) in [
        (
            "10.96.128.0/17",
            "the new range 10.96.128.0/17 overlaps with the present one, 10.96.0.0/16: choose another \
            range, or add a ServiceCIDR if the cluster only needs more addresses",
        ),
        (
            "fd00::/112",
            "the cluster has no Service range of the family of fd00::/112: a renumbering changes ranges, and \
            adds none",
        ),
    ] {
        let refused = check(&plane, &["--to", to]).await;
        assert_eq!((refused.status, refused.stderr), (2, format!("error: {error}\n")), "{to}");
    }

    // An OpenShift cluster serves this group.
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "networks.config.openshift.io"},
        "spec": {"group": "config.openshift.io", "scope": "Cluster", "versions": [version],
            "names": {"plural": "networks", "kind": "Network"}}});
    plane.apply(&definition.to_string()).await;
    let refused = eventually("the API group", async || {
        let checked = check(&plane, &["--to", "10.100.0.0/16"]).await;
        (checked.status == 2).then_some(checked.stderr)
    });
    assert_eq!(
        refused.await,
        "error: this is an OpenShift cluster: its Cluster Network Operator owns the Service range (serviceNetwork), \
         and reverts and forbids any change of it, so that it can't be renumbered\n"
    );
}
