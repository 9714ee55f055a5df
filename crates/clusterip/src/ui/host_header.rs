//! Checks the host name that a browser used to reach the map.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::uri::Authority;

/// Whether the request addresses this server. A server that listens on loopback serves only this machine. But any
/// web site can let its own name resolve to 127.0.0.1, and a browser on this machine then lets the site's pages
/// read the response. Such a request carries the name of the site. A server that listens on another address may
/// have any name.
pub(super) fn is_ours(listens: SocketAddr, request: &Request) -> bool {
    !listens.ip().is_loopback() || asked(request).is_some_and(|authority| is_local(authority.host()))
}

fn asked(request: &Request) -> Option<Authority> {
    if let Some(authority) = request.uri().authority() {
        return Some(authority.clone());
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next()?;
    if hosts.next().is_some() {
        return None;
    }
    Authority::try_from(host.as_bytes()).ok()
}

/// A loopback address or `localhost`: both always mean this machine.
fn is_local(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
