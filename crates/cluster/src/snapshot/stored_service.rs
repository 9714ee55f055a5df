//! A Service as it is kept: its addresses, and the fields that decisions, moves and audits read.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_core::address::{Family, parse_address};
use clusterip_core::annotations::{
    MOVE_ANNOTATION, MOVING_ANNOTATION, MOVING_NAME, Move, RECORD_ANNOTATION, TOO_LONG_FOR_ADDRESSES, cut, is_read,
    recorded_addresses, shortened,
};
use clusterip_core::external::Announcer;
use clusterip_core::external::claim::{LOAD_BALANCER_IP, MAX_EXTERNAL_IPS, in_use, shown};
use clusterip_core::field_mask::MAX_VALUES;
use clusterip_core::json::TypeMismatch;
use clusterip_core::label_selector::{LabelSelector, Labels, MAX_LABELS};
use clusterip_core::service::{FamilyPolicy, MAX_FAMILIES, Service, addresses, is_set_by_hand};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::ExternalSettings;
use clusterip_failover::assignments::{Port, Protocol};
use serde_json::{Map, Value, json};

use super::compact_value::{ALLOCATED, CompactValue};
use super::workloads::{LabelHashes, label_hashes};
use crate::object::map;

/// How many ports of a Service of type `LoadBalancer` are kept. Those of other types, and of Services that kube-proxy
/// ignores, are not needed.
pub(crate) const MAX_PORTS: usize = 1024;

/// kube-proxy ignores a Service with one of these labels. So no external address needs its ports, and no process of a node
/// may be reached through them.
pub(crate) const IGNORED_BY_KUBE_PROXY: [&str; 2] =
    ["service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"];

/// For a field with a text: the API server checks types only in objects of its own kinds.
pub(crate) const TEXT: usize = 0;
/// For a list or map that only administrators and Kubernetes itself make long.
pub(crate) const MANY: usize = MAX_VALUES;

/// The fields that are kept as they are written, and how many values of a list or map in them.
pub(crate) const FIELDS: [(&str, usize); 16] = [
    ("metadata.annotations", MANY),
    ("metadata.deletionTimestamp", TEXT),
    ("metadata.labels", MAX_LABELS),
    ("metadata.uid", TEXT),
    ("spec.clusterIP", TEXT),
    ("spec.clusterIPs", MANY),
    ("spec.externalIPs", MAX_EXTERNAL_IPS),
    ("spec.externalName", TEXT),
    ("spec.externalTrafficPolicy", TEXT),
    ("spec.ipFamilies", MANY),
    ("spec.ipFamilyPolicy", TEXT),
    ("spec.loadBalancerClass", TEXT),
    ("spec.loadBalancerIP", TEXT),
    // One more than a Pod can have labels: a Service with a longer selector still selects no Pod.
    ("spec.selector", MAX_LABELS + 1),
    ("spec.type", TEXT),
    ("status.loadBalancer.ingress", MANY),
];

/// These are not kept if they are what the API server writes for the addresses.
const PLAIN: [&str; 3] = ["spec.clusterIP", "spec.clusterIPs", "spec.ipFamilies"];

/// These are not kept if they are what most Services have.
static USUAL: [(&str, CompactValue); 2] = [
    ("spec.ipFamilyPolicy", CompactValue::Frequent("SingleStack")),
    ("spec.type", CompactValue::Frequent("ClusterIP")),
];

/// The fields of a Service that decisions, moves and audits read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredService {
    pub(super) key: Arc<ServiceKey>,
    addresses: Box<[IpAddr]>,
    external: Box<[IpAddr]>,
    /// Which fields of [`PLAIN`] are not kept.
    is_plain: [bool; 3],
    /// Which fields of [`USUAL`] are not kept.
    is_usual: [bool; 2],
    pub(super) by_hand: Option<bool>,
    /// The labels of the Pods that the Service selects; empty if it selects none.
    selected: LabelHashes,
    ports: Option<Arc<[Port]>>,
    is_local: bool,
    /// The index in [`FIELDS`], and the value.
    fields: Arc<[(u8, CompactValue)]>,
}

