//! Who has which external address: told by whoever asks for addresses, or looked up.

use std::cell::OnceCell;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::annotations;
use crate::cluster::{Cluster, LookupError};
use crate::json::{At, Mistyped};
use crate::label_selector::Labels;
use crate::settings::ExternalSettings;

/// Every external address that somebody has, each with its holder, `namespace/name`.
///
/// Whoever asks for addresses sends all of them beside the request, and remembers what it is given: nothing
/// is looked up then, and what is missing here counts as free. That is each address of the external pools
/// that a Service has recorded, claims otherwise (see [`super::claim`]), or has in
/// `status.loadBalancer.ingress`, and each that is in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// By address, as it is written canonically.
    by: Labels,
}

impl Held {
    /// Reads `{"held": [{"address": …, "by": …}]}`; nothing where it is `null`.
    ///
    /// # Errors
    /// [`Mistyped`] for anything else.
    pub fn read(value: &Value) -> Result<Option<Self>, Mistyped> {
        if value.is_null() {
            return Ok(None);
        }
        let mut held = Self::default();
        if let Some(list) = At::new(value, "external").get("held")? {
            for item in list.items()? {
                let address =
                    item.get("address")?.ok_or_else(|| item.mistyped("an address, and by whom it is held"))?;
                let Some(by) = item.text_of("by")? else {
                    return Err(item.mistyped("an address, and by whom it is held"));
                };
                held.add(
                    annotations::address(address.text()?).ok_or_else(|| address.mistyped("an address"))?,
                    by.to_owned(),
                );
            }
        }
        Ok(Some(held))
    }

    /// Notes a holder. Where an address has several, the first one that is noted has it.
    pub fn add(&mut self, address: IpAddr, by: String) {
        self.by.entry(address.to_string()).or_insert(by);
    }

    /// As it is sent.
    pub fn to_value(&self) -> Value {
        let held: Vec<Value> = self.by.iter().map(|(address, by)| json!({"address": address, "by": by})).collect();
        json!({ "held": held })
    }
}

/// Who else has an address: as it is told, or else as the list of Services says, which is asked for once and
/// only where it matters.
pub(super) struct Holders<'a> {
    pub(super) told: Option<&'a Held>,
    pub(super) external: &'a ExternalSettings,
    pub(super) cluster: &'a dyn Cluster,
    /// Namespace and name of the Service that asks.
    pub(super) subject: (&'a str, &'a str),
    pub(super) listed: OnceCell<Held>,
}

impl Holders<'_> {
    /// The other Service that has `address`, if one has.
    pub(super) fn other(&self, address: IpAddr) -> Result<Option<&str>, LookupError> {
        let (namespace, name) = self.subject;
        let is_own = |by: &str| by.split_once('/') == Some((namespace, name)) && !name.is_empty();
        let held = match (self.told, self.listed.get()) {
            (Some(held), _) | (None, Some(held)) => held,
            (None, None) => {
                let held = self.list()?;
                self.listed.get_or_init(|| held)
            }
        };
        Ok(held.by.get(&address.to_string()).map(String::as_str).filter(|by| !is_own(by)))
    }

    /// What others have of the pools.
    fn list(&self) -> Result<Held, LookupError> {
        let mut held = Held::default();
        self.cluster.external_addresses(&mut |namespace, name, address| {
            if (namespace, name) == self.subject || self.external.pool_of(address).is_none() {
                return;
            }
            let by = format!("{namespace}/{name}");
            let holder = held.by.entry(address.to_string()).or_default();
            // The first by name, whatever the order of the list.
            if holder.is_empty() || by < *holder {
                *holder = by;
            }
        })?;
        Ok(held)
    }
}
