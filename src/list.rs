//! Reads Kubernetes lists as a stream: each item is dropped before the next one is read.

use std::net::IpAddr;

use clusterip_core::external::claim::claims;
use clusterip_core::external::stored;
use clusterip_core::json::{Located, TypeMismatch};
use clusterip_core::label_selector::{Labels, selects};
use clusterip_core::nodes::Node;
use clusterip_core::services::{MAX_FAMILIES, Service, addresses};
use clusterip_core::workload::{TemplateAt, Workload};
use ipnet::IpNet;
use serde_json::{Deserializer, Value};

/// Reads a list of workloads, and returns those in `namespace` whose Pods have all labels of `selector`.
pub fn workloads(
    json: &[u8],
    template: TemplateAt,
    namespace: &str,
    selector: &Labels,
) -> Result<Vec<Workload>, String> {
    let mut found = Vec::new();
    each(json, &mut |own_namespace, name, item| {
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
    each(json, &mut |namespace, name, item| {
        let spec = item.at("spec").map_err(in_words)?;
        // A field of another type is a mistake here. `addresses` would count it as absent.
        let texts = spec.text_of("type").and(spec.text_of("clusterIP")).and(spec.texts_of("clusterIPs", MAX_FAMILIES));
        texts.map_err(in_words)?;
        addresses(item.value).into_iter().for_each(|address| visit(namespace, name, address));
        Ok(())
    })
}

/// Reads a list of Services, and calls `visit` with the namespace, name and every external address that each of them
/// has or claims.
pub fn external_addresses(json: &[u8], visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), String> {
    each(json, &mut |namespace, name, item| {
        let service = Service::read(item.value, &item.path).map_err(in_words)?;
        // `stored::in_use` would sort them, for which the module has no room.
        let claims = claims(&service).into_iter().map(|(_, address)| address);
        let shown = stored::shown(item.value.pointer("/status/loadBalancer/ingress"));
        let all = stored::recorded(&service).into_iter().chain(claims).chain(shown);
        all.for_each(|address| visit(namespace, name, address));
        Ok(())
    })
}

/// Reads a list of Nodes, and calls `visit` with the name and every pod CIDR of each.
pub fn node_blocks(json: &[u8], visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), String> {
    each(json, &mut |_, name, item| {
        let node = Node::read(item.value, &item.path).map_err(in_words)?;
        node.blocks.into_iter().for_each(|block| visit(name, block));
        Ok(())
    })
}

fn in_words(mismatch: TypeMismatch) -> String {
    mismatch.to_string()
}

/// What to do with the namespace, the name and the whole of an item.
type Visit<'v> = dyn FnMut(&str, &str, &Located<'_>) -> Result<(), String> + 'v;

/// Calls `visit` at each item of a list until it fails. A list without `items`, or with `items: null`, is empty.
fn each(json: &[u8], visit: &mut Visit<'_>) -> Result<(), String> {
    let mut rest = Rest(json);
    rest.expect(b'{', "a Kubernetes list")?;
    let mut is_first = true;
    while !rest.skip(b'}') {
        if !is_first {
            rest.expect(b',', "a comma or the end of the list")?;
        }
        is_first = false;
        let key = rest.value()?;
        let is_items = Located::new(&key, "key").text().map_err(in_words)? == "items";
        rest.expect(b':', "a colon")?;
        if !is_items || !rest.skip(b'[') {
            let value = rest.value()?;
            if is_items && !value.is_null() {
                return Err(Located::new(&value, "items").mismatch("a list").to_string());
            }
            continue;
        }
        let mut count = 0;
        while !rest.skip(b']') {
            if count > 0 {
                rest.expect(b',', "a comma or the end of the items")?;
            }
            let item = rest.value()?;
            let item = Located::new(&item, format!("items[{count}]"));
            item.object().map_err(in_words)?;
            let metadata = item.at("metadata").map_err(in_words)?;
            let text = |key: &str| metadata.text_of(key).map(Option::unwrap_or_default).map_err(in_words);
            visit(text("namespace")?, text("name")?, &item)?;
            count += 1;
        }
    }
    rest.skip_spaces();
    if rest.0.is_empty() { Ok(()) } else { Err(format!("the last {} bytes follow the list", rest.0.len())) }
}

/// The rest of a JSON text. One value at a time is read.
struct Rest<'j>(&'j [u8]);

impl Rest<'_> {
    /// Skips `byte`, which is part of the syntax, and returns true, if it is next.
    fn skip(&mut self, byte: u8) -> bool {
        self.skip_spaces();
        let rest = self.0.strip_prefix(&[byte]);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn skip_spaces(&mut self) {
        while let [b' ' | b'\n' | b'\t' | b'\r', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }

    fn expect(&mut self, byte: u8, expected: &str) -> Result<(), String> {
        if self.skip(byte) {
            return Ok(());
        }
        Err(format!("expected {expected} before the last {} bytes", self.0.len()))
    }

    fn value(&mut self) -> Result<Value, String> {
        let mut values = Deserializer::from_slice(self.0).into_iter();
        let value = values.next().unwrap_or_else(|| serde_json::from_slice(b""));
        let value = value.map_err(|error| format!("{error} of the last {} bytes", self.0.len()))?;
        self.0 = &self.0[values.byte_offset()..];
        Ok(value)
    }
}
