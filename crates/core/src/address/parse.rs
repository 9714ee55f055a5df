//! Reads addresses in all forms that Kubernetes accepts.

use std::net::IpAddr;

/// Parses an address as any program that acts on it might: Kubernetes ignores leading zeros of octets and of groups,
/// and an IPv4-mapped IPv6 address is that IPv4 address. Before Kubernetes 1.36, the API server accepts and stores these
/// forms in `spec.clusterIP`. A stricter parser would let a Service take an address of a pool in a form that this policy
/// does not recognise.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let mut plain = String::with_capacity(text.len());
    let mut at_start = true;
    for (index, digit) in text.char_indices() {
        let is_leading =
            at_start && digit == '0' && text[index + 1..].starts_with(|next: char| next.is_ascii_hexdigit());
        if !is_leading {
            at_start = matches!(digit, '.' | ':');
            plain.push(digit);
        }
    }
    Some(plain.parse::<IpAddr>().ok()?.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_ignored_and_mapped_addresses_are_ipv4() {
        let rows = [
            ("172.21.1.77", Some("172.21.1.77")),
            ("172.021.001.0077", Some("172.21.1.77")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("000.00.0.00", Some("0.0.0.0")),
            ("::ffff:172.21.1.77", Some("172.21.1.77")),
            ("::0ffff:172.21.1.77", Some("172.21.1.77")),
            ("::0FFFF:172.021.001.077", Some("172.21.1.77")),
            ("0:0:0:0:0:00ffff:ac15:14d", Some("172.21.1.77")),
            ("fd00:21::00077", Some("fd00:21::77")),
            ("0fd00:00021:0000:0::77", Some("fd00:21::77")),
            ("::", Some("::")),
            ("::1", Some("::1")),
            ("1::", Some("1::")),
            ("::0000001", Some("::1")),
            ("", None),
            ("0", None),
            ("None", None),
            ("172.21.1", None),
            ("172.21..77", None),
            ("172.21.1.256", None),
            ("172.21.1.0x7", None),
            ("172.21.1.77 ", None),
            ("fd00::10000", None),
            ("fd00:::1", None),
            ("fe80::1%eth0", None),
            ("１72.21.1.77", None),
        ];
        for (text, expected) in rows {
            let expected = expected.and_then(|expected| expected.parse().ok());
            assert_eq!(parse_address(text), expected, "{text:?}");
        }
    }
}
