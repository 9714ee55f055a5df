//! Which names a browser may have used to get here.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::uri::Authority;

/// Whether the request means this server. One that listens on loopback only is for this machine; but any
/// web site can have its own name resolve to 127.0.0.1, and a browser here then lets its pages read what
/// it gets. Such a request still bears that name. A server that listens elsewhere may have any name.
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

/// An address can't be made to mean something else. `localhost` is always this machine, too.
fn is_local(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
