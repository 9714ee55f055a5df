//! A control plane that ends with the test process. `make e2e-tests` builds the program that runs it, and sets
//! [`PROGRAM`] to its path.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{Method, Request};
use clusterip_api::Kind;
use clusterip_cluster::yaml;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, GroupVersionKind, ObjectMeta, PostParams};
use kube::{Api, Client, Config, discovery};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::command::Ended;
use super::eventually::eventually;
use super::shared::Shared;

/// The environment variable with the path of the program that runs a control plane.
pub const PROGRAM: &str = "CLUSTERIP_CONTROL_PLANE";

/// The options of a control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// The ranges of Service addresses, the primary first: one, or one of each IP family.
    pub service_ranges: Vec<String>,
    /// Whether a controller manager runs, which creates service accounts, ReplicaSets, Pods and EndpointSlices, and
    /// deletes objects without an owner. Without it, the test itself creates these objects.
    pub controller_manager: bool,
    /// Whether the API server writes an audit log with the audit annotations of webhooks about Services.
    pub audit: bool,
    /// The host and port of a webhook to which the API server shows a client certificate.
    pub webhook_client: Option<String>,
    /// A folder with ValidatingAdmissionPolicies that the API server reads from files.
    pub policies: Option<PathBuf>,
    /// Feature gates of the API server, such as `WatchList=false`.
    pub feature_gates: String,
    /// The number of nodes on which Pods run. With nodes, the cluster has a scheduler, kube-proxy and a DNS server too,
    /// and needs root: see [`WholeCluster`](super::whole_cluster::WholeCluster).
    pub nodes: usize,
    /// The number of API servers, each on a node of its own. Kubelets and kube-proxies use the one of their node.
    pub api_servers: usize,
    /// The mode of kube-proxy: `nftables` or `iptables`.
    pub proxy_mode: String,
    /// Archives of images for the nodes.
    pub images: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let service_ranges = vec!["172.21.0.0/16".to_owned()];
        Self {
            service_ranges,
            controller_manager: false,
            audit: true,
            webhook_client: None,
            policies: None,
            feature_gates: String::new(),
            nodes: 0,
            api_servers: 1,
            proxy_mode: "nftables".to_owned(),
            images: Vec::new(),
        }
    }
}

impl Options {
    /// With an IPv6 range beside the IPv4 one.
    pub fn dual_stack() -> Self {
        Self { service_ranges: vec!["172.21.0.0/16".to_owned(), "fd00:21::/108".to_owned()], ..Self::default() }
    }
}

/// A running control plane. It ends when this value is dropped, or when the test process ends in any way, because its
/// standard input closes then.
pub struct ControlPlane {
    about: About,
    options: Options,
    pipes: Mutex<Pipes>,
    child: Child,
    namespaces: Mutex<HashMap<String, u32>>,
}

struct Pipes {
    // `None` closes the pipe.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct About {
    server: String,
    etcd: String,
    version: String,
    kubeconfig: PathBuf,
    certificate_authority: PathBuf,
    admin_token: String,
    kubectl: PathBuf,
    folder: PathBuf,
    #[serde(default)]
    nodes: BTreeMap<String, IpAddr>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<String>,
}

impl ControlPlane {
    /// The shared control plane of this process: single stack, without a controller manager. The first call starts it.
    /// Tests have namespaces of their own, and do not stop its API server.
    pub async fn shared() -> Arc<Self> {
        static SHARED: Shared<ControlPlane> = Shared::new();
        SHARED.get(async || Self::start(Options::default())).await
    }

