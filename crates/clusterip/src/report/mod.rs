//! Output of results: tables, JSON, YAML, reports for pipelines, and the HTML map.

pub mod audit_table;
pub mod columns;
pub mod filled;
pub mod finding;
pub mod json;
pub mod junit;
pub mod map;
pub mod markdown;
pub mod move_json;
pub mod move_table;
pub mod names;
pub mod sarif;
pub mod table;
pub mod why_table;
