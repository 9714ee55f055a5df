//! The blocks that are in use, and where the search for the next one starts. The host sends them with each request.

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::json::{Located, TypeMismatch};

/// The state of the pools of Nodes. The policy keeps no blocks between requests, so the host sends this state with each
/// request for blocks, and records the blocks that it gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// The blocks in use. An entry may also be a part of a block or a larger range; any order.
    pub held: Vec<IpNet>,
    /// For each range of a pool, the block that was handed out last.
    pub last: Vec<IpNet>,
}

impl Allocation {
    /// Reads the state; `None` for `null`.
    ///
    /// # Errors
    /// [`TypeMismatch`] if `value` is not an object with two lists of CIDRs.
    pub fn read(value: &Value) -> Result<Option<Self>, TypeMismatch> {
        if value.is_null() {
            return Ok(None);
        }
        let at = Located::new(value, "allocation");
        let list = |key: &str| -> Result<Vec<IpNet>, TypeMismatch> {
            let Some(list) = at.get(key)? else { return Ok(Vec::new()) };
            list.items()?.map(|item| item.text()?.parse().map_err(|_| item.mismatch("a CIDR"))).collect()
        };
        Ok(Some(Self { held: list("held")?, last: list("last")? }))
    }

    /// The state in the form that [`Self::read`] reads.
    pub fn to_value(&self) -> Value {
        let texts = |blocks: &[IpNet]| blocks.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({"held": texts(&self.held), "last": texts(&self.last)})
    }
}