    /// Starts a control plane, and waits until it is ready.
    pub fn start(options: Options) -> Self {
        let program = std::env::var_os(PROGRAM)
            .unwrap_or_else(|| panic!("{PROGRAM} is not set: these tests need a control plane; run `make e2e-tests`"));
        let mut child = Command::new(&program)
            .arg("-machine")
            .arg(format!("-service-cluster-ip-range={}", options.service_ranges.join(",")))
            .arg(format!("-controller-manager={}", options.controller_manager))
            .arg(format!("-audit={}", options.audit))
            .args(options.webhook_client.iter().flat_map(|webhook| ["-webhook-client", webhook]))
            .args(options.policies.iter().flat_map(|folder| [OsStr::new("-policies"), folder.as_os_str()]))
            .arg(format!("-feature-gates={}", options.feature_gates))
            .arg(format!("-nodes={}", options.nodes))
            .arg(format!("-api-servers={}", options.api_servers))
            .arg(format!("-proxy-mode={}", options.proxy_mode))
            .arg(format!(
                "-images={}",
                options.images.iter().map(|image| image.to_str().unwrap()).collect::<Vec<_>>().join(",")
            ))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; run `make e2e-tests`", program.display()));
        let mut pipes = Pipes { commands: child.stdin.take(), answers: BufReader::new(child.stdout.take().unwrap()) };
        let about = pipes.read();
        Self { about, options, pipes: Mutex::new(pipes), child, namespaces: Mutex::default() }
    }

    /// The URL of the API server.
    pub fn server(&self) -> &str {
        &self.about.server
    }

    /// The version of Kubernetes, such as `v1.37.2`.
    pub fn version(&self) -> &str {
        &self.about.version
    }

    /// Whether the API server has `IPAddress` and `ServiceCIDR`, as Kubernetes does since 1.33. In older versions, only
    /// Services show which addresses are used, and only the settings contain the Service ranges.
    pub fn tells_addresses(&self) -> bool {
        self.minor() >= 33
    }

    /// Whether the API server has MutatingAdmissionPolicy v1, as Kubernetes does since 1.36.
    pub fn mutates_by_policy(&self) -> bool {
        self.minor() >= 36
    }

    /// Whether the API server reads policies from files by default, as Kubernetes does since 1.37.
    pub fn reads_policies_from_files(&self) -> bool {
        self.minor() >= 37
    }

    /// The 37 of Kubernetes 1.37.2.
    pub fn minor(&self) -> u32 {
        let minor = self.version().split('.').nth(1).and_then(|minor| minor.parse().ok());
        minor.unwrap_or_else(|| panic!("no version: {}", self.version()))
    }

    /// Reports that a check does not apply to this version of Kubernetes, which lacks `IPAddress` and `ServiceCIDR`.
    /// This is not a skipped check, because no installation could enable it. Panics if the version has them.
    pub fn does_not_apply(&self, check: &str) {
        assert!(!self.tells_addresses(), "{check} applies to Kubernetes {}", self.version());
        println!("does not apply to Kubernetes {}: {check}", self.version());
    }

    /// The ranges of Service addresses, the primary first.
    pub fn service_ranges(&self) -> &[String] {
        &self.options.service_ranges
    }

    /// The URL of etcd.
    pub fn etcd(&self) -> &str {
        &self.about.etcd
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.about.kubeconfig
    }

    /// The path of the CA certificate of the API server.
    pub fn certificate_authority(&self) -> &Path {
        &self.about.certificate_authority
    }

    /// The folder of this control plane, with the logs of its programs. It is deleted with the control plane.
    pub fn folder(&self) -> &Path {
        &self.about.folder
    }

    /// The addresses of the nodes on which Pods run, by the names of the nodes.
    pub fn nodes(&self) -> &BTreeMap<String, IpAddr> {
        &self.about.nodes
    }

    /// A client of the administrator. It belongs to the runtime of the calling test, so another test can't use it.
    pub fn client(&self) -> Client {
        self.client_with(&self.about.admin_token)
    }

    /// A client with this token.
    pub fn client_with(&self, token: &str) -> Client {
        Client::try_from(self.config(self.server(), token)).unwrap()
    }

