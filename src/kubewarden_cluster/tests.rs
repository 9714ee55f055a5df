use clusterip_core::workload::TemplateAt;

use super::*;

#[track_caller]
fn classify(text: &str) -> Result<Option<Reserve>, LookupError> {
    let cluster = KubewardenCluster::new(|_: &str, _: &[u8]| Err(text.to_owned()));
    cluster.reserve(IpAddr::from([10, 0, 0, 9])).map(Some)
}

/// The results of a failed look-up of `IPAddress`: how the denial begins.
const FREE: &str = "free";
const ABSENT: &str = "absent";
const NOT_GRANTED: &str = "no permission to read networking.k8s.io/v1/IPAddress 10.0.0.9: ";
const FAILED: &str = "looking up networking.k8s.io/v1/IPAddress 10.0.0.9 failed: ";

fn words(text: &str) -> String {
    match classify(text) {
        Ok(Some(Reserve::Free)) => FREE.to_owned(),
        Ok(Some(Reserve::NoSuchApi)) => ABSENT.to_owned(),
        Ok(other) => format!("{other:?}"),
        Err(error) => error.to_string(),
    }
}

/// The API server's Status as hosts print it behind an error.
fn status(code: u16, message: &str, reason: &str) -> String {
    let details = "details: Some(StatusDetails { name: \"\", group: \"\", kind: \"\", uid: \"\", causes: [] })";
    let status = format!("status: Some(Failure), code: {code}, message: {message:?}, metadata: None");
    format!("ApiError: {message}: {reason} (Status {{ {status}, reason: {reason:?}, {details} }})")
}

/// The same, printed by a host with an older client.
fn old_status(code: u16, message: &str, reason: &str) -> String {
    let status = format!("status: \"Failure\", message: {message:?}, reason: {reason:?}, code: {code}");
    format!("ApiError: {message}: {reason} (ErrorResponse {{ {status} }})")
}

fn finding(error: &str) -> String {
    format!("error finding resource networking.k8s.io/v1 / IPAddress: {error}")
}

