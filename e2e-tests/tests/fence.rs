//! The policies of `deploy/fence`, as they are shipped, without any server: the API server keeps the addresses of a
//! pool for the Services that the pool admits. All tests share one control plane, and have pools of their own.

mod admission;
mod external_addresses;
mod installation;
mod long_fields;
mod moves;
mod parser;
mod service_addresses;
pub(crate) mod support;
mod written;
