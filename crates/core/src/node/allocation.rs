//! What is handed out already, and where to go on: told by whoever asks for blocks.

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::json::{At, Mistyped};

/// The state of the pools of Nodes. Whoever asks for blocks sends it beside the request, and keeps what it
/// is given: the policy remembers nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Blocks that are held, parts of them, or larger ranges, in any order.
    pub held: Vec<IpNet>,
    /// The block handed out last, of each range that one was handed out of.
    pub last: Vec<IpNet>,
}

impl Allocation {
    /// Reads the state; nothing where it is `null`.
    ///
    /// # Errors
    /// [`Mistyped`] for anything but two lists of CIDRs.
    pub fn read(value: &Value) -> Result<Option<Self>, Mistyped> {
        if value.is_null() {
            return Ok(None);
        }
        let at = At::new(value, "allocation");
        let list = |key: &str| -> Result<Vec<IpNet>, Mistyped> {
            let Some(list) = at.get(key)? else { return Ok(Vec::new()) };
            list.items()?.map(|item| item.text()?.parse().map_err(|_| item.mistyped("a CIDR"))).collect()
        };
        Ok(Some(Self { held: list("held")?, last: list("last")? }))
    }

    /// The state as it is sent.
    pub fn to_value(&self) -> Value {
        let texts = |blocks: &[IpNet]| blocks.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({"held": texts(&self.held), "last": texts(&self.last)})
    }
}
