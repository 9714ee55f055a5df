use super::*;

#[test]
fn answers_are_classified_by_code_and_message() {
    struct Case {
        code: u16,
        message: &'static str,
        expected: Refusal,
    }
    let taken = "Service \"web\" is invalid: spec.clusterIPs: Invalid value: [\"172.21.1.62\",\"fd00:21::5\"]: failed to allocate IP fd00:21::5: provided IP is already allocated";
    let outside = "Service \"web\" is invalid: spec.clusterIPs: Invalid value: [\"10.1.1.1\",\"\"]: failed to allocate IP 10.1.1.1: the provided network does not match the current range";
    let port =
        "Service \"web\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
    let health = "Internal error occurred: failed to allocate requested HealthCheck NodePort 31000: provided port is already allocated";
    let long = "Service \"web\" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes";
    let text = |reason: &str| reason.to_owned();
    let cases = [
        Case { code: 404, message: "", expected: Refusal::Gone },
        Case { code: 409, message: "the object has been modified", expected: Refusal::Conflict },
        Case {
            code: 422,
            message: taken,
            expected: Refusal::Address { which: "fd00:21::5".parse().ok(), reason: text(taken) },
        },
        Case {
            code: 422,
            message: outside,
            expected: Refusal::Address { which: "10.1.1.1".parse().ok(), reason: text(outside) },
        },
        Case { code: 422, message: "failed to allocate IP", expected: Refusal::Refused(text("failed to allocate IP")) },
        Case {
            code: 422,
            message: "failed to allocate IP x",
            expected: Refusal::Address { which: None, reason: text("failed to allocate IP x") },
        },
        Case { code: 422, message: port, expected: Refusal::Port { which: Some(30080), reason: text(port) } },
        Case { code: 500, message: health, expected: Refusal::Port { which: Some(31000), reason: text(health) } },
        Case { code: 422, message: long, expected: Refusal::Refused(text(long)) },
        Case { code: 403, message: "forbidden", expected: Refusal::Refused(text("forbidden")) },
        Case { code: 400, message: "bad", expected: Refusal::Refused(text("bad")) },
        Case { code: 408, message: "slow", expected: Refusal::Trouble(text("slow")) },
        Case { code: 429, message: "busy", expected: Refusal::Trouble(text("busy")) },
        Case { code: 500, message: "etcd", expected: Refusal::Trouble(text("etcd")) },
        Case { code: 503, message: "away", expected: Refusal::Trouble(text("away")) },
    ];
    for Case { code, message, expected } in cases {
        assert_eq!(Refusal::answer(code, message), expected, "{code} {message}");
    }
}

#[test]
fn answer_about_a_service_may_have_twice_its_size_and_16_kib() {
    for (bytes, expected) in [
        (16 << 10, Some((Size::Usual, 48 << 10))),
        ((16 << 10) + 1, Some((Size::Large, 528 << 10))),
        (256 << 10, Some((Size::Large, 528 << 10))),
        ((256 << 10) + 1, None),
    ] {
        assert_eq!(Size::of(bytes).map(|size| (size, size.most_read())), expected, "{bytes}");
    }
}
