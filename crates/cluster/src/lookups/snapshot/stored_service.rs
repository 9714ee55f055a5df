//! A Service as it is kept: its addresses, and the fields that decisions, moves and audits read.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_core::annotations::{RECORD_ANNOTATION, TOO_LONG_FOR_ADDRESSES, cut, shortened};
use clusterip_core::external::claim::MAX_EXTERNAL_IPS;
use clusterip_core::external::stored::{in_use, shown};
use clusterip_core::label_selector::MAX_LABELS;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::addresses;
use clusterip_core::services::{ADDRESS_FIELDS, is_set_by_hand};
use clusterip_core::settings::ExternalSettings;
use clusterip_failover::assignments::{Port, Protocol};
use serde_json::{Map, Value, json};

use super::workloads::{LabelHashes, label_hashes};
use crate::object::map;

/// How many ports of a Service of type `LoadBalancer` are kept. Those of other types, and of Services that kube-proxy
/// ignores, are not needed.
pub const MAX_PORTS: usize = 1024;

/// kube-proxy ignores a Service with one of these labels. So no external address needs its ports, and no process of a node
/// may be reached through them.
pub const IGNORED_BY_KUBE_PROXY: [&str; 2] =
    ["service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"];

/// The fields that are kept as they are written, if they are not too long.
const FIELDS: [&[&str]; 16] = [
    &["metadata", "annotations"],
    &["metadata", "deletionTimestamp"],
    &["metadata", "labels"],
    &["metadata", "uid"],
    &["spec", "clusterIP"],
    &["spec", "clusterIPs"],
    &["spec", "externalIPs"],
    &["spec", "externalName"],
    &["spec", "ipFamilies"],
    &["spec", "ipFamilyPolicy"],
    &["spec", "loadBalancerClass"],
    &["spec", "loadBalancerIP"],
    &["spec", "ports"],
    &["spec", "selector"],
    &["spec", "type"],
    &["status", "loadBalancer", "ingress"],
];
const ANNOTATIONS: usize = 0;
const DELETION_TIMESTAMP: usize = 1;
const LABELS: usize = 2;
const UID: usize = 3;
const CLUSTER_IP: usize = 4;
const CLUSTER_IPS: usize = 5;
const EXTERNAL_IPS: usize = 6;
const EXTERNAL_NAME: usize = 7;
const LOAD_BALANCER_CLASS: usize = 10;
const LOAD_BALANCER_IP: usize = 11;
const PORTS: usize = 12;
const SELECTOR: usize = 13;
const TYPE: usize = 14;
const INGRESS: usize = 15;

/// Frequent texts, which need no memory of their own.
const FREQUENT: [&str; 8] =
    ["ClusterIP", "NodePort", "LoadBalancer", "SingleStack", "PreferDualStack", "IPv4", "IPv6", "None"];