impl StoredService {
    pub fn read(service: &Value) -> Self {
        let value = |path: &str| path.split('.').try_fold(service, |value, key| value.get(key));
        let addresses: Box<[IpAddr]> = addresses(service).into();
        let selector = map(service, &["spec", "selector"]);
        let balances = value("spec.type").is_some_and(|kind| kind == "LoadBalancer");
        let labels = value("metadata.labels");
        let is_ignored = labels.is_some_and(|labels| IGNORED_BY_KUBE_PROXY.iter().any(|key| labels.get(key).is_some()));
        let ports = value("spec.ports").and_then(Value::as_array).filter(|_| balances && !is_ignored);
        let ports: BTreeSet<Port> = ports.into_iter().flatten().take(MAX_PORTS).filter_map(port).collect();
        let plain = plain(&addresses);
        let is_plain =
            |path: &str| plain.iter().flatten().any(|(other, plain)| *other == path && value(path) == Some(plain));
        let is_usual = |path: &str| {
            let usual = USUAL.iter().find(|(other, _)| *other == path);
            usual.is_some_and(|(_, usual)| value(path).is_some_and(|value| value == usual.text()))
        };
        let field = |(index, (path, most)): (usize, &(&str, usize))| {
            let written = value(path).filter(|_| !is_plain(path) && !is_usual(path));
            Some((u8::try_from(index).ok()?, written.and_then(|value| kept(path, value, *most))?))
        };
        let fields: Vec<_> = FIELDS.iter().enumerate().filter_map(field).collect();
        Self {
            key: Arc::new(ServiceKey::of(service)),
            addresses,
            external: in_use(service).into(),
            is_plain: PLAIN.map(is_plain),
            is_usual: USUAL.each_ref().map(|(path, _)| is_usual(path)),
            by_hand: is_set_by_hand(service),
            // No Pod has more labels.
            selected: if selector.len() > MAX_LABELS { LabelHashes::default() } else { label_hashes(&selector) },
            is_local: balances && value("spec.externalTrafficPolicy").is_some_and(|policy| policy == "Local"),
            ports: (!ports.is_empty()).then(|| ports.into_iter().collect()),
            // A copy: the allocator does not free the rest of a list that is made shorter.
            fields: fields.as_slice().into(),
        }
    }

    /// As [`Self::key`], for many of them.
    pub fn shared_key(&self) -> &Arc<ServiceKey> {
        &self.key
    }

    /// Whether the Service as JSON has everything that a decision about `service` may read, of which it was read: no
    /// field was cut or left out.
    pub fn has_all_of(&self, service: &Value) -> bool {
        let value = |path: &str| path.split('.').try_fold(service, |value, key| value.get(key));
        let is_whole = |(path, most): &(&str, usize)| match (*path, value(path)) {
            ("metadata.annotations", Some(Value::Object(annotations))) => annotations.iter().all(|(key, value)| {
                let kept = |text| shortened(key, text).map_or(!is_read(0, key), |kept| kept == text);
                value.as_str().is_some_and(kept)
            }),
            ("spec.loadBalancerIP", Some(Value::String(text))) => cut(text, TOO_LONG_FOR_ADDRESSES) == *text,
            (_, Some(Value::Array(items))) => items.len() <= *most,
            (_, Some(Value::Object(fields))) => fields.len() <= *most,
            _ => true,
        };
        // Services of this type may share an external address, if their ports differ, and [`Self::value`] has no ports.
        if value("spec.type").is_some_and(|kind| kind == "LoadBalancer") {
            return false;
        }
        // Without any such field, it is unknown whether `spec` is an object.
        let mut of_spec = FIELDS.iter().filter(|(path, _)| path.starts_with("spec."));
        !self.key.name.is_empty() && of_spec.any(|(path, _)| value(path).is_some()) && FIELDS.iter().all(is_whole)
    }

    /// The Service after it was given these addresses, if it named none before.
    pub fn given(&self, addresses: &[IpAddr]) -> Option<Self> {
        let is_new = self.addresses.is_empty() && PLAIN.iter().all(|path| self.field(path).is_none());
        let is_plain = [true, addresses.len() > 1, false];
        is_new.then(|| Self { addresses: addresses.into(), is_plain, ..self.clone() })
    }

    pub fn key(&self) -> &ServiceKey {
        &self.key
    }

    /// The cluster IPs without repetition, the primary one first.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// See [`in_use`].
    pub fn external(&self) -> &[IpAddr] {
        &self.external
    }

