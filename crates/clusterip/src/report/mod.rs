//! Output of results: tables, JSON, YAML, and the HTML map.

pub mod audit_table;
pub mod columns;
pub mod filled;
pub mod json;
pub mod map;
pub mod move_json;
pub mod move_table;
pub mod table;
pub mod why_table;