/// The fields of a Service that decisions, moves and audits read.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredService {
    key: ServiceKey,
    addresses: Box<[IpAddr]>,
    external: Box<[IpAddr]>,
    /// Whether `clusterIP` and `clusterIPs` are `addresses`, so that they need not be kept.
    has_plain_addresses: bool,
    /// Whether the address was set by hand; `None` if that is unknown.
    by_hand: Option<bool>,
    /// The labels of the Pods that the Service selects; empty if it selects none.
    selected: LabelHashes,
    /// The index in [`FIELDS`], and the value.
    fields: Box<[(u8, Field)]>,
}

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Frequent(&'static str),
    FrequentAlone(&'static str),
    Text(Box<str>),
    Texts(Box<[Box<str>]>),
    Map(Box<[(Box<str>, Box<str>)]>),
    /// In ascending order.
    Ports(Arc<[Port]>),
    /// A field that few Services have, or one of the wrong type.
    Other(Box<Value>),
}

impl StoredService {
    /// Reads a Service.
    pub fn read(service: &Value) -> Self {
        let value = |path: &[&str]| path.iter().try_fold(service, |value, key| value.get(key));
        let addresses: Box<[IpAddr]> = addresses(service).into();
        let selector = map(service, FIELDS[SELECTOR]);
        let balances = value(FIELDS[TYPE]).is_some_and(|kind| kind == "LoadBalancer");
        let labels = value(FIELDS[LABELS]);
        let is_ignored = labels.is_some_and(|labels| IGNORED_BY_KUBE_PROXY.iter().any(|key| labels.get(key).is_some()));
        let has_plain_addresses = plain_addresses(&addresses).is_some_and(|[first, all]| {
            value(FIELDS[CLUSTER_IP]) == Some(&first) && value(FIELDS[CLUSTER_IPS]) == Some(&all)
        });
        let is_kept = |index: usize| match index {
            PORTS => balances && !is_ignored,
            CLUSTER_IP | CLUSTER_IPS => !has_plain_addresses,
            _ => true,
        };
        let field = |(index, path): (usize, &&[&str])| {
            let field = Field::of(index, value(path)?).filter(|_| is_kept(index));
            Some((u8::try_from(index).ok()?, field?))
        };
        Self {
            key: ServiceKey::of(service),
            addresses,
            external: in_use(service).into(),
            has_plain_addresses,
            by_hand: is_set_by_hand(service),
            // No Pod has more labels.
            selected: if selector.len() > MAX_LABELS { LabelHashes::default() } else { label_hashes(&selector) },
            fields: FIELDS.iter().enumerate().filter_map(field).collect(),
        }
    }

    /// The namespace and the name.
    pub fn key(&self) -> &ServiceKey {
        &self.key
    }

    /// The cluster IPs without repetition, the primary one first.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The external addresses that count as held, see [`in_use`].
    pub fn external(&self) -> &[IpAddr] {
        &self.external
    }

    /// The text in `spec.externalName`; empty if there is none.
    pub fn external_name(&self) -> &str {
        self.text(EXTERNAL_NAME)
    }

    /// The UID; empty if it is unknown.
    pub fn uid(&self) -> &str {
        self.text(UID)
    }

    /// Whether the Service is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.field(DELETION_TIMESTAMP).is_some_and(|time| *time != Field::Other(Box::new(Value::Null)))
    }

    /// Whether the Service gets external addresses, see [`ExternalSettings::is_ours`].
    pub fn is_served(&self, settings: &ExternalSettings) -> bool {
        let class = self.text(LOAD_BALANCER_CLASS);
        self.text(TYPE) == "LoadBalancer" && settings.is_our_class((!class.is_empty()).then_some(class))
    }

    /// The record of external addresses; empty if there is none.
    pub fn record(&self) -> &str {
        self.written_record().unwrap_or_default()
    }

    /// `status.loadBalancer.ingress`, if it has any entry.
    pub fn ingress(&self) -> Option<&Value> {
        match self.field(INGRESS) {
            Some(Field::Other(ingress)) => Some(ingress),
            _ => None,
        }
    }

    /// The addresses in the Service's `status.loadBalancer`.
    pub fn shown(&self) -> BTreeSet<IpAddr> {
        shown(self.ingress()).into_iter().collect()
    }

    /// The ports of a Service of type `LoadBalancer`, from its first [`MAX_PORTS`]. Ports that can't be read are left
    /// out.
    pub fn ports(&self) -> Arc<[Port]> {
        match self.field(PORTS) {
            Some(Field::Ports(ports)) => Arc::clone(ports),
            _ => Arc::default(),
        }
    }

    /// Whether the Service is of type `LoadBalancer`, has a record of external addresses, or claims or shows some. Most
    /// clusters have few such Services among many.
    pub fn may_have_external(&self) -> bool {
        !self.external.is_empty() || self.text(TYPE) == "LoadBalancer" || self.written_record().is_some()
    }

    /// The Service as a JSON object with the fields that are kept, except for its ports: no decision reads them, and as
    /// JSON they take a hundred times as much memory.
    pub fn value(&self) -> Value {
        let mut service = Map::new();
        service.insert("apiVersion".to_owned(), "v1".into());
        service.insert("kind".to_owned(), "Service".into());
        let ServiceKey { namespace, name } = &self.key;
        let mut metadata = Map::from_iter([("name".to_owned(), name.as_str().into())]);
        if !namespace.is_empty() {
            metadata.insert("namespace".to_owned(), namespace.as_str().into());
        }
        if let Some(by_hand) = self.by_hand {
            let owner = if by_hand { json!({"fieldsV1": {"f:spec": {(ADDRESS_FIELDS[0]): {}}}}) } else { json!({}) };
            metadata.insert("managedFields".to_owned(), json!([owner]));
        }
        service.insert("metadata".to_owned(), metadata.into());
        let plain = plain_addresses(&self.addresses).filter(|_| self.has_plain_addresses).into_iter().flatten();
        let fields = self.fields.iter().filter_map(|(index, field)| Some((usize::from(*index), field.value()?)));
        for (index, value) in fields.chain([CLUSTER_IP, CLUSTER_IPS].into_iter().zip(plain)) {
            let Some((last, outer)) = FIELDS[index].split_last() else { continue };
            let within = outer.iter().try_fold(&mut service, |object, key| {
                object.entry(*key).or_insert_with(|| Map::new().into()).as_object_mut()
            });
            if let Some(within) = within {
                within.insert((*last).to_owned(), value);
            }
        }
        service.into()
    }

    /// About how many bytes of memory the Service takes, with its entries in the indexes.
    pub(super) fn bytes(&self) -> usize {
        const ENTRY: usize = 96;
        let key = 2 * self.key.name.len() + self.key.namespace.len();
        let addresses = (self.addresses.len() + self.external.len()) * (size_of::<IpAddr>() + ENTRY);
        let fields = self.fields.iter().map(|(_, field)| size_of::<(u8, Field)>() + field.bytes());
        size_of::<Self>() + 2 * ENTRY + key + addresses + size_of_val(&*self.selected) + fields.sum::<usize>()
    }

    /// Whether the Service selects Pods with these labels.
    pub fn selects(&self, labels: &LabelHashes) -> bool {
        !self.selected.is_empty() && self.selected.iter().all(|label| labels.binary_search(label).is_ok())
    }

    fn written_record(&self) -> Option<&str> {
        match self.field(ANNOTATIONS) {
            Some(Field::Map(annotations)) => {
                annotations.iter().find(|(key, _)| **key == *RECORD_ANNOTATION).map(|(_, record)| &**record)
            }
            _ => None,
        }
    }

    fn text(&self, index: usize) -> &str {
        match self.field(index) {
            Some(Field::Frequent(text)) => text,
            Some(Field::Text(text)) => text,
            _ => "",
        }
    }

    fn field(&self, index: usize) -> Option<&Field> {
        self.fields.iter().find(|(other, _)| usize::from(*other) == index).map(|(_, field)| field)
    }
}