    pub fn external_name(&self) -> &str {
        self.text("spec.externalName")
    }

    pub fn uid(&self) -> Cow<'_, str> {
        match self.field("metadata.uid") {
            Some(uid) if let Some(text) = uid.as_text() => text.into(),
            Some(uid @ CompactValue::Uuid(_)) if let Value::String(text) = uid.value() => text.into(),
            _ => Cow::default(),
        }
    }

    /// See [`is_set_by_hand`].
    pub fn by_hand(&self) -> Option<bool> {
        self.by_hand
    }

    pub fn is_deleting(&self) -> bool {
        self.field("metadata.deletionTimestamp").is_some_and(|time| !time.is_null())
    }

    pub fn is_load_balancer(&self) -> bool {
        self.text("spec.type") == "LoadBalancer"
    }

    /// Whether the Service gets external addresses that agents hold.
    pub fn is_served(&self, settings: &ExternalSettings) -> bool {
        self.announcer(settings) == Some(Announcer::Agents)
    }

    /// The program that announces the external addresses that the Service gets, see [`ExternalSettings::announcer_of`].
    pub fn announcer(&self, settings: &ExternalSettings) -> Option<Announcer> {
        let class = self.text("spec.loadBalancerClass");
        settings.announcer_of((!class.is_empty()).then_some(class)).filter(|_| self.is_load_balancer())
    }

    /// Whether the Service has what its announcer is to read: its recorded addresses.
    pub fn is_announced(&self, announcer: Announcer) -> bool {
        let announced = |key: &&str| self.annotation(key) == Some(self.record());
        let field = recorded_addresses(self.text(LOAD_BALANCER_IP));
        let mut keys = announcer.annotations().iter();
        !self.record().is_empty() && (keys.next().is_some_and(announced) || field == recorded_addresses(self.record()))
    }

    pub fn record(&self) -> &str {
        self.annotation(RECORD_ANNOTATION).unwrap_or_default()
    }

    pub fn ingress(&self) -> Option<Value> {
        let ingress = self.field("status.loadBalancer.ingress")?;
        (!matches!(ingress, CompactValue::List(items) if items.is_empty())).then(|| ingress.value())
    }

    pub fn shown(&self) -> BTreeSet<IpAddr> {
        shown(self.ingress().as_ref()).into_iter().collect()
    }

    /// The addresses whose traffic kube-proxy sends to the Service: those that its status shows, and `spec.externalIPs`. A
    /// request for an address does not count: with `spec.loadBalancerIP` or an annotation, any user could keep the status of
    /// another user's Service empty.
    pub fn routed(&self) -> Vec<IpAddr> {
        let external_ips = match self.field("spec.externalIPs") {
            Some(CompactValue::List(items)) => &**items,
            _ => &[],
        };
        external_ips.iter().filter_map(|text| parse_address(text.text())).chain(self.shown()).collect()
    }

    /// The ports as a decision reads them; `None` if there are too many.
    fn known_ports(&self) -> Option<Vec<(&'static str, u16)>> {
        let ports = self.ports.as_ref().filter(|ports| ports.len() < clusterip_core::service::MAX_PORTS)?;
        let protocol = |protocol| match protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        };
        Some(ports.iter().map(|(of, port)| (protocol(*of), *port)).collect())
    }

    /// The ports of a Service of type `LoadBalancer`, in ascending order, from its first 1,024. Ports that
    /// can't be read are left out.
    pub fn ports(&self) -> Arc<[Port]> {
        self.ports.clone().unwrap_or_default()
    }

    /// Whether the Service is of type `LoadBalancer`, and traffic for its external addresses reaches only its endpoints
    /// on the node that receives the traffic: `externalTrafficPolicy: Local`.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Whether the Service is of type `LoadBalancer`, has a record of external addresses, or claims or shows some. Most
    /// clusters have few such Services among many.
    pub fn may_have_external(&self) -> bool {
        !self.external.is_empty() || self.is_load_balancer() || self.annotation(RECORD_ANNOTATION).is_some()
    }

    /// A copy with only what [`Self::ingress`] and a write of it need; `None` if the status shows nothing.
    pub(super) fn for_status(&self) -> Option<Self> {
        let kept = |(index, field): &(u8, CompactValue)| {
            let field = match (FIELDS[usize::from(*index)].0, field) {
                ("metadata.annotations", annotations) => {
                    let record = annotations.entry(RECORD_ANNOTATION).map(|record| (RECORD_ANNOTATION, record));
                    CompactValue::map_of(record.as_slice())
                }
                ("metadata.uid" | "spec.loadBalancerClass" | "spec.type" | "status.loadBalancer.ingress", field) => {
                    field.clone()
                }
                _ => return None,
            };
            Some((*index, field))
        };
        self.ingress().map(|_| Self {
            key: Arc::clone(&self.key),
            is_usual: [false, self.is_usual[1]],
            fields: self.fields.iter().filter_map(kept).collect(),
            ..Self::default()
        })
    }

    /// The Service as a JSON object with the fields that are kept, except for its ports: no decision reads them, and as
    /// JSON they take a hundred times as much memory.
    pub fn value(&self) -> Value {
        self.with_fields(&|_| true)
    }

    fn with_fields(&self, has: &dyn Fn(&str) -> bool) -> Value {
        let mut service = Map::new();
        service.insert("apiVersion".to_owned(), "v1".into());
        service.insert("kind".to_owned(), "Service".into());
        let ServiceKey { namespace, name } = &*self.key;
        let mut metadata = Map::from_iter([("name".to_owned(), name.as_str().into())]);
        if !namespace.is_empty() {
            metadata.insert("namespace".to_owned(), namespace.as_str().into());
        }
        service.insert("metadata".to_owned(), metadata.into());
        let plain = plain(&self.addresses).into_iter().flatten().zip(self.is_plain);
        let plain = plain.filter_map(|(field, is_plain)| is_plain.then_some(field));
        let usual = USUAL.iter().zip(self.is_usual).filter(|(_, is_usual)| *is_usual);
        let usual = usual.map(|((path, field), _)| (*path, field));
        let fields = self.fields.iter().map(|(index, field)| (FIELDS[usize::from(*index)].0, field)).chain(usual);
        let fields = fields.filter(|(path, _)| has(path)).map(|(path, field)| (path, field.value()));
        for (path, value) in fields.chain(plain.filter(|(path, _)| has(path))) {
            let Some((outer, last)) = path.rsplit_once('.') else { continue };
            let within = outer.split('.').try_fold(&mut service, |object, key| {
                object.entry(key).or_insert_with(|| Map::new().into()).as_object_mut()
            });
            if let Some(within) = within {
                within.insert(last.to_owned(), value);
            }
        }
        service.into()
    }

    /// The Service as a request with only these fields would bring it: paths of the fields that are kept, and annotations.
    pub fn in_request(&self, brings: impl Fn(&str) -> bool) -> Result<Service, TypeMismatch> {
        // A value of a wrong type is rare, so its message may cost more.
        self.typed(&brings).map_or_else(|| Service::read(&self.with_fields(&brings), "request.object"), Ok)
    }

    /// `None` if a field has a wrong type.
    fn typed(&self, brings: &dyn Fn(&str) -> bool) -> Option<Service> {
        let field = |path: &str| self.field(path).filter(|value| brings(path) && !value.is_null());
        let text = |path: &str| field(path).map_or(Some(""), CompactValue::as_text);
        let filled = |path: &str| Some(Some(text(path)?.to_owned()).filter(|text| !text.is_empty()));
        let texts = |path: &str, most| field(path).map_or(Some(Vec::new()), |texts| texts.texts(most));
        let labels = |path: &str| field(path).map_or(Some(Labels::new()), CompactValue::labels);
        // These are not kept if they are what the API server writes for the addresses.
        let plain = |at: usize| self.is_plain[at] && brings(PLAIN[at]);
        let first = self.addresses.first().filter(|_| plain(0)).map(ToString::to_string);
        let cluster_ip = if plain(0) { first } else { filled(PLAIN[0])? };
        let all = || self.addresses.iter().take(MAX_FAMILIES + 1);
        let mut cluster_ips =
            if plain(1) { all().map(ToString::to_string).collect() } else { texts(PLAIN[1], MAX_FAMILIES + 1)? };
        cluster_ips.retain(|text| !text.is_empty());
        let families = if plain(2) {
            all().map(|address| Family::of(*address)).collect()
        } else {
            texts(PLAIN[2], MAX_FAMILIES + 1)?.iter().map(|text| Family::parse(text)).collect::<Option<_>>()?
        };
        let family_policy = match text("spec.ipFamilyPolicy")? {
            "" => None,
            name => Some(FamilyPolicy::parse(name)?),
        };
        let mut annotations = labels("metadata.annotations")?;
        annotations.retain(|key, _| brings(key));
        let kind = text("spec.type")?;
        Some(Service {
            name: self.key.name.clone(),
            labels: labels("metadata.labels")?,
            annotations: annotations.into(),
            external_name: kind == "ExternalName",
            node_port: kind == "NodePort",
            load_balancer: kind == "LoadBalancer",
            load_balancer_class: filled("spec.loadBalancerClass")?,
            load_balancer_ip: filled("spec.loadBalancerIP")?,
            external_ips: texts("spec.externalIPs", usize::MAX)?,
            ports: self.known_ports(),
            local: text("spec.externalTrafficPolicy")? == "Local",
            shown: if brings("status.loadBalancer.ingress") { shown(self.ingress().as_ref()) } else { Vec::new() },
            deleting: field("metadata.deletionTimestamp").is_some(),
            selector: labels("spec.selector")?,
            names_cluster_ip: cluster_ip.is_some(),
            cluster_ip,
            cluster_ips,
            families,
            family_policy: family_policy.unwrap_or_default(),
            names_family_policy: family_policy.is_some(),
        })
    }

    /// With its entries in the indexes.
    pub(super) fn bytes(&self) -> usize {
        const ENTRY: usize = 96;
        // External addresses have no entry in the set of used ones.
        const EXTERNAL: usize = 64;
        let key = size_of::<ServiceKey>() + self.key.name.len() + self.key.namespace.len();
        let addresses = (self.addresses.len() + self.external.len()) * size_of::<IpAddr>()
            + self.addresses.len() * ENTRY
            + self.external.len() * EXTERNAL;
        let fields = self.fields.iter().map(|(_, field)| size_of::<(u8, CompactValue)>() + field.bytes());
        // An `Arc` has two counters.
        let ports = self.ports.as_ref().map_or(0, |ports| size_of_val(&**ports) + 2 * size_of::<usize>() + ALLOCATED);
        let lists = size_of_val(&*self.selected) + ports;
        size_of::<Self>() + 2 * ENTRY + key + addresses + lists + fields.sum::<usize>()
    }

    pub fn selects(&self, labels: &LabelHashes) -> bool {
        !self.selected.is_empty() && self.selected.iter().all(|label| labels.binary_search(label).is_ok())
    }

    /// What the author wrote into [`MOVE_ANNOTATION`].
    pub fn asked_move(&self) -> Option<Move> {
        Move::parse(self.annotation(MOVE_ANNOTATION)?)
    }

    /// As [`looks_half_moved`](clusterip_core::annotations::looks_half_moved).
    pub fn looks_half_moved(&self) -> bool {
        let is_alias = self.text("spec.type") == "ExternalName" && self.external_name() == MOVING_NAME;
        self.annotation(MOVING_ANNOTATION).is_some() || is_alias
    }

    /// Whether the labels of the Service match a selector. Of the labels that are kept, those that are texts count.
    pub fn is_selected_by(&self, selector: &LabelSelector) -> bool {
        selector.matches(&self.labels())
    }

    /// The labels of the Service; `None` if it may have more than those that are kept.
    pub fn all_labels(&self) -> Option<Labels> {
        Some(self.labels()).filter(|labels| labels.len() < MAX_LABELS)
    }

    fn labels(&self) -> Labels {
        map(&self.with_fields(&|path| path == "metadata.labels"), &["metadata", "labels"])
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.entry("metadata.labels", key)
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.entry("metadata.annotations", key)
    }

    fn entry(&self, path: &str, key: &str) -> Option<&str> {
        self.field(path)?.entry(key)
    }

    fn text(&self, path: &str) -> &str {
        self.field(path).map_or("", CompactValue::text)
    }

    fn field(&self, path: &str) -> Option<&CompactValue> {
        let mut usual = USUAL.iter().zip(self.is_usual).filter(|(_, is_usual)| *is_usual);
        let usual = usual.find(|((other, _), _)| *other == path).map(|((_, field), _)| field);
        let kept = || self.fields.iter().find(|(index, _)| FIELDS[usize::from(*index)].0 == path);
        usual.or_else(|| kept().map(|(_, field)| field))
    }
}

