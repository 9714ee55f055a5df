//! Reads the parts that settings consist of: fields, lists, names, ranges, labels. A value that can't be read is
//! recorded as a mistake with its path, and left out.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Explicit, Mistake};
use crate::address::Family;
use crate::json::{Located, TypeMismatch, quote, unknown_name_message};
use crate::label_selector::{LabelSelector, Labels, Operator, Requirement};

/// Reads values, and records the mistakes.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) mistakes: Vec<Mistake>,
}

/// The known fields of an object that are present.
pub(super) struct Fields<'v>(Vec<(&'static str, Located<'v>)>);

impl<'v> Fields<'v> {
    pub(super) fn get(&self, key: &str) -> Option<&Located<'v>> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, at)| at)
    }
}

impl Reader {
    pub(super) fn mistake(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.mistakes.push(Mistake { path: path.into(), reason: reason.into() });
    }

    pub(super) fn ok<T>(&mut self, result: Result<T, TypeMismatch>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(TypeMismatch { path, expected, found }) => {
                let path = if path.is_empty() { "settings".into() } else { path };
                self.mistake(path, format!("expected {expected}, found {found}"));
                None
            }
        }
    }

    /// The fields of an object that are among `known`. Any other field is a mistake.
    pub(super) fn fields<'v>(&mut self, at: &Located<'v>, known: &[&'static str]) -> Option<Fields<'v>> {
        if at.value.is_null() {
            return Some(Fields(Vec::new()));
        }
        let object = self.ok(at.object())?;
        for key in object.keys().filter(|key| !known.contains(&key.as_str())) {
            let reason = unknown_name_message("key", key, known);
            self.mistake(at.key_path(key), reason);
        }
        let field = |&name: &&'static str| Some((name, Located::new(object.get(name)?, at.key_path(name))));
        Some(Fields(known.iter().filter_map(field).filter(|(_, at)| !at.value.is_null()).collect()))
    }

    pub(super) fn selector(&mut self, at: &Located<'_>) -> Option<LabelSelector> {
        let fields = self.fields(at, &["matchLabels", "matchExpressions"])?;
        Some(LabelSelector {
            match_labels: fields.get("matchLabels").map(|at| self.labels(at)).unwrap_or_default(),
            match_expressions: fields
                .get("matchExpressions")
                .map(|at| self.list(at, Self::requirement))
                .unwrap_or_default(),
        })
    }

    fn requirement(&mut self, at: &Located<'_>) -> Option<Requirement> {
        let fields = self.fields(at, &["key", "operator", "values"])?;
        let key = match fields.get("key") {
            Some(key) => self.ok(key.text())?.to_owned(),
            None => {
                self.mistake(at.key_path("key"), "missing: a requirement needs a label key");
                return None;
            }
        };
        if !is_label_key(&key) {
            self.mistake(at.key_path("key"), format!("{} is not a label key", quote(&key)));
        }
        let operator = match fields.get("operator") {
            Some(operator) => {
                let name = self.ok(operator.text())?;
                let Some(known) = Operator::parse(name) else {
                    self.mistake(operator.path.clone(), unknown_name_message("operator", name, &Operator::NAMES));
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

    /// The items of a list that can be read. A value that is not a list is a mistake.
    pub(super) fn list<T>(
        &mut self,
        at: &Located<'_>,
        mut read: impl FnMut(&mut Self, &Located<'_>) -> Option<T>,
    ) -> Vec<T> {
        match self.ok(at.items()) {
            Some(items) => items.filter_map(|item| read(self, &item)).collect(),
            None => Vec::new(),
        }
    }

    /// The value whose name, at the same place of `names`, is written here.
    pub(super) fn choice<T: Copy>(&mut self, at: &Located<'_>, names: &[&str], values: &[T]) -> Option<T> {
        values.get(self.chosen(at, names)?).copied()
    }

    #[inline(never)] // The module has room for one copy.
    fn chosen(&mut self, at: &Located<'_>, names: &[&str]) -> Option<usize> {
        let text = self.ok(at.text())?;
        let found = names.iter().position(|name| *name == text);
        if found.is_none() {
            self.mistake(at.path.clone(), unknown_name_message("value", text, names));
        }
        found
    }

    pub(super) fn explicit(&mut self, at: &Located<'_>) -> Explicit {
        let values = [Explicit::Allow, Explicit::Warn, Explicit::Deny];
        self.choice(at, &["allow", "warn", "deny"], &values).unwrap_or_default()
    }

    pub(super) fn count(&mut self, at: &Located<'_>) -> Option<u64> {
        self.ok(at.value.as_u64().ok_or_else(|| at.mismatch("a number of addresses, 0 or more")))
    }

    pub(super) fn flag(&mut self, at: &Located<'_>) -> Option<bool> {
        self.ok(at.value.as_bool().ok_or_else(|| at.mismatch("true or false")))
    }

    pub(super) fn os(&mut self, at: &Located<'_>) -> Option<String> {
        let os = self.label_value(at)?.to_ascii_lowercase();
        if os.is_empty() {
            self.mistake(at.path.clone(), "empty: name an operating system, such as linux or windows");
            return None;
        }
        Some(os)
    }

    pub(super) fn cidr(&mut self, at: &Located<'_>) -> Option<IpNet> {
        let text = self.ok(at.text())?;
        match parse_cidr(text) {
            Ok(cidr) => Some(cidr),
            Err(reason) => {
                self.mistake(at.path.clone(), reason);
                None
            }
        }
    }

    pub(super) fn address(&mut self, at: &Located<'_>) -> Option<IpAddr> {
        let text = self.ok(at.text())?;
        let address = text.parse().ok();
        if address.is_none() {
            self.mistake(at.path.clone(), format!("{} is not an IP address", quote(text)));
        }
        address
    }

    pub(super) fn cidr_or_address(&mut self, at: &Located<'_>) -> Option<IpNet> {
        match at.value.as_str().and_then(|text| text.parse::<IpAddr>().ok()) {
            Some(address) => Some(address.into()),
            None => self.cidr(at),
        }
    }

    pub(super) fn service_cidr(&mut self, at: &Located<'_>) -> Option<IpNet> {
        const MIN_HOST_BITS: u8 = 3;
        let cidr = self.cidr(at)?;
        if Family::of(cidr.addr()).bits() - cidr.prefix_len() < MIN_HOST_BITS {
            self.mistake(at.path.clone(), format!("{cidr} has fewer than 8 addresses: too small for a Service range"));
            return None;
        }
        Some(cidr)
    }

    pub(super) fn dns_label(&mut self, at: &Located<'_>) -> Option<String> {
        let text = self.ok(at.text())?;
        if !is_dns_label(text) {
            let reason = format!("{} is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end", quote(text));
            self.mistake(at.path.clone(), reason);
            return None;
        }
        Some(text.to_owned())
    }

    pub(super) fn labels(&mut self, at: &Located<'_>) -> Labels {
        let mut labels = Labels::new();
        let Some(object) = self.ok(at.object()) else { return labels };
        for (key, value) in object {
            let at = Located::new(value, at.key_path(key));
            if !is_label_key(key) {
                self.mistake(at.path.clone(), format!("{} is not a label key", quote(key)));
            }
            if let Some(value) = self.label_value(&at) {
                labels.insert(key.clone(), value);
            }
        }
        labels
    }

    pub(super) fn label_value(&mut self, at: &Located<'_>) -> Option<String> {
        let text = self.ok(at.text())?;
        if !text.is_empty() && !is_label_name(text) {
            let reason = format!("{} is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and .", quote(text));
            self.mistake(at.path.clone(), reason);
            return None;
        }
        Some(text.to_owned())
    }
}

/// Whether `text` is a DNS label in lower case: 1 to 63 of a-z, 0-9 and -, without - at either end.
pub fn is_dns_label(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(good) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether `key` is `prefix/name` or `name`.
pub(super) fn is_label_key(key: &str) -> bool {
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

/// Parses a CIDR without host bits.
///
/// # Errors
/// The reason, with advice, for any other text.
pub fn parse_cidr(text: &str) -> Result<IpNet, String> {
    let Ok(cidr) = text.parse::<IpNet>() else {
        let slash = if text.parse::<IpAddr>().is_ok() { ": add a prefix length such as /24" } else { "" };
        return Err(format!("{} is not a CIDR{slash}", quote(text)));
    };
    if cidr != cidr.trunc() {
        return Err(format!("{cidr} has host bits set: did you mean {}?", cidr.trunc()));
    }
    Ok(cidr)
}
