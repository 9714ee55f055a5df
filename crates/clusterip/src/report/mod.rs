//! Output of results: tables, JSON, YAML, reports for pipelines, and the HTML map.

pub(crate) mod audit_parts;
pub(crate) mod audit_table;
pub(crate) mod columns;
pub mod filled_manifests;
pub mod map;
pub(crate) mod moves;
pub(crate) mod pipeline_reports;
pub(crate) mod plan;
