//! The style sheet and the script of the map, and the content security policy that allows only these.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The contents of the style sheet.
pub(super) const STYLE: &str = include_str!("../../../templates/map/map.css");

/// The contents of the script: its files, each after those that it depends on.
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

/// The content security policy of the page: it allows the page's own style and script, by their hashes. It is in
/// the page itself, and in the response header when the page is served.
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
