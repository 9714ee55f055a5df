//! Reads Kubernetes lists as a stream: of each item, only the fields that the policy reads become values, and the item
//! is dropped before the next one is read.

use std::fmt;
use std::net::IpAddr;

use clusterip_core::external::stored;
use clusterip_core::json::{Located, TypeMismatch};
use clusterip_core::label_selector::{Labels, selects};
use clusterip_core::nodes::Node;
use clusterip_core::services::Service;
use clusterip_core::workload::{TemplateAt, Workload};
use ipnet::IpNet;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The fields that the policy reads of Services for their cluster IPs, of Services for their external addresses, and of
/// Nodes, besides `metadata`. They are sorted, because the host compares queries as sets.
pub(crate) const SERVICE: [&str; 3] = ["spec.clusterIP", "spec.clusterIPs", "spec.type"];
pub(crate) const EXTERNAL: [&str; 3] = ["spec.externalIPs", "spec.loadBalancerIP", "status.loadBalancer.ingress"];
pub(crate) const NODE: [&str; 2] = ["spec.podCIDR", "spec.podCIDRs"];

/// Reads a list of workloads, and returns those in `namespace` whose Pods have all labels of `selector`.
pub fn workloads(
    json: &[u8],
    template: TemplateAt,
    namespace: &str,
    selector: &Labels,
) -> Result<Vec<Workload>, String> {
    let mut found = Vec::new();
    // The whole `spec`: in another namespace, its fields may have any type.
    each(json, &["metadata.labels", "spec"], &mut |own_namespace, name, item| {
        if own_namespace != namespace {
            return Ok(());
        }
        let labels = item.value.get("metadata").and_then(|metadata| metadata.get("labels")).unwrap_or(&Value::Null);
        let spec = item.value.get("spec").unwrap_or(&Value::Null);
        let in_words = |mismatch: TypeMismatch| format!("{namespace}/{name}: {mismatch}");
        let pods = template.pods(labels, spec).map_err(in_words)?.filter(|pods| selects(selector, &pods.labels));
        if let Some(pods) = pods {
            found.push(Workload { name: name.to_owned(), pod_spec: pods.spec.map_err(in_words)?.into() });
        }
        Ok(())
    })?;
    Ok(found)
}

/// Reads a list of Services, and calls `visit` with the namespace, name and every cluster IP of each.
pub fn service_addresses(json: &[u8], visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), String> {
    each(json, &SERVICE, &mut |namespace, name, item| {
        let service = Service::read(item.value, &item.path).map_err(in_words)?;
        service.addresses().into_iter().for_each(|address| visit(namespace, name, address));
        Ok(())
    })
}

/// Reads a list of Services, and calls `visit` with the namespace, name and every external address that each of them
/// has or claims.
pub fn external_addresses(json: &[u8], visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), String> {
    let [ips, balancer, ingress] = EXTERNAL;
    each(json, &["metadata.annotations", ips, balancer, ingress], &mut |namespace, name, item| {
        let service = Service::read(item.value, &item.path).map_err(in_words)?;
        let shown = stored::shown(item.value.pointer("/status/loadBalancer/ingress"));
        stored::claimed(&service).into_iter().chain(shown).for_each(|address| visit(namespace, name, address));
        Ok(())
    })
}

/// Reads a list of Nodes, and calls `visit` with the name and every pod CIDR of each.
pub fn node_blocks(json: &[u8], visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), String> {
    each(json, &NODE, &mut |_, name, item| {
        let node = Node::read(item.value, &item.path).map_err(in_words)?;
        node.blocks.into_iter().for_each(|block| visit(name, block));
        Ok(())
    })
}

fn in_words(mismatch: TypeMismatch) -> String {
    mismatch.to_string()
}

/// What to do with the namespace, the name and the fields of an item.
type Visit<'v> = dyn FnMut(&str, &str, &Located<'_>) -> Result<(), String> + 'v;

/// Calls `visit` at each item of a list until it fails. The item has only these fields. A list without `items`, or with
/// `items: null`, is empty.
fn each(json: &[u8], fields: &[&str], visit: &mut Visit<'_>) -> Result<(), String> {
    let fields = [&["metadata.name", "metadata.namespace"], fields].concat();
    let mut list = List { fields, visit, count: 0, wrong: None };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let read = deserializer.deserialize_map(&mut list).and_then(|()| deserializer.end());
    list.wrong.map_or(read.map_err(|error| error.to_string()), Err)
}

/// A list that is being read: the whole list is a map, and its items a list or `null`.
struct List<'l, 'v> {
    fields: Vec<&'l str>,
    visit: &'l mut Visit<'v>,
    count: usize,
    /// Why an item can't be used. An error of the reader would add a position to it.
    wrong: Option<String>,
}

impl List<'_, '_> {
    fn item(&mut self, item: &Value) -> Result<(), String> {
        let item = Located::new(item, format!("items[{}]", self.count));
        item.object().map_err(in_words)?;
        self.count += 1;
        let metadata = item.at("metadata").map_err(in_words)?;
        let text = |key: &str| metadata.text_of(key).map(Option::unwrap_or_default).map_err(in_words);
        (self.visit)(text("namespace")?, text("name")?, &item)
    }
}

impl<'de> DeserializeSeed<'de> for &mut List<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for &mut List<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "items" => map.next_value_seed(&mut *self)?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element_seed(Fields(self.fields.clone()))? {
            if let Err(wrong) = self.item(&item) {
                self.wrong = Some(wrong);
                return Err(A::Error::custom(""));
            }
        }
        Ok(())
    }
}

/// The paths of the fields of an object that become values. An empty path is the whole value.
struct Fields<'f>(Vec<&'f str>);

impl Fields<'_> {
    /// The fields below the field with this key.
    fn below(&self, key: &str) -> Self {
        let below = self.0.iter().filter_map(|path| path.strip_prefix(key));
        Self(below.filter_map(|rest| if rest.is_empty() { Some(rest) } else { rest.strip_prefix('.') }).collect())
    }
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.0.contains(&"") { Value::deserialize(deserializer) } else { deserializer.deserialize_option(self) }
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut found = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let below = self.below(&key);
            if below.0.is_empty() {
                map.next_value::<IgnoredAny>()?;
            } else if found.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the field {key} occurs twice")));
            } else {
                let value = map.next_value_seed(below)?;
                found.insert(key, value);
            }
        }
        Ok(found.into())
    }
}
