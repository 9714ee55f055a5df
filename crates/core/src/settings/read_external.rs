//! Reads the pools of external addresses. Single values are checked here, relations between values in `check_external`.

use std::net::IpAddr;

use super::external::{ExternalPool, ExternalSettings};
use super::read::PoolPaths;
use super::reader::Reader;
use crate::address::{Family, Span};
use crate::json::{Located, quote};

impl Reader {
    /// Reads `external`.
    pub(super) fn external(&mut self, at: &Located<'_>, external: &mut ExternalSettings) -> Vec<PoolPaths> {
        let mut paths = Vec::new();
        let Some(fields) = self.fields(at, &["pools", "loadBalancerClass", "default"]) else { return paths };
        match fields.get("pools") {
            Some(pools) => {
                (external.pools, paths) = self.list(pools, Self::external_pool).into_iter().unzip();
                if pools.value.as_array().is_some_and(Vec::is_empty) {
                    self.mistake(pools.path.clone(), "no pool: give at least one, or leave `external` out");
                }
            }
            None => self.mistake(at.key_path("pools"), "missing: give at least one pool, or leave `external` out"),
        }
        if let Some(class) = fields.get("loadBalancerClass").and_then(|at| self.class(at)) {
            external.load_balancer_class = class;
        }
        if let Some(default) = fields.get("default").and_then(|at| self.flag(at)) {
            external.default = default;
        }
        paths
    }

    fn external_pool(&mut self, at: &Located<'_>) -> Option<(ExternalPool, PoolPaths)> {
        let before = self.mistakes.len();
        let fields = self.fields(at, &["name", "cidrs", "exclude", "match", "nodes"])?;
        let unknown_keys = self.mistakes.len() > before;
        let name = self.pool_name(at, &fields);
        let (range_paths, ranges) = self.pool_ranges(at, &fields, Self::span);
        let (exclude_paths, exclude) = self.pool_exclude(&fields, Self::span_or_address);
        let before_match = self.mistakes.len();
        let matches = fields
            .get("match")
            .and_then(|at| self.fields(at, &["namespaces", "namespaceSelector", "serviceSelector"]))
            .map(|fields| self.scope(&fields));
        let match_is_whole = !unknown_keys && self.mistakes.len() == before_match;
        let nodes = fields.get("nodes").and_then(|at| self.selector(at)).unwrap_or_default();
        let path = at.path.clone();
        let pool_paths =
            PoolPaths { path, cidrs: range_paths, exclude: exclude_paths, match_is_whole, ..PoolPaths::default() };
        Some((ExternalPool { name, ranges, exclude, scope: matches.unwrap_or_default(), nodes }, pool_paths))
    }

    /// Reads a CIDR or `first-last`.
    fn span(&mut self, at: &Located<'_>) -> Option<Span> {
        let text = self.ok(at.text())?;
        let Some((first, last)) = text.split_once('-') else { return self.cidr(at).map(Into::into) };
        let address = |text: &str| text.trim().parse::<IpAddr>().ok();
        let (Some(first), Some(last)) = (address(first), address(last)) else {
            self.mistake(at.path.clone(), format!("{} is not a range such as 10.0.9.10-10.0.9.40", quote(text)));
            return None;
        };
        let span = Span::new(first, last);
        if span.is_none() {
            let reason = if Family::of(first) == Family::of(last) {
                format!("{first}-{last} ends before it begins: did you mean {last}-{first}?")
            } else {
                format!("{first}-{last} mixes IPv4 and IPv6")
            };
            self.mistake(at.path.clone(), reason);
        }
        span
    }

    fn span_or_address(&mut self, at: &Located<'_>) -> Option<Span> {
        match at.value.as_str().and_then(|text| text.parse::<IpAddr>().ok()) {
            Some(address) => Some(address.into()),
            None => self.span(at),
        }
    }

    /// Reads a load balancer class, which has the form of a label key.
    fn class(&mut self, at: &Located<'_>) -> Option<String> {
        let text = self.ok(at.text())?;
        if !super::reader::is_label_key(text) {
            let reason = format!("{} is not a class: expected a label key such as example.com/lan", quote(text));
            self.mistake(at.path.clone(), reason);
            return None;
        }
        Some(text.to_owned())
    }
}
