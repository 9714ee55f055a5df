use std::time::Instant;

use tokio::net::TcpListener;

use super::*;
use crate::api_error::RequestFailure;

#[test]
fn time_limits_are_read_as_kubectl_reads_them() {
    let rows = [
        ("500ms", 500),
        ("10s", 10_000),
        ("7", 7_000),
        ("1.5s", 1_500),
        ("1h30m", 5_400_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("0", 0),
        ("0s", 0),
    ];
    for (text, limit) in rows {
        assert_eq!(time_limit(text), Ok(Duration::from_millis(limit)), "{text}");
    }
    for text in ["", "s", "-1s", "x", "1d", "99999999999999999999s", "9999999999999999999h", "1é"] {
        assert!(time_limit(text).is_err(), "{text}");
    }
}

/// The client for a kubeconfig with this cluster and user, or the error.
async fn client(name: &str, cluster: &str, user: &str, request_timeout: Duration) -> Result<Client, String> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = std::env::temp_dir().join(format!("clusterip-connect-{}-{name}", std::process::id()));
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {cluster}}}]\nusers:\n- name: a\n  user: {user}\n"
    );
    std::fs::write(&file, config).unwrap();
    let arguments = ClusterArguments { kubeconfig: Some(file.clone()), context: None, request_timeout };
    let client = arguments.client().await;
    std::fs::remove_file(&file).unwrap();
    client.map_err(|error| error_chain(&error).replace(&file.display().to_string(), "FILE"))
}

#[test]
fn namespace_of_the_context_is_known() {
    let text = "{apiVersion: v1, kind: Config, current-context: shop, clusters: [], users: [], contexts: [\
                {name: shop, context: {cluster: it, namespace: shop}}, {name: all, context: {cluster: it}}]}";
    let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
    for (name, context, expected) in [
        ("the current context", None, Some("shop")),
        ("a context with a namespace", Some("shop"), Some("shop")),
        ("a context without a namespace", Some("all"), None),
        ("an unknown context", Some("nope"), None),
    ] {
        assert_eq!(namespace_of(&kubeconfig, context).as_deref(), expected, "{name}");
    }
}

