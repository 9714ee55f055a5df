//! Output of results: tables, JSON, YAML, and the HTML map.

pub mod audit_table;
pub mod columns;
pub mod explanation_table;
pub mod filled_manifests;
pub mod map;
pub mod move_table;
pub mod plan_json;
pub mod plan_table;
