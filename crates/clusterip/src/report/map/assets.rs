//! The style sheet and the script of the map, and the policy that allows these and nothing else.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The style sheet.
pub(super) const STYLE: &str = include_str!("../../../templates/map/map.css");

/// The script: its files, in the order in which they need each other.
pub(super) const SCRIPT: &str = concat!(
    "\n",
    include_str!("../../../templates/map/address.js"),
    include_str!("../../../templates/map/words.js"),
    include_str!("../../../templates/map/range.js"),
    include_str!("../../../templates/map/card.js"),
    include_str!("../../../templates/map/grid.js"),
    include_str!("../../../templates/map/search.js"),
    include_str!("../../../templates/map/findings.js"),
    include_str!("../../../templates/map/place.js"),
    include_str!("../../../templates/map/main.js"),
);

/// The content security policy of the page: its own style and script, by their hashes, and nothing else.
/// It stands in the page, and goes before it where it is served.
pub fn content_security_policy() -> &'static str {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'; \
             require-trusted-types-for 'script'; trusted-types 'none'",
            hash(SCRIPT),
            hash(STYLE)
        )
    });
    &POLICY
}

fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text.as_bytes())))
}
