//! Reads the parts that settings consist of: fields, lists, names, ranges, labels. A value that can't be read is
//! recorded as a mistake with its path, and left out.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Explicit, Mistake};
use crate::address::Family;
use crate::json::{Located, TypeMismatch, quote, unknown_name_message};
use crate::label_selector::{LabelSelector, Labels, Operator, Requirement};

pub(super) type Read<T> = fn(&mut Reader, &Located<'_>) -> Option<T>;

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

    /// What a text stands for. An error is a mistake.
    pub(super) fn parse<T>(&mut self, at: &Located<'_>, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        parse(self.ok(at.text())?).map_err(|reason| self.mistake(at.path.clone(), reason)).ok()
    }

    /// The value of a field; the default if the field is absent or can't be read.
    #[inline(never)] // The module has room for one copy for each type.
    pub(super) fn field<T: Default>(&mut self, fields: &Fields<'_>, key: &str, read: Read<T>) -> T {
        fields.get(key).and_then(|at| read(self, at)).unwrap_or_default()
    }

    /// The items of a list in a field, and their paths.
    #[inline(never)] // As above.
    pub(super) fn located<T>(&mut self, fields: &Fields<'_>, key: &str, read: Read<T>) -> (Vec<String>, Vec<T>) {
        let Some(at) = fields.get(key) else { return Default::default() };
        self.list(at, |reader, at| Some((at.path.clone(), read(reader, at)?))).into_iter().unzip()
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
            match_labels: self.field(&fields, "matchLabels", |reader, at| Some(reader.labels(at))),
            match_expressions: self.located(&fields, "matchExpressions", Self::requirement).1,
        })
    }

    fn requirement(&mut self, at: &Located<'_>) -> Option<Requirement> {
        let fields = self.fields(at, &["key", "operator", "values"])?;
        let Some(key) = fields.get("key") else {
            self.mistake(at.key_path("key"), "missing: a requirement needs a label key");
            return None;
        };
        let key = self.ok(key.text())?.to_owned();
        if !is_label_key(&key) {
            self.mistake(at.key_path("key"), format!("{} is not a label key", quote(&key)));
        }
        let Some(operator) = fields.get("operator") else {
            self.mistake(at.key_path("operator"), format!("missing: one of {}", Operator::NAMES.join(", ")));
            return None;
        };
        let unknown = |name: &str| unknown_name_message("operator", name, &Operator::NAMES);
        let operator = self.parse(operator, |name| Operator::parse(name).ok_or_else(|| unknown(name)))?;
        let values = self.located(&fields, "values", Self::label_value).1;
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
        let unknown = |text: &str| unknown_name_message("value", text, names);
        self.parse(at, |text| names.iter().position(|name| *name == text).ok_or_else(|| unknown(text)))
    }

    pub(super) fn explicit(&mut self, at: &Located<'_>) -> Option<Explicit> {
        self.choice(at, &["allow", "warn", "deny"], &[Explicit::Allow, Explicit::Warn, Explicit::Deny])
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
        self.parse(at, parse_cidr)
    }

    pub(super) fn address(&mut self, at: &Located<'_>) -> Option<IpAddr> {
        self.parse(at, |text| text.parse().map_err(|_| format!("{} is not an IP address", quote(text))))
    }

    pub(super) fn cidr_or_address(&mut self, at: &Located<'_>) -> Option<IpNet> {
        self.parse(at, |text| text.parse().map_or_else(|_| parse_cidr(text), |address: IpAddr| Ok(address.into())))
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
        self.text(at, is_dns_label, "a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end")
    }

    #[inline(never)] // The module has room for one copy.
    pub(super) fn text(&mut self, at: &Located<'_>, is_valid: fn(&str) -> bool, expected: &str) -> Option<String> {
        let wrong = |text: &str| format!("{} is not {expected}", quote(text));
        self.parse(at, |text| if is_valid(text) { Ok(text.to_owned()) } else { Err(wrong(text)) })
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
        let is_value = |text: &str| text.is_empty() || is_label_name(text);
        self.text(at, is_value, "a label value: at most 63 of A-Z, a-z, 0-9, -, _ and .")
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

/// Parses a CIDR without host bits. The error about any other text has advice.
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