    /// A client that impersonates the user of this name, with the permissions of this user in RBAC, and without groups.
    pub fn client_as(&self, user: &str) -> Client {
        let mut config = self.config(self.server(), self.admin_token());
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).unwrap()
    }

    /// The configuration of a client of `server`, the API server or a proxy in front of it, with this token.
    pub fn config(&self, server: &str, token: &str) -> Config {
        super::use_ring();
        let mut config = Config::new(server.parse().unwrap());
        let authority = CertificateDer::from_pem_file(self.certificate_authority()).unwrap();
        config.root_cert = Some(vec![authority.to_vec()]);
        config.auth_info = serde_json::from_value(json!({ "token": token })).unwrap();
        config
    }

    /// The path of the `kubectl` of this version.
    pub fn kubectl_program(&self) -> &Path {
        &self.about.kubectl
    }

    /// Runs `kubectl` as the administrator.
    pub async fn kubectl(&self, args: &[&str]) -> Ended {
        self.kubectl_with(args, "").await
    }

    /// Runs `kubectl` as the administrator, with a standard input.
    pub async fn kubectl_with(&self, args: &[&str], stdin: &str) -> Ended {
        let mut command = Command::new(&self.about.kubectl);
        command
            .args(args)
            .env("KUBECONFIG", self.kubeconfig())
            // The cache may be of another control plane on the same port.
            .env("KUBECACHEDIR", self.folder().join("kubectl"))
            // It ends before its garbage takes much memory, and collecting it takes a third of its time.
            .env("GOGC", "off")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let stdin = stdin.to_owned();
        // Does not block the runtime, which may serve webhooks of the test.
        tokio::task::spawn_blocking(move || run(command, stdin)).await.unwrap()
    }

    /// Applies a manifest, which must succeed. What does not exist yet is created with the requests of `kubectl apply`,
    /// but without a process of its own. Only objects that exist need kubectl, which merges them.
    pub async fn apply(&self, manifest: &str) {
        let (client, mut kinds, mut left) = (self.client(), BTreeMap::new(), Vec::new());
        for object in objects(manifest) {
            if create(&client, &mut kinds, object.clone()).await.is_none() {
                left.push(object);
            }
        }
        if !left.is_empty() {
            // Nothing reports unknown fields: to read the schemas takes kubectl longer than all else.
            let list = json!({"apiVersion": "v1", "kind": "List", "items": left}).to_string();
            self.kubectl_with(&["apply", "--validate=false", "-f", "-"], &list).await.ok();
        }
    }

    /// Installs the definitions of the custom resources in `deploy/crds`, and waits until the API server serves them.
    pub async fn install_pools(&self) {
        let client = self.client();
        for kind in Kind::ALL {
            let plural = kind.api_resource().plural;
            let file = format!("{}/../deploy/crds/{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
            let mut definition = yaml::single(&std::fs::read_to_string(file).unwrap()).unwrap();
            // As the kustomization does.
            definition["metadata"]["labels"]["app.kubernetes.io/name"] = "clusterip".into();
            self.apply(&definition.to_string()).await;
        }
        for kind in Kind::ALL {
            let resource = kind.api_resource();
            eventually(&format!("the API server to serve {}", resource.plural), async || {
                let definition = Api::<CustomResourceDefinition>::all(client.clone())
                    .get(&format!("{}.{}", resource.plural, resource.group))
                    .await
                    .unwrap();
                let conditions = definition.status?.conditions?;
                let is_established = conditions.iter().any(|it| it.type_ == "Established" && it.status == "True");
                let kind = GroupVersionKind::gvk(&resource.group, &resource.version, &resource.kind);
                let is_known = discovery::pinned_kind(&client, &kind).await.is_ok();
                let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
                (is_established && is_known && all.list(&<_>::default()).await.is_ok()).then_some(())
            })
            .await;
        }
    }

    /// Creates a namespace for one test and returns its name: the prefix, followed by a number from the second call on.
    pub async fn namespace(&self, prefix: &str) -> String {
        let nth = {
            let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
            let nth = namespaces.entry(prefix.to_owned()).or_default();
            *nth += 1;
            *nth
        };
        let name = if nth == 1 { prefix.to_owned() } else { format!("{prefix}-{nth}") };
        let client = self.client();
        let namespace =
            Namespace { metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() }, ..<_>::default() };
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        if self.options.controller_manager {
            // Pods are refused before the service account exists.
            let accounts: Api<ServiceAccount> = Api::namespaced(client, &name);
            eventually("the namespace's service account", async || accounts.get_opt("default").await.unwrap()).await;
        }
        name
    }

    /// Lets [`Self::namespace`] begin again, after the namespaces were deleted.
    pub fn forget_namespaces(&self) {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A token of a service account.
    pub async fn token(&self, namespace: &str, service_account: &str) -> String {
        self.token_for(namespace, service_account, None).await
    }

    async fn token_for(&self, namespace: &str, account: &str, bound: Option<BoundObjectReference>) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        let spec = TokenRequestSpec { bound_object_ref: bound, ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let created = accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap();
        created.status.unwrap().token.unwrap()
    }

    /// A token of a service account that is bound to a Pod on the node of this name, as a kubelet requests it. Creates
    /// the Pod.
    pub async fn token_on(&self, node: &str, namespace: &str, service_account: &str) -> String {
        let pod = format!("{service_account}-{node}");
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": namespace},
            "spec": {
                "nodeName": node, "serviceAccountName": service_account,
                "containers": [{"name": "main", "image": "registry.example.com/main"}],
            },
        });
        self.apply(&object.to_string()).await;
        let bound = BoundObjectReference { kind: Some("Pod".to_owned()), name: Some(pod), ..<_>::default() };
        self.token_for(namespace, service_account, Some(bound)).await
    }

    /// Creates a service account, and returns its user name.
    pub async fn service_account(&self, namespace: &str, name: &str) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        let account = ServiceAccount {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            ..<_>::default()
        };
        accounts.create(&PostParams::default(), &account).await.unwrap();
        format!("system:serviceaccount:{namespace}:{name}")
    }

    /// Gives a user these permissions: in a namespace, or without one in the whole cluster.
    pub async fn grant(&self, user: &str, namespace: Option<&str>, rules: Value) {
        let role = if namespace.is_some() { "Role" } else { "ClusterRole" };
        let (version, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
        let metadata = json!({"name": user, "namespace": namespace});
        let items = json!([
            {"apiVersion": version, "kind": role, "metadata": metadata, "rules": rules},
            {"apiVersion": version, "kind": format!("{role}Binding"), "metadata": metadata,
                "roleRef": {"apiGroup": group, "kind": role, "name": user},
                "subjects": [{"apiGroup": group, "kind": "User", "name": user}]},
        ]);
        self.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    }

    /// Lets the API server refuse, with this message, the creates and updates of Services in a namespace that a CEL
    /// expression does not allow, and every Service `probe`. Waits until the rule is in force.
    pub async fn allow_only(&self, namespace: &str, expression: &str, message: &str) {
        let version = "admissionregistration.k8s.io/v1";
        let metadata = json!({"name": format!("only-in-{namespace}")});
        let probe = json!({"expression": "object.metadata.name != 'probe'", "message": message});
        let items = json!([
            {"apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": {
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"],
                        "operations": ["CREATE", "UPDATE"]}],
                },
                "validations": [{"expression": expression, "message": message}, probe],
            }},
            {"apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata,
                "spec": {"policyName": metadata["name"], "validationActions": ["Deny"]}},
        ]);
        self.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
        let probe = json!({"metadata": {"name": "probe"}, "spec": {"ports": [{"port": 80}]}});
        let trial = format!("/api/v1/namespaces/{namespace}/services?dryRun=All");
        eventually("the rule to be in force", async || {
            let tried = self.client().request::<Value>(request(Method::POST, &trial, &probe)).await;
            tried.is_err_and(|error| error.to_string().contains(message)).then_some(())
        })
        .await;
    }

    /// Writes a kubeconfig of a service account, with which a program has the permissions of a Pod.
    pub async fn kubeconfig_of(&self, namespace: &str, service_account: &str) -> PathBuf {
        let token = self.token(namespace, service_account).await;
        self.write_kubeconfig(&format!("{namespace}-{service_account}.kubeconfig"), self.server(), &token)
    }

    /// Writes a kubeconfig for `server`, the API server or a proxy in front of it.
    pub fn write_kubeconfig(&self, file: &str, server: &str, token: &str) -> PathBuf {
        let file = self.folder().join(file);
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "it", "cluster": { "server": server, "certificate-authority": self.certificate_authority() } }],
            "users": [{ "name": "it", "user": { "token": token } }],
            "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
            "current-context": "it",
        });
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        file
    }

    /// The administrator's token.
    pub fn admin_token(&self) -> &str {
        &self.about.admin_token
    }

    /// Kills the API server: connections break, and new ones are refused. Its objects stay in etcd. Not for the shared
    /// control plane.
    pub fn stop_api_server(&self) {
        self.command("stop apiserver");
    }

    /// Starts the API server again on the same port, and waits until it is ready.
    pub fn start_api_server(&self) {
        self.command("start apiserver");
    }

    /// Starts the API server again with other ranges of Service addresses, and with a certificate that also names the
    /// first address of the primary one.
    pub fn start_api_server_with(&self, service_ranges: &str) {
        self.command(&format!("start apiserver {service_ranges}"));
    }

    /// Ends one of the API servers, counted from 1, as a kubelet does, and starts it again with these ranges of Service
    /// addresses and these further arguments, which no blank contains. Its certificate also names the first address of the
    /// primary range.
    pub fn restart_api_server(&self, nth: usize, service_ranges: &str, arguments: &[&str]) {
        let command = format!("restart apiserver {nth} {service_ranges} {}", arguments.join(" "));
        self.command(&command);
    }

    /// Restarts the kubelets, which give this address of DNS to Pods that they start from then on.
    pub fn set_cluster_dns(&self, address: IpAddr) {
        self.command(&format!("set dns {address}"));
    }

    /// Kills etcd while the API server runs on. Not for the shared control plane.
    pub fn stop_etcd(&self) {
        self.command("stop etcd");
    }

    /// Starts etcd again with its data, and waits until the API server is ready.
    pub fn start_etcd(&self) {
        self.command("start etcd");
    }

    #[track_caller]
    fn command(&self, command: &str) {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(pipes.commands.as_mut().unwrap(), "{command}").unwrap();
        let Answer { error } = pipes.read();
        assert_eq!(error, None, "{command}");
    }
}

