//! Reads the pools of Nodes. Single values are checked here, relations between values in `check_nodes`.

use super::nodes::{BlockSize, NodeMatch, NodePool, NodeSettings};
use super::read::PoolPaths;
use super::reader::Reader;
use crate::address::Family;
use crate::json::{Located, describe};

impl Reader {
    /// Reads `nodes`.
    pub(super) fn nodes(&mut self, at: &Located<'_>, nodes: &mut NodeSettings) -> Vec<PoolPaths> {
        let mut paths = Vec::new();
        let Some(fields) = self.fields(at, &["pools", "explicit"]) else { return paths };
        match fields.get("pools") {
            Some(pools) => {
                (nodes.pools, paths) = self.list(pools, Self::node_pool).into_iter().unzip();
                if pools.value.as_array().is_some_and(Vec::is_empty) {
                    self.mistake(pools.path.clone(), "no pool: give at least one, or leave `nodes` out");
                }
            }
            None => self.mistake(at.key_path("pools"), "missing: give at least one pool, or leave `nodes` out"),
        }
        if let Some(at) = fields.get("explicit") {
            nodes.explicit = self.explicit(at);
        }
        paths
    }

    fn node_pool(&mut self, at: &Located<'_>) -> Option<(NodePool, PoolPaths)> {
        let before = self.mistakes.len();
        let fields = self.fields(at, &["name", "cidrs", "blockSize", "exclude", "match"])?;
        let unknown_keys = self.mistakes.len() > before;
        let name = self.pool_name(at, &fields);
        let (cidr_paths, cidrs) = self.pool_ranges(at, &fields, Self::cidr);
        let block_size = fields.get("blockSize").and_then(|at| self.block_size(at)).unwrap_or_default();
        let (exclude_paths, exclude) = self.pool_exclude(&fields, Self::cidr_or_address);
        let before_match = self.mistakes.len();
        let matches = fields.get("match").and_then(|at| self.node_match(at)).unwrap_or_default();
        let pool_paths = PoolPaths {
            path: at.path.clone(),
            cidrs: cidr_paths,
            exclude: exclude_paths,
            match_is_whole: !unknown_keys && self.mistakes.len() == before_match,
            ..PoolPaths::default()
        };
        Some((NodePool { name, cidrs, block_size, exclude, matches }, pool_paths))
    }

    fn block_size(&mut self, at: &Located<'_>) -> Option<BlockSize> {
        let fields = self.fields(at, &["ipv4", "ipv6"])?;
        let default = BlockSize::default();
        let mut length = |key, family: Family, default| match fields.get(key) {
            Some(at) => self.prefix_length(at, family).unwrap_or(default),
            None => default,
        };
        Some(BlockSize { v4: length("ipv4", Family::V4, default.v4), v6: length("ipv6", Family::V6, default.v6) })
    }

    fn prefix_length(&mut self, at: &Located<'_>, family: Family) -> Option<u8> {
        let length = at.value.as_u64().and_then(|length| u8::try_from(length).ok());
        let length = length.filter(|length| (1..=family.bits()).contains(length));
        if length.is_none() {
            let found = describe(at.value);
            let reason = format!("expected a prefix length from 1 to {}, found {found}", family.bits());
            self.mistake(at.path.clone(), reason);
        }
        length
    }

    fn node_match(&mut self, at: &Located<'_>) -> Option<NodeMatch> {
        let fields = self.fields(at, &["os", "nodeLabels", "nodeSelector"])?;
        let node_labels = self.node_labels(&fields);
        let node_selector = fields.get("nodeSelector").and_then(|at| self.selector(at)).unwrap_or_default();
        Some(NodeMatch { node_labels, node_selector })
    }
}
