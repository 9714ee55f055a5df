//! Connects to a cluster.

use std::env;
use std::error::Error as _;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kube::client::ClientBuilder;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;
use tower::layer::layer_fn;

use crate::api_error::{error_chain, error_message};
use crate::api_requests::Bounded;
use crate::api_server::ApiServer;

/// The arguments of every command that uses a cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArguments {
    /// The kubeconfig for the cluster [default: $KUBECONFIG, ~/.kube/config, or the service account of the Pod]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub context: Option<String>,
    /// The time limit for a request to the API server, such as 500ms, 10s or 2m; 0 for no limit
    #[arg(long, value_name = "TIME", default_value_t)]
    pub request_timeout: RequestTimeout,
}

/// The time limit of a request to the API server; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTimeout(pub Option<Duration>);

impl Default for RequestTimeout {
    fn default() -> Self {
        Self(Some(Duration::from_secs(10)))
    }
}

impl fmt::Display for RequestTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit) if limit.subsec_millis() == 0 => write!(f, "{}s", limit.as_secs()),
            Some(limit) => write!(f, "{}ms", limit.as_millis()),
            None => f.write_str("0"),
        }
    }
}

/// A text that is not a time limit.
#[derive(Debug, Error)]
#[error("expected a whole number with a unit, such as 500ms, 10s, 2m or 1h, or 0 for no limit")]
pub struct RequestTimeoutError;

impl FromStr for RequestTimeout {
    type Err = RequestTimeoutError;

    /// Reads a time limit as kubectl does: a number without a unit is a number of seconds.
    fn from_str(text: &str) -> Result<Self, RequestTimeoutError> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let number: u64 = digits.parse().map_err(|_| RequestTimeoutError)?;
        let unit = match &text[digits.len()..] {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(RequestTimeoutError),
        };
        let milliseconds = number.checked_mul(unit).ok_or(RequestTimeoutError)?;
        Ok(Self((milliseconds > 0).then(|| Duration::from_millis(milliseconds))))
    }
}

/// Why there is no client for a cluster.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig can't be used.
    #[error("kubeconfig {}: {reason}", .file.display())]
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The kubeconfig has no such context.
    #[error("there is no context {0}")]
    NoContext(String),
    /// The context can't be used.
    #[error("context {context}: {reason}")]
    Context {
        /// The name of the context.
        context: String,
        /// The reason.
        reason: String,
    },
    /// No cluster is configured.
    #[error("no kubeconfig was found: use --kubeconfig, or run the program in a Pod: {0}")]
    NoCluster(String),
    /// The configuration can't be used.
    #[error("the configuration of the cluster can't be used: {}", error_message(.0))]
    Client(kube::Error),
}

impl ClusterArguments {
    /// Whether the arguments name a cluster: a kubeconfig or a context.
    pub fn name_a_cluster(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// A client for the cluster of the kubeconfig, or for the cluster that this process runs in. Each of its requests
    /// has the time limit, and each error of the connection names the URL.
    ///
    /// # Errors
    /// If the file can't be used, or no cluster is configured.
    pub async fn client(&self) -> Result<Client, ConnectError> {
        let mut config = self.config().await?;
        let RequestTimeout(limit) = self.request_timeout;
        // The limit of the request ends before this one, and its error names the URL.
        config.connect_timeout = limit.map(|limit| limit.saturating_mul(2));
        let server = ApiServer::new(&config, self.context_name());
        let builder = ClientBuilder::try_from(config).map_err(ConnectError::Client)?;
        Ok(builder.with_layer(&layer_fn(|inner| Bounded::new(inner, server.clone(), limit))).build())
    }

    /// The current context and the URL of the API server, such as `prod (https://10.0.0.1:6443)`; in a Pod only the
    /// URL. `None` if no cluster is configured.
    pub async fn name(&self) -> Option<String> {
        let ApiServer { url, context } = ApiServer::new(&self.config().await.ok()?, self.context_name());
        Some(if let Some(context) = context { format!("{context} ({url})") } else { url })
    }

    /// The name of the context; `None` without a kubeconfig.
    fn context_name(&self) -> Option<String> {
        self.context.clone().or_else(|| self.read().ok()?.current_context)
    }

    async fn config(&self) -> Result<Config, ConnectError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match (&self.kubeconfig, &self.context) {
            (Some(file), None) => {
                let failed =
                    |error| ConnectError::Kubeconfig { file: file.to_owned(), reason: kubeconfig_message(&error) };
                Config::from_custom_kubeconfig(self.read()?, &options).await.map_err(failed)
            }
            (_, Some(context)) => {
                let failed = |error| match error {
                    KubeconfigError::LoadContext(_) => ConnectError::NoContext(context.clone()),
                    other => ConnectError::Context { context: context.clone(), reason: kubeconfig_message(&other) },
                };
                Config::from_custom_kubeconfig(self.read()?, &options).await.map_err(failed)
            }
            (None, None) => match listed_kubeconfigs() {
                Some(files) => of_list(&files, &options).await,
                None => Config::infer().await.map_err(|error| ConnectError::NoCluster(infer_message(&error))),
            },
        }
    }