#[test]
fn host_errors_are_classified_by_their_text() {
    const FORBIDDEN: &str = "ipaddresses.networking.k8s.io \"10.0.0.9\" is forbidden: User \"kw\" cannot get resource";
    const NO_PATH: &str = "forbidden: User \"kw\" cannot get path \"/apis/networking.k8s.io/v1\"";
    const NO_PAGE: &str = "404 page not found\n";
    const UNREAD: &str = "Failed to parse error data";
    const SERVICE_ERROR: &str = "ServiceError: client error (Connect)";
    struct Case {
        name: &'static str,
        text: String,
        outcome: &'static str,
        /// The text that follows the outcome; `None` if it is the whole text of the host.
        detail: Option<&'static str>,
    }
    let case = |name, text, outcome, detail| Case { name, text, outcome, detail: Some(detail) };
    let whole = |text: &str, outcome| Case { name: "", text: text.to_owned(), outcome, detail: None };
    let forbidden =
        "ApiError: ipaddresses.networking.k8s.io \"10.0.0.9\" is forbidden: User \"kw\" cannot get resource: Forbidden";
    let causes = "\n\nCaused by:\n    0: client error (Connect)\n    1: tcp connect error\n    2: Connection refused (os error 111)";
    let none = "Cannot find networking.k8s.io/v1/IPAddress named '10.0.0.9' inside of namespace 'None'";
    let no_kind = "Cannot find resource networking.k8s.io/v1/IPAddress";
    let rows = [
        case("there is none", none.to_owned(), FREE, ""),
        case("no such kind", no_kind.to_owned(), ABSENT, ""),
        case("no such group", finding(&status(404, NO_PAGE, UNREAD)), ABSENT, ""),
        case("no such group, by an older client", finding(&old_status(404, NO_PAGE, UNREAD)), ABSENT, ""),
        case("no such version", finding(&status(404, "the server could not find it", "NotFound")), ABSENT, ""),
        case(
            "a 404 of something before the API server",
            finding(&status(404, "<html>", UNREAD)),
            FAILED,
            "error finding resource networking.k8s.io/v1 / IPAddress: ApiError: <html>: Failed to parse error data",
        ),
        case("an API that was there once", status(404, NO_PAGE, UNREAD), FAILED, "ApiError: 404 page not found"),
        // A port that looks like a status.
        whole(&finding("ServiceError: https://10.0.0.1:40443: connection refused"), FAILED),
        case(
            "unreachable",
            format!("{SERVICE_ERROR}{causes}"),
            FAILED,
            "ServiceError: client error (Connect): Connection refused (os error 111)",
        ),
        case(
            "one cause",
            format!("{SERVICE_ERROR}\n\nCaused by:\n    timed out: 5 s"),
            FAILED,
            "ServiceError: client error (Connect): timed out: 5 s",
        ),
        case(
            "a cause that says nothing more",
            format!("{SERVICE_ERROR}\n\nCaused by:\n    client error (Connect)"),
            FAILED,
            SERVICE_ERROR,
        ),
        whole(
            "Policy has not been granted access to Kubernetes networking.k8s.io/v1/IPAddress resources. The violation has been reported.",
            NOT_GRANTED,
        ),
        whole(
            "Policy has not been granted access to the 'kubernetes/get_resource' host capability. The violation has been reported.",
            NOT_GRANTED,
        ),
        case("forbidden", status(403, FORBIDDEN, "Forbidden"), NOT_GRANTED, forbidden),
        case("forbidden, by an older client", old_status(403, FORBIDDEN, "Forbidden"), NOT_GRANTED, forbidden),
        case(
            "the list of APIs is forbidden",
            finding(&status(403, NO_PATH, "Forbidden")),
            NOT_GRANTED,
            "error finding resource networking.k8s.io/v1 / IPAddress: ApiError: forbidden: User \"kw\" cannot get path \"/apis/networking.k8s.io/v1\": Forbidden",
        ),
        case(
            "the API server is busy",
            status(429, "Too many requests, please try again later.", "TooManyRequests"),
            FAILED,
            "ApiError: Too many requests, please try again later.: TooManyRequests",
        ),
        case(
            "the API server is not ready",
            finding(&status(503, "apiserver not ready\n", UNREAD)),
            FAILED,
            "error finding resource networking.k8s.io/v1 / IPAddress: ApiError: apiserver not ready",
        ),
        // Another address than the one that is asked for.
        whole("Cannot find networking.k8s.io/v1/IPAddress named '10.0.0.99' inside of namespace 'None'", FAILED),
        // Any other text.
        whole("Error deserializing response: EOF while parsing a value at line 1 column 8", FAILED),
    ];
    // Symbol names of a backtrace that contain texts with a meaning elsewhere.
    let backtrace =
        "\n\nStack backtrace:\n   0: <std::io::ErrorKind as NotFound>::\"404 page not found\"\n   1: is forbidden: x";
    let prefixes = ["", "Callback evaluation failure: ", "Host error: ", "Host error: Callback evaluation failure: "];
    for Case { name, text, outcome, detail } in rows {
        let expected = format!("{outcome}{}", detail.unwrap_or(&text));
        for prefix in prefixes {
            assert_eq!(words(&format!("{prefix}{text}{backtrace}")), expected, "{name}: {text} behind {prefix:?}");
        }
    }
}

#[test]
fn long_error_text_is_cut_and_empty_text_gets_a_reason() {
    assert_eq!(words(""), format!("{FAILED}no reason given"));
    let expected = format!("{FAILED}{}…", "é".repeat(299));
    assert_eq!(words(&"é".repeat(400)), expected);
}

#[test]
fn field_masks_are_sorted() {
    for at in TemplateAt::ALL {
        assert!(workload_masks(at).is_sorted(), "{at:?}");
    }
}
