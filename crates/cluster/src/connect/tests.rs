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

/// The arguments for a cluster at this URL. The file must exist as long as they are used.
fn arguments(name: &str, url: &str, request_timeout: &str) -> ClusterArguments {
    let file = std::env::temp_dir().join(format!("clusterip-connect-{}-{name}", std::process::id()));
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {{server: '{url}'}}}}]\nusers: [{{name: a, user: {{}}}}]\n"
    );
    std::fs::write(&file, config).unwrap();
    let request_timeout = time_limit(request_timeout).unwrap();
    ClusterArguments { kubeconfig: Some(file), context: None, request_timeout }
}

#[test]
fn namespace_of_the_context_is_known() {
    struct Case {
        name: &'static str,
        context: Option<&'static str>,
        expected: Option<&'static str>,
    }
    let text = "{apiVersion: v1, kind: Config, current-context: shop, clusters: [], users: [], contexts: [\
                {name: shop, context: {cluster: it, namespace: shop}}, {name: all, context: {cluster: it}}]}";
    let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
    let cases = [
        Case { name: "the current context", context: None, expected: Some("shop") },
        Case { name: "a context with a namespace", context: Some("shop"), expected: Some("shop") },
        Case { name: "a context without a namespace", context: Some("all"), expected: None },
        Case { name: "an unknown context", context: Some("nope"), expected: None },
    ];
    for Case { name, context, expected } in cases {
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

/// The error for a kubeconfig with these clusters and users.
async fn connect_error(name: &str, cluster: &str, user: &str) -> String {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = std::env::temp_dir().join(format!("clusterip-connect-{}-{name}", std::process::id()));
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {cluster}}}]\nusers:\n- name: a\n  user: {user}\n"
    );
    std::fs::write(&file, config).unwrap();
    let arguments = ClusterArguments { kubeconfig: Some(file.clone()), ..ClusterArguments::default() };
    let error = arguments.client().await.err().unwrap();
    std::fs::remove_file(&file).unwrap();
    error_chain(&error).replace(&file.display().to_string(), "FILE")
}

#[tokio::test]
async fn errors_do_not_print_secrets_of_the_kubeconfig() {
    let server = "{server: 'https://127.0.0.1:1'}";
    let broken = connect_error("broken", server, "\n    token: [hunter2").await;
    assert!(broken.starts_with("kubeconfig FILE: failed to parse kubeconfig YAML"), "{broken}");
    assert!(!broken.contains("hunter2") && !broken.contains('\n'), "{broken}");

    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, \
                args: ['-c', 'echo hunter2; exit 3'], env: [{name: PASSWORD, value: hunter2}], \
                interactiveMode: Never}}";
    assert_eq!(
        connect_error("exec", server, exec).await,
        "the configuration of the cluster can't be used: the exec plugin \"sh\" of the kubeconfig failed (exit \
         status: 3)"
    );
    let talks = exec.replace("; exit 3", "");
    assert_eq!(
        connect_error("talks", server, &talks).await,
        "the configuration of the cluster can't be used: the output of the exec plugin of the kubeconfig is not \
         an ExecCredential"
    );
    let proxy = "{server: 'https://127.0.0.1:1', proxy-url: 'ftp://me:hunter2@proxy:1'}";
    assert_eq!(
        connect_error("proxy", proxy, "{}").await,
        "the configuration of the cluster can't be used: the proxy ftp://proxy:1/ of the kubeconfig has a protocol \
         that is not supported"
    );
}

/// The text of the error of a request, and that of the error of a command that ends with it.
async fn errors(arguments: &ClusterArguments) -> (String, String) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = arguments.client().await.unwrap();
    std::fs::remove_file(arguments.kubeconfig.as_ref().unwrap()).unwrap();
    let failure = RequestFailure::from(&client.apiserver_version().await.unwrap_err());
    (failure.to_string(), failure.unreachable.clone().unwrap())
}

/// The errors if this is the cause.
fn expected(url: &str, cause: &str) -> (String, String) {
    let remedy = "check that it runs, and that --kubeconfig and --context name the right cluster";
    let of_command = format!("the API server {url} (context a) can't be reached: {cause}; {remedy}");
    (format!("GET {url}/version: {cause}"), of_command)
}

#[tokio::test]
async fn refused_connection_is_reported_once_with_the_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let arguments = arguments("refused", &url.replace("//", "//me:secret@"), "10s");
    assert_eq!(errors(&arguments).await, expected(&url, "Connection refused (os error 111)"));
}

#[tokio::test]
async fn api_server_that_hangs_is_given_up_after_the_time_limit() {
    // The kernel accepts the connection, and no program reads the request.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let begin = Instant::now();
    let arguments = arguments("hangs", &url, "300ms");
    assert_eq!(errors(&arguments).await, expected(&url, "no answer within 300ms (--request-timeout)"));
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn response_that_stops_in_the_middle_is_given_up_after_the_time_limit() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let half = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        // An answer before the request is another error.
        connection.read_exact(&mut [0; 16]).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
        connection.write_all(head.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    });
    let arguments = arguments("half", &url, "300ms");
    assert_eq!(errors(&arguments).await, expected(&url, "no answer within 300ms (--request-timeout)"));
    half.abort();
}

#[tokio::test]
async fn refusal_names_the_server_and_a_remedy() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    struct Case {
        name: &'static str,
        response: &'static str,
        /// The error after the name of the server.
        expected: &'static str,
    }
    let cases = [
        Case {
            name: "unauthorized",
            response: "HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            expected: " refuses the request: Unauthorized; check the user of the context, whose token or \
                       certificate may have expired, and that --kubeconfig and --context name the right cluster",
        },
        Case {
            name: "https",
            response: "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
            expected: " refuses the request: it expects HTTPS; write https:// instead of http:// in the \
                       cluster's `server` in the kubeconfig",
        },
    ];
    let _ = rustls::crypto::ring::default_provider().install_default();
    for Case { name, response, expected } in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            // An answer before the end of the request is another error.
            let (mut request, mut part) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"\r\n\r\n") {
                let length = connection.read(&mut part).await.unwrap();
                request.extend_from_slice(&part[..length]);
            }
            connection.write_all(response.as_bytes()).await.unwrap();
            connection.shutdown().await.unwrap();
        });
        let arguments = arguments(name, &url, "10s");
        let client = arguments.client().await.unwrap();
        std::fs::remove_file(arguments.kubeconfig.as_ref().unwrap()).unwrap();
        let failure = RequestFailure::from(&client.apiserver_version().await.unwrap_err());
        assert_eq!(failure.to_string(), format!("the API server {url} (context a){expected}"), "{name}");
    }
}
