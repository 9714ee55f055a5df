//! From a document to settings: types, names and numbers. What concerns one value alone is checked
//! here; how values go together, in `check`.

use ipnet::IpNet;
use serde_json::Value;

use super::{Explicit, Lookups, Match, Mistake, Pool, Settings, WhenFull};
use crate::address::{Family, Order};
use crate::json::{At, Mistyped, quote};
use crate::label_selector::{LabelSelector, Labels, Operator, Requirement};
use crate::pod_spec::{OS_LABEL, normal};
use crate::workload::WorkloadKind;

/// Reads what can be read, and lists what can't. Where there are mistakes the settings are incomplete:
/// what was mistaken is left out or has its default.
pub(super) fn settings(document: &Value) -> (Settings, Vec<Origin>, Vec<Mistake>) {
    let mut reader = Reader::default();
    let mut settings = Settings::default();
    let document = At::new(document, "");
    if let Some(fields) = reader.fields(&document, &["services"])
        && let Some(services) = fields.get("services")
    {
        reader.services(services, &mut settings);
    }
    if reader.origins.is_empty() {
        // Either the default pools, or none.
        reader.origins =
            settings.pools.iter().enumerate().map(|(index, pool)| Origin::of_default(index, pool)).collect();
    }
    (settings, reader.origins, reader.mistakes)
}

/// Where the values of a pool stand in the document: items that could not be read are not in the pool.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) path: String,
    pub(super) cidrs: Vec<String>,
    pub(super) exclude: Vec<String>,
    /// Whether everything that says which Services the pool is for could be read.
    pub(super) match_is_whole: bool,
}

impl Origin {
    /// Where the values of a default pool would stand, had they been written.
    fn of_default(index: usize, pool: &Pool) -> Self {
        let path = format!("services.pools[{index}]");
        let items = |key: &str, count| (0..count).map(|item| format!("{path}.{key}[{item}]")).collect();
        Self {
            cidrs: items("cidrs", pool.cidrs.len()),
            exclude: items("exclude", pool.exclude.len()),
            match_is_whole: true,
            path,
        }
    }
}

#[derive(Default)]
struct Reader {
    mistakes: Vec<Mistake>,
    origins: Vec<Origin>,
}

/// The known fields of an object.
struct Fields<'v>(Vec<(&'static str, At<'v>)>);

impl<'v> Fields<'v> {
    fn get(&self, key: &str) -> Option<&At<'v>> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, at)| at)
    }
}

impl Reader {
    fn mistake(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.mistakes.push(Mistake { path: path.into(), reason: reason.into() });
    }