impl Pipes {
    /// Reads the next line of JSON. If the control plane has ended, the reason is on standard error.
    fn read<T: for<'de> Deserialize<'de>>(&mut self) -> T {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the control plane has ended: it says why on standard error");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.pipes.get_mut().unwrap_or_else(PoisonError::into_inner).commands = None;
        let _ = self.child.wait();
    }
}

/// The objects of a manifest. A List stands for its items.
fn objects(manifest: &str) -> Vec<Value> {
    let documents = yaml::documents(manifest).map(|document| document.unwrap().to_value());
    let items = documents.map(|document| match &document["items"] {
        Value::Array(items) if document["kind"] == "List" => items.clone(),
        _ => vec![document],
    });
    items.flatten().filter(|object| !object.is_null()).collect()
}

/// The kinds that are known: the path of the API, the plural, and whether objects have a namespace.
type Kinds = BTreeMap<String, (String, String, bool)>;

/// Sends the request with which `kubectl apply` creates an object. `None` if that fails, as for an object that exists.
async fn create(client: &Client, kinds: &mut Kinds, mut object: Value) -> Option<()> {
    let (version, kind) = (object["apiVersion"].as_str()?.to_owned(), object["kind"].as_str()?.to_owned());
    let key = format!("{version} {kind}");
    if !kinds.contains_key(&key) {
        let (group, name) = version.split_once('/').unwrap_or(("", &version));
        let asked = GroupVersionKind::gvk(group, name, &kind);
        let (resource, capabilities) = discovery::pinned_kind(client, &asked).await.ok()?;
        let api = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{version}") };
        kinds.insert(key.clone(), (api, resource.plural, capabilities.scope == discovery::Scope::Namespaced));
    }
    let (api, plural, has_namespace) = &kinds[&key];
    let metadata = object["metadata"].as_object_mut()?;
    metadata.entry("annotations").or_insert_with(|| json!({}));
    let path = if *has_namespace {
        let namespace = metadata.entry("namespace").or_insert_with(|| "default".into()).as_str()?;
        format!("{api}/namespaces/{namespace}/{plural}")
    } else {
        format!("{api}/{plural}")
    };
    let applied = format!("{object}\n");
    object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = applied.into();
    let path = format!("{path}?fieldManager=kubectl-client-side-apply&fieldValidation=Ignore");
    client.request::<Value>(request(Method::POST, &path, &object)).await.ok().map(drop)
}

fn run(mut command: Command, stdin: String) -> Ended {
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // A program that reads nothing closes the pipe.
    let writer = std::thread::spawn(move || drop(input.write_all(stdin.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.into()
}

/// A request with this body; without a body if it is null. A `PATCH` is a merge patch.
pub fn request(method: Method, path: &str, body: &Value) -> Request<Vec<u8>> {
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    Request::builder().method(method).uri(path).header("content-type", kind).body(body).unwrap()
}