#[test]
fn missing_files_of_a_list_of_kubeconfigs_are_ignored() {
    struct Case {
        name: &'static str,
        files: &'static [&'static str],
        /// The current context, or a part of the error.
        expected: Result<&'static str, &'static str>,
    }
    let folder = std::env::temp_dir().join(format!("clusterip-kubeconfigs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("a"), "{apiVersion: v1, kind: Config, current-context: a}").unwrap();
    std::fs::write(folder.join("b"), "{apiVersion: v1, kind: Config, current-context: b}").unwrap();
    std::fs::write(folder.join("broken"), "current-context: [a").unwrap();
    let cases = [
        Case { name: "the first is missing", files: &["none", "a"], expected: Ok("a") },
        Case { name: "the last is missing", files: &["a", "none"], expected: Ok("a") },
        Case { name: "the first file wins", files: &["b", "none", "a"], expected: Ok("b") },
        Case {
            name: "all are missing",
            files: &["none", "nor-this"],
            expected: Err("'\"FOLDER/none:FOLDER/nor-this\"': No such file or directory (os error 2)"),
        },
        Case { name: "one is not YAML", files: &["a", "broken"], expected: Err("failed to parse kubeconfig YAML") },
    ];
    for Case { name, files, expected } in cases {
        let files: Vec<PathBuf> = files.iter().map(|file| folder.join(file)).collect();
        let text = |error| kubeconfig_message(&error).replace(&folder.display().to_string(), "FOLDER");
        let context = merged(&files).map(|read| read.current_context.unwrap_or_default()).map_err(text);
        let is_expected = match (&context, expected) {
            (Ok(context), Ok(expected)) => context == expected,
            (Err(text), Err(part)) => text.contains(part),
            _ => false,
        };
        assert!(is_expected, "{name}: {context:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn user_info_is_removed_from_urls() {
    let cases = [
        ("https://10.0.0.1:6443/", "https://10.0.0.1:6443/"),
        ("https://me:secret@10.0.0.1:6443/x", "https://10.0.0.1:6443/x"),
        ("https://me:sec/r@et@proxy:1", "https://proxy:1"),
        ("me:secret@proxy:1", "proxy:1"),
        ("", ""),
    ];
    for (url, expected) in cases {
        assert_eq!(without_user_info(url), expected, "{url}");
    }
}

#[tokio::test]
async fn errors_do_not_print_secrets_of_the_kubeconfig() {
    let server = "{server: 'https://127.0.0.1:1'}";
    let error =
        async |name, cluster, user: &str| client(name, cluster, user, Duration::from_secs(10)).await.err().unwrap();
    let broken = error("broken", server, "\n    token: [hunter2").await;
    assert!(broken.starts_with("kubeconfig FILE: failed to parse kubeconfig YAML"), "{broken}");
    assert!(!broken.contains("hunter2") && !broken.contains('\n'), "{broken}");

    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, \
                args: ['-c', 'echo hunter2; exit 3'], env: [{name: PASSWORD, value: hunter2}], \
                interactiveMode: Never}}";
    assert_eq!(
        error("exec", server, exec).await,
        "the configuration of the cluster can't be used: the exec plugin \"sh\" of the kubeconfig failed (exit \
         status: 3)"
    );
    let talks = exec.replace("; exit 3", "");
    assert_eq!(
        error("talks", server, &talks).await,
        "the configuration of the cluster can't be used: the output of the exec plugin of the kubeconfig is not \
         an ExecCredential"
    );
    let proxy = "{server: 'https://127.0.0.1:1', proxy-url: 'ftp://me:hunter2@proxy:1'}";
    assert_eq!(
        error("proxy", proxy, "{}").await,
        "the configuration of the cluster can't be used: the proxy ftp://proxy:1/ of the kubeconfig has a protocol \
         that is not supported"
    );
}

#[tokio::test]
async fn api_server_that_does_not_answer_or_refuses_is_named_with_a_remedy() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    struct Case {
        name: &'static str,
        /// What the server sends after a request, and whether it ends the connection then; `None` if no server runs.
        response: Option<(&'static str, bool)>,
        /// The error of the request, in which URL is that of the server.
        failure: &'static str,
        /// Why a command says that the server can't be reached.
        cause: Option<&'static str>,
    }
    const HALF: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    const NO_ANSWER: &str = "no answer within 300ms (--request-timeout)";
    const HANGS: &str = "GET URL/version: no answer within 300ms (--request-timeout)";
    const REFUSED: &str = "Connection refused (os error 111)";
    let case = |name, response, failure, cause| Case { name, response, failure, cause };
    let cases = [
        case("refused", None, "GET URL/version: Connection refused (os error 111)", Some(REFUSED)),
        case("hangs", Some(("", false)), HANGS, Some(NO_ANSWER)),
        case("stops in the middle", Some((HALF, false)), HANGS, Some(NO_ANSWER)),
        case(
            "unauthorized",
            Some(("HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", true)),
            "the API server URL (context a) refuses the request: Unauthorized; check the user of the context, whose \
             token or certificate may have expired, and that --kubeconfig and --context name the right cluster",
            None,
        ),
        case(
            "https",
            Some(("HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n", true)),
            "the API server URL (context a) refuses the request: it expects HTTPS; write https:// instead of http:// in \
             the cluster's `server` in the kubeconfig",
            None,
        ),
    ];
    for Case { name, response, failure, cause } in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let Some((response, ends)) = response else { return };
            let (mut connection, _) = listener.accept().await.unwrap();
            // An answer before the end of the request is another error.
            let (mut request, mut part) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"\r\n\r\n") {
                let length = connection.read(&mut part).await.unwrap();
                request.extend_from_slice(&part[..length]);
            }
            connection.write_all(response.as_bytes()).await.unwrap();
            if !ends {
                std::future::pending::<()>().await;
            }
            connection.shutdown().await.unwrap();
        });
        if response.is_none() {
            server.await.unwrap();
        }
        let is_slow = cause == Some(NO_ANSWER);
        let limit = if is_slow { Duration::from_millis(300) } else { Duration::from_secs(10) };
        let cluster = format!("{{server: 'http://me:secret@{address}'}}");
        let (begin, client) = (Instant::now(), client(name, &cluster, "{}", limit).await.unwrap());
        let found = RequestFailure::from(&client.apiserver_version().await.unwrap_err());
        assert!(begin.elapsed() < Duration::from_secs(10), "{name}");
        let url = format!("http://{address}");
        assert_eq!(found.to_string(), failure.replace("URL", &url), "{name}");
        let remedy = "check that it runs, and that --kubeconfig and --context name the right cluster";
        let unreachable =
            cause.map(|cause| format!("the API server {url} (context a) can't be reached: {cause}; {remedy}"));
        assert_eq!(found.unreachable, unreachable, "{name}");
    }
}