    fn ok<T>(&mut self, result: Result<T, Mistyped>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(Mistyped { path, expected, found }) => {
                let path = if path.is_empty() { "settings".into() } else { path };
                self.mistake(path, format!("expected {expected}, found {found}"));
                None
            }
        }
    }

    /// The fields of an object that are among `known`; every other is a mistake.
    fn fields<'v>(&mut self, at: &At<'v>, known: &[&'static str]) -> Option<Fields<'v>> {
        if at.value.is_null() {
            return Some(Fields(Vec::new()));
        }
        let object = self.ok(at.object())?;
        for key in object.keys().filter(|key| !known.contains(&key.as_str())) {
            let reason = unknown("key", key, known);
            self.mistake(at.key_path(key), reason);
        }
        let field = |&name: &&'static str| Some((name, At::new(object.get(name)?, at.key_path(name))));
        Some(Fields(known.iter().filter_map(field).filter(|(_, at)| !at.value.is_null()).collect()))
    }

    fn services(&mut self, at: &At<'_>, settings: &mut Settings) {
        const KEYS: [&str; 8] =
            ["pools", "evidence", "assumeOS", "order", "explicit", "whenFull", "exemptNamespaces", "serviceCIDRs"];
        let Some(fields) = self.fields(at, &KEYS) else { return };
        if let Some(pools) = fields.get("pools") {
            settings.pools = self.list(pools, Self::pool);
            if pools.value.as_array().is_some_and(Vec::is_empty) {
                self.mistake(
                    pools.path.clone(),
                    "no pool: give at least one, or leave the key out for the pools of K2s",
                );
            }
        }
        if let Some(evidence) = fields.get("evidence") {
            self.evidence(evidence, settings);
        }
        if let Some(os) = fields.get("assumeOS").and_then(|at| self.os(at)) {
            settings.assume_os = os;
        }
        if let Some(at) = fields.get("order") {
            settings.order =
                self.choice(at, &[("spread", Order::Spread), ("lowest", Order::Lowest)]).unwrap_or_default();
        }
        if let Some(at) = fields.get("explicit") {
            let choices = [("allow", Explicit::Allow), ("warn", Explicit::Warn), ("deny", Explicit::Deny)];
            settings.explicit = self.choice(at, &choices).unwrap_or_default();
        }
        if let Some(at) = fields.get("whenFull") {
            settings.when_full =
                self.choice(at, &[("deny", WhenFull::Deny), ("unmanaged", WhenFull::Unmanaged)]).unwrap_or_default();
        }
        if let Some(at) = fields.get("exemptNamespaces") {
            settings.exempt_namespaces = self.list(at, Self::dns_label);
        }
        if let Some(at) = fields.get("serviceCIDRs") {
            settings.service_cidrs = self.list(at, Self::service_cidr);
        }
    }

    fn pool(&mut self, at: &At<'_>) -> Option<Pool> {
        const KEYS: [&str; 6] = ["name", "cidrs", "reserved", "exclude", "bands", "match"];
        let unknown_keys = self.mistakes.len();
        let fields = self.fields(at, &KEYS)?;
        let unknown_keys = self.mistakes.len() > unknown_keys;
        let name = match fields.get("name") {
            Some(name) => self.dns_label(name).unwrap_or_default(),
            None => {
                self.mistake(at.key_path("name"), "missing: every pool needs a name");
                String::new()
            }
        };
        let cidrs = match fields.get("cidrs") {
            Some(cidrs) => {
                if cidrs.value.as_array().is_some_and(Vec::is_empty) {
                    self.mistake(cidrs.path.clone(), "no range: a pool needs at least one");
                }
                self.list(cidrs, |reader, at| Some((at.path.clone(), reader.cidr(at)?)))
            }
            None => {
                self.mistake(at.key_path("cidrs"), "missing: a pool needs at least one range");
                Vec::new()
            }
        };
        let reserved = fields.get("reserved").and_then(|at| self.count(at)).unwrap_or_default();
        let exclude = match fields.get("exclude") {
            Some(exclude) => self.list(exclude, |reader, at| Some((at.path.clone(), reader.cidr_or_address(at)?))),
            None => Vec::new(),
        };
        let bands = fields.get("bands").and_then(|at| self.flag(at)).unwrap_or_default();
        let before_match = self.mistakes.len();
        let matches = fields.get("match").and_then(|at| self.pool_match(at)).unwrap_or_default();
        let (cidr_paths, cidrs) = cidrs.into_iter().unzip();
        let (exclude_paths, exclude) = exclude.into_iter().unzip();
        self.origins.push(Origin {
            path: at.path.clone(),
            cidrs: cidr_paths,
            exclude: exclude_paths,
            match_is_whole: !unknown_keys && self.mistakes.len() == before_match,
        });
        Some(Pool { name, cidrs, reserved, exclude, bands, matches })
    }

    fn pool_match(&mut self, at: &At<'_>) -> Option<Match> {
        let fields = self.fields(at, &["os", "nodeLabels", "namespaces", "namespaceSelector", "serviceSelector"])?;
        let mut node_labels = Labels::new();
        if let Some(labels) = fields.get("nodeLabels") {
            for (key, value) in self.labels(labels) {
                let value = normal(&key, &value);
                node_labels.insert(key, value);
            }
        }
        if let Some(os) = fields.get("os").and_then(|at| Some((at, self.os(at)?))) {
            let (at, os) = os;
            match node_labels.get(OS_LABEL) {
                Some(other) if *other != os => {
                    let reason = format!("contradicts nodeLabels, where {OS_LABEL} is {}", quote(other));
                    self.mistake(at.path.clone(), reason);
                }
                _ => {
                    node_labels.insert(OS_LABEL.into(), os);
                }
            }
        }
        Some(Match {
            node_labels,
            namespaces: fields.get("namespaces").map(|at| self.list(at, Self::dns_label)).unwrap_or_default(),
            namespace_selector: fields.get("namespaceSelector").and_then(|at| self.selector(at)).unwrap_or_default(),
            service_selector: fields.get("serviceSelector").and_then(|at| self.selector(at)).unwrap_or_default(),
        })
    }

    fn selector(&mut self, at: &At<'_>) -> Option<LabelSelector> {
        let fields = self.fields(at, &["matchLabels", "matchExpressions"])?;
        Some(LabelSelector {
            match_labels: fields.get("matchLabels").map(|at| self.labels(at)).unwrap_or_default(),
            match_expressions: fields
                .get("matchExpressions")
                .map(|at| self.list(at, Self::requirement))
                .unwrap_or_default(),
        })
    }

    fn requirement(&mut self, at: &At<'_>) -> Option<Requirement> {
        let fields = self.fields(at, &["key", "operator", "values"])?;
        let key = match fields.get("key") {
            Some(key) => self.ok(key.text())?.to_owned(),
            None => {
                self.mistake(at.key_path("key"), "missing: a requirement is about a label");
                return None;
            }
        };
        if !is_label_key(&key) {
            self.mistake(at.key_path("key"), format!("{} is no label key", quote(&key)));
        }
        let operator = match fields.get("operator") {
            Some(operator) => {
                let name = self.ok(operator.text())?;
                let Some(known) = Operator::parse(name) else {
                    self.mistake(operator.path.clone(), unknown("operator", name, &Operator::NAMES));
                    return None;
                };
                known
            }
            None => {
                self.mistake(at.key_path("operator"), format!("missing: one of {}", Operator::NAMES.join(", ")));
                return None;
            }
        };
        let values = fields.get("values").map(|at| self.list(at, Self::label_value)).unwrap_or_default();
        match (operator.takes_values(), values.is_empty()) {
            (true, true) => self.mistake(at.key_path("values"), "missing: In and NotIn need at least one value"),
            (false, false) => self.mistake(at.key_path("values"), "Exists and DoesNotExist take no values"),
            _ => {}
        }
        Some(Requirement { key, operator, values })
    }

    fn evidence(&mut self, at: &At<'_>, settings: &mut Settings) {
        let Some(fields) = self.fields(at, &["kinds", "lookups"]) else { return };
        if let Some(at) = fields.get("lookups") {
            settings.lookups = self
                .choice(at, &[("cluster", Lookups::Cluster), ("namespace", Lookups::Namespace)])
                .unwrap_or_default();
        }
        if let Some(kinds) = fields.get("kinds") {
            let mut read: Vec<WorkloadKind> = Vec::new();
            self.list(kinds, |reader, at| {
                let kind = reader.kind(at)?;
                if read.contains(&kind) {
                    reader.mistake(at.path.clone(), format!("{} is in the list already", quote(at.value.as_str()?)));
                } else {
                    read.push(kind);
                }
                Some(())
            });
            settings.kinds = read;
        }
    }

    fn kind(&mut self, at: &At<'_>) -> Option<WorkloadKind> {
        let text = self.ok(at.text())?;
        let kind = WorkloadKind::parse(text);
        if kind.is_none() {
            let known: Vec<&str> = WorkloadKind::known_names().collect();
            let reason = unknown("kind", text, &known);
            self.mistake(at.path.clone(), format!("{reason}; a custom resource is written group/version/Kind"));
        }
        kind
    }

    /// The items of a list that can be read. A single value where a list is expected is a mistake.
    fn list<T>(&mut self, at: &At<'_>, mut read: impl FnMut(&mut Self, &At<'_>) -> Option<T>) -> Vec<T> {
        match self.ok(at.items()) {
            Some(items) => items.filter_map(|item| read(self, &item)).collect(),
            None => Vec::new(),
        }
    }

    fn choice<T: Copy>(&mut self, at: &At<'_>, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.ok(at.text())?;
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.mistake(at.path.clone(), unknown("value", text, &names));
        }
        found
    }

    fn count(&mut self, at: &At<'_>) -> Option<u64> {
        self.ok(at.value.as_u64().ok_or_else(|| at.mistyped("a number of addresses, 0 or more")))
    }

    fn flag(&mut self, at: &At<'_>) -> Option<bool> {
        self.ok(at.value.as_bool().ok_or_else(|| at.mistyped("true or false")))
    }

    fn os(&mut self, at: &At<'_>) -> Option<String> {
        let os = self.label_value(at)?.to_ascii_lowercase();
        if os.is_empty() {
            self.mistake(at.path.clone(), "empty: name an operating system, such as linux or windows");
            return None;
        }
        Some(os)
    }

    fn cidr(&mut self, at: &At<'_>) -> Option<IpNet> {
        let text = self.ok(at.text())?;
        let Ok(cidr) = text.parse::<IpNet>() else {
            let slash =
                if text.parse::<std::net::IpAddr>().is_ok() { ": the length is missing, such as /24" } else { "" };
            self.mistake(at.path.clone(), format!("{} is no CIDR{slash}", quote(text)));
            return None;
        };
        if cidr != cidr.trunc() {
            self.mistake(at.path.clone(), format!("{cidr} has host bits set: did you mean {}?", cidr.trunc()));
            return None;
        }
        Some(cidr)
    }

    fn cidr_or_address(&mut self, at: &At<'_>) -> Option<IpNet> {
        match at.value.as_str().and_then(|text| text.parse::<std::net::IpAddr>().ok()) {
            Some(address) => Some(address.into()),
            None => self.cidr(at),
        }
    }

    fn service_cidr(&mut self, at: &At<'_>) -> Option<IpNet> {
        const LONGEST: u8 = 3;
        let cidr = self.cidr(at)?;
        if Family::of(cidr.addr()).bits() - cidr.prefix_len() < LONGEST {
            self.mistake(
                at.path.clone(),
                format!("{cidr} has fewer than 8 addresses: no Service range may be so small"),
            );
            return None;
        }
        Some(cidr)
    }

    fn dns_label(&mut self, at: &At<'_>) -> Option<String> {
        let text = self.ok(at.text())?;
        if !is_dns_label(text) {
            let reason = format!("{} is no DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end", quote(text));
            self.mistake(at.path.clone(), reason);
            return None;
        }
        Some(text.to_owned())
    }

    fn labels(&mut self, at: &At<'_>) -> Labels {
        let mut labels = Labels::new();
        let Some(object) = self.ok(at.object()) else { return labels };
        for (key, value) in object {
            let at = At::new(value, at.key_path(key));
            if !is_label_key(key) {
                self.mistake(at.path.clone(), format!("{} is no label key", quote(key)));
            }
            if let Some(value) = self.label_value(&at) {
                labels.insert(key.clone(), value);
            }
        }
        labels
    }

    fn label_value(&mut self, at: &At<'_>) -> Option<String> {
        let text = self.ok(at.text())?;
        if !text.is_empty() && !is_label_name(text) {
            let reason = format!("{} is no label value: at most 63 of A-Z, a-z, 0-9, -, _ and .", quote(text));
            self.mistake(at.path.clone(), reason);
            return None;
        }
        Some(text.to_owned())
    }
}

fn is_dns_label(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(good) && !text.starts_with('-') && !text.ends_with('-')
}

/// `prefix/name`, or `name` alone.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_label_name(key),
        Some((prefix, name)) => prefix.len() <= 253 && prefix.split('.').all(is_dns_label) && is_label_name(name),
    }
}

fn is_label_name(name: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    name.len() <= 63
        && ends(name.bytes().next())
        && ends(name.bytes().last())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Says what something unknown could have been: the nearest known name, or all of them.
fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    const FARTHEST: usize = 3;
    let distance = |known: &&&str| strsim::damerau_levenshtein(&known.to_ascii_lowercase(), &name.to_ascii_lowercase());
    let nearest = known.iter().min_by_key(distance).filter(|known| distance(known) <= FARTHEST.min(known.len() / 2));
    match nearest {
        Some(nearest) => format!("unknown {what} {}: did you mean {nearest}?", quote(name)),
        None => format!("unknown {what} {}: known are {}", quote(name), known.join(", ")),
    }
}