/// What is kept of a field: no more than the core reads. `None` if that is nothing.
fn kept(path: &str, value: &Value, most: usize) -> Option<CompactValue> {
    match (path, value) {
        ("metadata.annotations", Value::Object(fields)) => {
            let kept = fields.iter().filter_map(|(key, value)| Some((&**key, shortened(key, value.as_str()?)?)));
            let kept: Vec<_> = kept.collect();
            (!kept.is_empty()).then(|| CompactValue::map_of(&kept))
        }
        ("metadata.uid", Value::String(text)) => Some(CompactValue::uid(text)),
        // Any other text means the same.
        ("spec.externalTrafficPolicy", policy) if policy != "Local" => None,
        ("spec.loadBalancerIP", Value::String(text)) => {
            Some(CompactValue::Text(cut(text, TOO_LONG_FOR_ADDRESSES).into()))
        }
        _ => Some(CompactValue::first(value, most)),
    }
}

/// What the API server writes into the fields of [`PLAIN`] for these addresses; `None` if there are none.
fn plain(addresses: &[IpAddr]) -> Option<[(&'static str, Value); 3]> {
    let family = |address: &IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let [first, all, families] = PLAIN;
    Some([
        (first, json!(addresses.first()?)),
        (all, json!(addresses)),
        (families, addresses.iter().map(family).collect()),
    ])
}

/// The port and the protocol of an item of `spec.ports`; `None` if it can't be read.
fn port(port: &Value) -> Option<Port> {
    let protocol = match port.get("protocol").map_or(Some("TCP"), Value::as_str)? {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => return None,
    };
    Some((protocol, port.get("port")?.as_u64()?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use clusterip_core::{Decision, Verdict};

    use super::*;

    #[test]
    fn ports_of_a_load_balancer_are_read() {
        let ports = json!([
            {"port": 80}, {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 7, "protocol": "SCTP"},
            {"port": 99_999}, {"port": 1, "protocol": "OTHER"}, {}, {"port": 80, "protocol": "TCP"},
        ]);
        let ports_of = |kind: &str| StoredService::read(&json!({"spec": {"type": kind, "ports": ports}})).ports();
        let expected = [(Protocol::Tcp, 53), (Protocol::Tcp, 80), (Protocol::Udp, 53), (Protocol::Sctp, 7)];
        assert_eq!(*ports_of("LoadBalancer"), expected);
        assert_eq!(*ports_of("ClusterIP"), []);
        assert_eq!(size_of::<Port>(), 4);
    }

    #[test]
    fn a_service_of_which_nothing_is_cut_is_read_as_its_json() {
        let many = |count: usize| -> Value {
            (0..count).map(|key| (key.to_string(), json!(""))).collect::<Map<_, _>>().into()
        };
        let long = |count: usize| json!("x".repeat(count));
        let annotation = |key: &str, value: Value| ("metadata.annotations", json!({ key: value }));
        for (name, (path, value), has_all) in [
            ("as it is", ("spec.type", json!("NodePort")), true),
            ("a name that is yet to be generated", ("metadata.name", json!("")), false),
            ("a spec that is no object", ("spec", json!("x")), false),
            ("a spec without the fields that are kept", ("spec", json!({"ports": []})), false),
            ("a label of a wrong type", ("metadata.labels", json!({"a": 1})), true),
            ("the most labels", ("metadata.labels", many(MAX_LABELS)), true),
            ("too many labels", ("metadata.labels", many(MAX_LABELS + 1)), false),
            ("an object as type", ("spec.type", json!({"a": 1})), false),
            ("a number as type", ("spec.type", json!(1)), true),
            ("many external addresses", ("spec.externalIPs", json!(vec!["10.0.9.9"; MAX_EXTERNAL_IPS + 1])), false),
            ("a long text for an address", ("spec.loadBalancerIP", long(TOO_LONG_FOR_ADDRESSES + 1)), false),
            ("ports that may be shared", ("spec.type", json!("LoadBalancer")), false),
            ("an annotation that is read", annotation("clusterip-policy/os", json!("linux")), true),
            ("a long one", annotation("clusterip-policy/os", long(65)), false),
            ("one that is warned of", annotation("clusterip-policy/oss", json!("linux")), false),
            ("one of another program", annotation("a/b", long(1000)), true),
            ("one of a wrong type", annotation("a/b", json!(1)), false),
        ] {
            let mut service = json!({
                "metadata": {"name": "web", "namespace": "shop"}, "spec": {"selector": {"app": "web"}, "ports": []},
            });
            let at = path.split('.').fold(&mut service, |value, key| &mut value[key]);
            *at = value;
            let stored = StoredService::read(&service);
            assert_eq!(stored.has_all_of(&service), has_all, "{name}");
            if has_all {
                let mut read = Service::read(&service, "request.object");
                // Only Services of type LoadBalancer need their ports.
                read.iter_mut().for_each(|read| read.ports = None);
                if let (Ok(read), ("metadata.annotations", true)) = (&mut read, (path, name.contains("other"))) {
                    read.annotations = Labels::new().into();
                }
                assert_eq!(stored.in_request(|_| true), read, "{name}");
            }
        }
    }

    #[test]
    fn a_service_is_given_addresses_as_a_decision_writes_them() {
        let (v4, v6) = (IpAddr::from([10, 0, 0, 7]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 7]));
        for (name, spec, is_given) in [
            (
                "no addresses",
                json!({"selector": {"app": "web"}, "type": "LoadBalancer", "ports": [{"port": 80}]}),
                true,
            ),
            ("an empty address", json!({"clusterIP": ""}), false),
            ("an empty list", json!({"clusterIPs": []}), false),
            ("families", json!({"ipFamilies": ["IPv4"]}), false),
            ("an address", json!({"clusterIP": "10.0.0.7"}), false),
        ] {
            let service = json!({"metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}}, "spec": spec});
            for addresses in [vec![v4], vec![v6, v4]] {
                let given = StoredService::read(&service).given(&addresses);
                assert_eq!(given.is_some(), is_given, "{name}");
                let decision = Decision { verdict: Verdict::Allocated(addresses), ..Decision::default() };
                let expected = StoredService::read(&decision.changed(&service).unwrap_or_default());
                assert!(given.is_none_or(|given| given == expected), "{name}");
            }
        }
    }

    #[test]
    fn a_request_with_a_stored_service_is_read_as_its_json() {
        let whole = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "labels": {"a": "b", "c": "d"}, "deletionTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"clusterip-policy/os": "linux", RECORD_ANNOTATION: "10.0.9.9", "metallb.io/loadBalancerIPs": "x"},
            },
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack", "selector": {"app": "web"},
                "loadBalancerClass": "a/b", "loadBalancerIP": "10.0.9.9", "externalIPs": ["10.0.9.8"],
            },
        });
        let others = [
            Value::Null,
            json!(""),
            json!("x"),
            json!("None"),
            json!("NodePort"),
            json!("ExternalName"),
            json!(7),
            json!([]),
            json!(["", "10.0.0.1"]),
            json!(["IPv6"]),
            json!(["1", "2", "3", 4]),
            json!([1]),
            json!({}),
            json!({"a": 1}),
            json!({"a": "b"}),
            json!({"a": null}),
        ];
        let mut services = vec![whole.clone(), json!({})];
        for path in FIELDS.iter().map(|(path, _)| format!("/{}", path.replace('.', "/"))) {
            for other in &others {
                let mut service = whole.clone();
                if let Some(field) = service.pointer_mut(&path) {
                    *field = other.clone();
                    services.push(service);
                }
            }
        }
        let sets: [&dyn Fn(&str) -> bool; 4] =
            [&|_| true, &|_| false, &|field| !field.starts_with("spec.cluster"), &|field| {
                !matches!(field, "spec.type" | "spec.ipFamilies" | RECORD_ANNOTATION)
            }];
        for (service, brings) in services.iter().flat_map(|service| sets.map(|brings| (service, brings))) {
            let stored = StoredService::read(service);
            let mut json = stored.with_fields(brings);
            if let Some(annotations) = json.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
                annotations.retain(|key, _| brings(key));
            }
            assert_eq!(stored.in_request(brings), Service::read(&json, "request.object"), "{service}");
        }
    }
}
