use super::configuration::cel_text;
use super::*;

#[test]
fn user_name_is_escaped_in_cel_expressions() {
    struct Case {
        name: &'static str,
        user: &'static str,
        written: &'static str,
    }
    let cases = [
        Case { name: "usual", user: "system:serviceaccount:shop:web", written: "system:serviceaccount:shop:web" },
        Case { name: "a quote", user: "o'neill", written: r"o\'neill" },
        Case { name: "an escape", user: r#"a\' || "b"#, written: r#"a\\\' || \"b"# },
        Case { name: "a line break", user: "a\nb", written: r"a\u000ab" },
    ];
    for Case { name, user, written } in cases {
        assert_eq!(cel_text(user), written, "{name}");
    }
}

#[test]
fn configuration_that_is_left_behind_is_named_with_the_remedy() {
    let error = Failure::silent("clusterip-policy").left_behind("clusterip-policy");
    assert_eq!(
        error.to_string(),
        "MutatingWebhookConfiguration clusterip-policy: no answer from the API server within 20s; it was left behind: \
         delete it with `kubectl delete mutatingwebhookconfiguration clusterip-policy`"
    );
}

#[test]
fn url_host_is_the_name_or_address_in_the_certificate() {
    for (url, host) in [
        ("https://127.0.0.1:8443", "127.0.0.1"),
        ("https://[::1]:8443/", "::1"),
        ("https://laptop.example.com", "laptop.example.com"),
    ] {
        assert_eq!(url_host(url).unwrap(), host, "{url}");
    }
}
