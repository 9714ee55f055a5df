//! Fields that several kinds of pools have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

// The rules compare texts, because Kubernetes 1.31 estimates that comparing two CIDRs costs too much. They accept every
// IPv6 range that is not in its canonical form. The core checks such a range.

/// A CIDR without host bits, such as 10.96.1.0/24 or fd00:1::/112.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    inline,
    extend(
        "maxLength" = 43,
        "x-kubernetes-validations" = [
            {"rule": "isCIDR(self)", "message": "must be a CIDR such as 10.96.1.0/24"},
            {
                "rule": "!isCIDR(self) || string(cidr(self)) != self || string(cidr(self).masked()) == self",
                "message": "must not have host bits set: for example, write 10.96.1.0/24 instead of 10.96.1.7/24"
            },
        ]
    )
)]
pub struct Cidr(pub String);

/// A CIDR without host bits, or one address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    inline,
    extend(
        "maxLength" = 43,
        "x-kubernetes-validations" = [
            {"rule": "isIP(self) || isCIDR(self)", "message": "must be an address or a CIDR"},
            {
                "rule": "!isCIDR(self) || string(cidr(self)) != self || string(cidr(self).masked()) == self",
                "message": "must not have host bits set: for example, write 10.96.1.0/24 instead of 10.96.1.7/24"
            },
        ]
    )
)]
pub struct CidrOrAddress(pub String);

/// A CIDR, or a range such as 10.0.9.10-10.0.9.40.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    inline,
    extend(
        "maxLength" = 79,
        "x-kubernetes-validations" = [{
            "rule": "self.contains('-') ? self.split('-').size() == 2 && self.split('-').all(a, isIP(a.trim())) \
                     : isCIDR(self) && (string(cidr(self)) != self || string(cidr(self).masked()) == self)",
            "message": "must be a CIDR without host bits, or a range such as 10.0.9.10-10.0.9.40"
        }]
    )
)]
pub struct AddressRange(pub String);

/// A CIDR, a range such as 10.0.9.10-10.0.9.40, or one address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    inline,
    extend(
        "maxLength" = 79,
        "x-kubernetes-validations" = [{
            "rule": "isIP(self) || (self.contains('-') ? self.split('-').size() == 2 && \
                     self.split('-').all(a, isIP(a.trim())) : \
                     isCIDR(self) && (string(cidr(self)) != self || string(cidr(self).masked()) == self))",
            "message": "must be an address, a CIDR without host bits, or a range such as 10.0.9.10-10.0.9.40"
        }]
    )
)]
pub struct AddressRangeOrAddress(pub String);

/// What the API server does about a Service that gets an address of the pool and is not admitted by the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub enum Fence {
    /// It accepts the Service.
    #[default]
    Allow,
    /// It returns a warning to the client.
    Warn,
    /// It refuses the Service.
    Deny,
}