impl Field {
    /// What is kept of a field: no more than the core reads. `None` if that is nothing.
    fn of(index: usize, value: &Value) -> Option<Self> {
        let other = || Self::Other(Box::new(value.clone()));
        let most = match index {
            LABELS => MAX_LABELS,
            // One more than a Pod can have: a Service with a longer selector still selects no Pod.
            SELECTOR => MAX_LABELS + 1,
            EXTERNAL_IPS => MAX_EXTERNAL_IPS,
            _ => usize::MAX,
        };
        Some(match value {
            Value::String(text) if index == LOAD_BALANCER_IP => Self::Text(cut(text, TOO_LONG_FOR_ADDRESSES).into()),
            Value::String(text) => frequent(text).map_or_else(|| Self::Text(text.as_str().into()), Self::Frequent),
            Value::Array(items) if index == PORTS => {
                let ports: BTreeSet<Port> = items.iter().take(MAX_PORTS).filter_map(port).collect();
                Self::Ports(ports.into_iter().collect())
            }
            Value::Array(items) => match &items[..] {
                [Value::String(text)] if frequent(text).is_some() => Self::FrequentAlone(frequent(text)?),
                _ => {
                    let texts: Option<_> = items.iter().take(most).map(|item| Some(item.as_str()?.into())).collect();
                    texts.map_or_else(other, Self::Texts)
                }
            },
            Value::Object(fields) if index == ANNOTATIONS => {
                let kept = fields.iter().filter_map(|(key, value)| Some((&**key, shortened(key, value.as_str()?)?)));
                let kept: Box<[_]> = kept.map(|(key, value)| (key.into(), value.into())).collect();
                return (!kept.is_empty()).then_some(Self::Map(kept));
            }
            Value::Object(fields) => {
                let texts = fields.iter().take(most);
                let texts = texts.map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())));
                texts.collect::<Option<_>>().map_or_else(other, Self::Map)
            }
            _ => other(),
        })
    }

    fn value(&self) -> Option<Value> {
        Some(match self {
            Self::Ports(_) => return None,
            Self::Frequent(text) => (*text).into(),
            Self::FrequentAlone(text) => json!([text]),
            Self::Text(text) => (**text).into(),
            Self::Texts(texts) => texts.iter().map(|text| Value::from(&**text)).collect(),
            Self::Map(map) => map.iter().map(|(key, value)| (key.to_string(), Value::from(&**value))).collect(),
            Self::Other(value) => value.as_ref().clone(),
        })
    }

    fn bytes(&self) -> usize {
        /// A text has a pointer, a length, and what the allocator adds.
        const TEXT: usize = 24;
        match self {
            Self::Frequent(_) | Self::FrequentAlone(_) => 0,
            Self::Ports(ports) => size_of_val(&**ports) + TEXT,
            Self::Text(text) => text.len() + TEXT,
            Self::Texts(texts) => texts.iter().map(|text| text.len() + TEXT).sum(),
            Self::Map(map) => map.iter().map(|(key, value)| key.len() + value.len() + 2 * TEXT).sum(),
            Self::Other(value) => bytes_of(value),
        }
    }
}

/// `clusterIP` and `clusterIPs` as the API server writes these addresses; `None` if there are none.
fn plain_addresses(addresses: &[IpAddr]) -> Option<[Value; 2]> {
    Some([json!(addresses.first()?), json!(addresses)])
}

/// The text, if it is one of the frequent ones.
fn frequent(text: &str) -> Option<&'static str> {
    FREQUENT.into_iter().find(|known| *known == text)
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

/// About how many bytes a JSON value takes.
fn bytes_of(value: &Value) -> usize {
    const VALUE: usize = 64;
    VALUE
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(bytes_of).sum(),
            Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + VALUE + bytes_of(value)).sum(),
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
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
}
