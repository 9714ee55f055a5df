//! What happens to the Services that have addresses of an old range.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_cluster::object;
use clusterip_cluster::watch::control_plane_services::MOVE_OPTION;
use clusterip_core::annotations::MOVE_ANNOTATION;
use clusterip_core::service::{addresses, may_be_set_by_hand};
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::method::{Method, method};
use clusterip_moves::renumbering::change::Change;
use clusterip_moves::temporary::looks_temporary;
use serde_json::Value;

use super::findings::{ServiceRow, Way};

/// On what, besides the Service itself, it depends what happens to a Service.
#[derive(Default)]
pub struct Surroundings {
    /// The Services with a ready endpoint.
    pub ready: BTreeSet<ServiceKey>,
    /// The object because of which the control plane calls a Service, and the name of a webhook that may block its
    /// move.
    pub callers: BTreeMap<ServiceKey, (String, Option<String>)>,
    pub exempt_namespaces: Vec<String>,
    pub load_balancers: bool,
    /// For how many seconds DNS may answer with an old address.
    pub dns_seconds: u32,
}

/// Whether a Service is that of the cluster's DNS, whose address kubelets know.
pub fn is_dns(service: &Value) -> bool {
    object::namespace(service) == "kube-system"
        && (object::text(service, &["metadata", "labels", "k8s-app"]) == "kube-dns"
            || matches!(object::name(service), "kube-dns" | "rke2-coredns-rke2-coredns"))
}

pub fn is_kubernetes(service: &Value) -> bool {
    (object::namespace(service), object::name(service)) == ("default", "kubernetes")
}

/// The row of a Service; `None` if it has no address of an old range.
pub fn row(service: &Value, change: &Change, around: &Surroundings) -> Option<ServiceRow> {
    let addresses = addresses(service);
    let label = |key: &str| service.get("metadata")?.get("labels")?.get(key)?.as_str();
    if !addresses.iter().any(|address| change.is_old(*address)) || looks_temporary(object::name(service), label) {
        return None;
    }
    let key = ServiceKey::new(object::namespace(service), object::name(service));
    let (way, why, interruption_seconds) = if is_kubernetes(service) || is_dns(service) {
        (Way::Switch, "clients notice nothing: an alias holds the old address until finish".to_owned(), 0)
    } else if let Some(why) = why_it_stays(service, &key, around) {
        (Way::Stays, why, 0)
    } else {
        // A Service whose address has no place in the new range gets another one of it.
        let to: Vec<IpAddr> = addresses.iter().filter_map(|address| change.address(*address)).collect();
        let is_ready = around.ready.contains(&key);
        let method = method(service, &to, is_ready);
        let way = if method == Method::Seamless { Way::Seamless } else { Way::Plain };
        let is_interrupted = way == Way::Plain && is_ready;
        (way, format!("clients {method}"), if is_interrupted { around.dns_seconds } else { 0 })
    };
    let ServiceKey { namespace, name } = key;
    Some(ServiceRow { namespace, name, addresses, way, why, interruption_seconds })
}

fn why_it_stays(service: &Value, key: &ServiceKey, around: &Surroundings) -> Option<String> {
    Some(if may_be_set_by_hand(service) {
        "its address was set by hand: remove clusterIP from its manifest, delete the Service and create it again".into()
    } else if object::text(service, &["metadata", "annotations", MOVE_ANNOTATION]) == "never" {
        format!("it has the annotation {MOVE_ANNOTATION}: never, which its author must remove")
    } else if around.exempt_namespaces.contains(&key.namespace) {
        "its namespace is in exemptNamespaces: remove the namespace from there for the time of the renumbering".into()
    } else if let Some((caller, webhook)) = around.callers.get(key) {
        let blocking = webhook.as_ref().map_or(String::new(), |webhook| {
            format!(
                "; if its webhook {webhook} blocks the move, set failurePolicy: Ignore in it for the time of the move"
            )
        });
        format!("the control plane calls it ({caller}): move it with {MOVE_OPTION} {key}{blocking}")
    } else if object::text(service, &["spec", "type"]) == "LoadBalancer" && !around.load_balancers {
        "it is of type LoadBalancer: its cloud may remove the load balancer; use --load-balancers".into()
    } else {
        return None;
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn way_follows_from_the_service_and_what_is_around_it() {
        let range = |range: &str| [range.parse().unwrap()];
        let change = Change::new(&range("10.96.0.0/16"), &range("10.100.0.0/24")).unwrap();
        let key = |name| ServiceKey::new("shop", name);
        let around = Surroundings {
            ready: [key("web"), key("far"), key("hand-made"), key("port"), key("cloud")].into(),
            callers: [(key("hook"), ("ValidatingWebhookConfiguration hook".to_owned(), None))].into(),
            exempt_namespaces: vec!["kube-system".to_owned()],
            load_balancers: false,
            dns_seconds: 35,
        };
        let service = |namespace: &str, name: &str, more: Value| {
            let managers = json!([{"manager": "author", "fieldsV1": {"f:spec": {"f:ports": {}}}}]);
            let mut service = json!({
                "metadata": {"namespace": namespace, "name": name, "managedFields": managers},
                "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.7", "selector": {"app": "web"}},
            });
            json_patch::merge(&mut service, &more);
            service
        };
        let by_hand = json!([{"manager": "author", "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}]);
        let rows = [
            (service("shop", "web", json!({})), Some((Way::Seamless, 0))),
            (service("shop", "far", json!({"spec": {"clusterIP": "10.96.200.7"}})), Some((Way::Seamless, 0))),
            (service("shop", "idle", json!({})), Some((Way::Plain, 0))),
            (service("shop", "hand-made", json!({"spec": {"selector": null}})), Some((Way::Plain, 35))),
            (service("shop", "port", json!({"spec": {"type": "NodePort"}})), Some((Way::Plain, 35))),
            (service("shop", "cloud", json!({"spec": {"type": "LoadBalancer"}})), Some((Way::Stays, 0))),
            (service("shop", "hook", json!({})), Some((Way::Stays, 0))),
            (service("shop", "fixed", json!({"metadata": {"managedFields": by_hand}})), Some((Way::Stays, 0))),
            (
                service("shop", "never", json!({"metadata": {"annotations": {"clusterip-policy/move": "never"}}})),
                Some((Way::Stays, 0)),
            ),
            (service("kube-system", "metrics", json!({})), Some((Way::Stays, 0))),
            (service("kube-system", "kube-dns", json!({})), Some((Way::Switch, 0))),
            (service("default", "kubernetes", json!({})), Some((Way::Switch, 0))),
            (service("shop", "new", json!({"spec": {"clusterIP": "10.100.0.7"}})), None),
            (service("shop", "headless", json!({"spec": {"clusterIP": "None"}})), None),
        ];
        for (service, expected) in rows {
            let row = row(&service, &change, &around).map(|row| (row.way, row.interruption_seconds));
            assert_eq!(row, expected, "{service}");
        }
    }
}
