//! Output of results: tables, JSON, YAML, reports for pipelines, and the HTML map.

pub mod audit_table;
pub mod columns;
pub mod explanation_table;
pub mod filled_manifests;
pub mod finding;
pub mod junit;
pub mod map;
pub mod markdown;
pub mod move_json;
pub mod move_table;
pub mod names;
pub mod plan_json;
pub mod plan_table;