    /// The namespace that the context names; `None` if it names none, or if there is no kubeconfig, as in a Pod.
    pub fn namespace(&self) -> Option<String> {
        namespace_of(&self.read().ok()?, self.context.as_deref())
    }

    fn read(&self) -> Result<Kubeconfig, ConnectError> {
        match &self.kubeconfig {
            Some(file) => Kubeconfig::read_from(file).map_err(|error| {
                let reason = kubeconfig_message(&error);
                ConnectError::Kubeconfig { file: file.to_owned(), reason }
            }),
            None => listed_kubeconfigs().map_or_else(Kubeconfig::read, |files| merged(&files)).map_err(|error| {
                let reason = kubeconfig_message(&error);
                ConnectError::Context { context: self.context.clone().unwrap_or_default(), reason }
            }),
        }
    }
}

/// The files of `$KUBECONFIG`, if it lists several.
fn listed_kubeconfigs() -> Option<Vec<PathBuf>> {
    let list = env::var_os("KUBECONFIG")?;
    let files: Vec<PathBuf> = env::split_paths(&list).filter(|file| !file.as_os_str().is_empty()).collect();
    (files.len() > 1).then_some(files)
}

/// The configuration from these kubeconfigs or, if they can't be used, from the service account of the Pod.
async fn of_list(files: &[PathBuf], options: &KubeConfigOptions) -> Result<Config, ConnectError> {
    let config = match merged(files) {
        Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, options).await,
        Err(error) => Err(error),
    };
    config.or_else(|error| Config::incluster().map_err(|_| ConnectError::NoCluster(kubeconfig_message(&error))))
}

/// Merges kubeconfigs as kubectl does: files that don't exist are ignored, and the first value wins.
///
/// # Errors
/// If no file exists, with all their names, or if a file can't be used.
fn merged(files: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    let mut merged: Option<Kubeconfig> = None;
    let mut not_found = None;
    for file in files {
        match Kubeconfig::read_from(file) {
            Ok(next) => {
                merged = Some(match merged {
                    Some(first) => first.merge(next)?,
                    None => next,
                });
            }
            Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == io::ErrorKind::NotFound => {
                not_found = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    let names = || env::join_paths(files).map_or_else(|_| PathBuf::new(), PathBuf::from);
    let not_found = || not_found.unwrap_or_else(|| io::ErrorKind::NotFound.into());
    merged.ok_or_else(|| KubeconfigError::ReadConfig(not_found(), names()))
}

/// The namespace that a context names; without a name, the current context.
fn namespace_of(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let named = kubeconfig.contexts.iter().find(|named| named.name == name)?;
    named.context.as_ref()?.namespace.clone().filter(|namespace| !namespace.is_empty())
}

/// The text of an error of a kubeconfig, without the content of the file: it may have passwords and tokens.
fn kubeconfig_message(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(wrong) => match wrong.location() {
            Some(at) => format!("failed to parse kubeconfig YAML at line {}, column {}", at.line(), at.column()),
            None => "failed to parse kubeconfig YAML".to_owned(),
        },
        other => first_line(&error_chain(other)),
    }
}

/// As [`kubeconfig_message`], for a search for a kubeconfig.
fn infer_message(error: &InferConfigError) -> String {
    match error.source().and_then(|source| source.downcast_ref::<KubeconfigError>()) {
        Some(wrong @ KubeconfigError::Parse(_)) => kubeconfig_message(wrong),
        _ => first_line(&error.to_string()),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// A text that should be a URL, without the user name and the password.
pub fn without_user_info(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme = before.split_once("://").map(|(scheme, _)| format!("{scheme}://"));
    format!("{}{host}", scheme.unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Instant;

    use tokio::net::TcpListener;

    use super::*;
    use crate::api_error::RequestFailure;

    #[test]
    fn time_limits_are_read_as_kubectl_reads_them() {
        struct Case {
            text: &'static str,
            limit: Option<Duration>,
            shown: &'static str,
        }
        let cases = [
            Case { text: "500ms", limit: Some(Duration::from_millis(500)), shown: "500ms" },
            Case { text: "10s", limit: Some(Duration::from_secs(10)), shown: "10s" },
            Case { text: "7", limit: Some(Duration::from_secs(7)), shown: "7s" },
            Case { text: "2m", limit: Some(Duration::from_secs(120)), shown: "120s" },
            Case { text: "1h", limit: Some(Duration::from_secs(3600)), shown: "3600s" },
            Case { text: "0", limit: None, shown: "0" },
            Case { text: "0s", limit: None, shown: "0" },
        ];
        for Case { text, limit, shown } in cases {
            let read: RequestTimeout = text.parse().unwrap();
            assert_eq!((read.0, read.to_string().as_str()), (limit, shown), "{text}");
        }
        for text in ["", "s", "-1s", "1.5s", "10 s", "1d", "99999999999999999999s", "9999999999999999999h", "1é"] {
            assert!(text.parse::<RequestTimeout>().is_err(), "{text}");
        }
        assert_eq!(RequestTimeout::default().to_string(), "10s");
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
        let request_timeout = request_timeout.parse().unwrap();
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
        (failure.to_string(), failure.unreachable().unwrap().to_string())
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
}
