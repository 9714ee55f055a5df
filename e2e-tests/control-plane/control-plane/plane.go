package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// options are what can be asked for.
type options struct {
	assets            string
	serviceRange      string
	controllerManager bool
	audit             bool
	webhookClient     string
	folder            string
}

// plane is a control plane that runs.
type plane struct {
	options     options
	folder      string
	lock        *os.File
	credentials *credentials
	server      string
	version     string
	etcd        *process
	apiServer   *process
	manager     *process
	died        chan *process

	port       int
	etcdArgs   []string
	etcdClient string
	client     *http.Client
}

const (
	etcdName    = "etcd"
	apiName     = "kube-apiserver"
	managerName = "kube-controller-manager"
	kubectlName = "kubectl"

	// A machine under load takes long; one that is not takes four seconds.
	patience = 2 * time.Minute
)

// start returns when the API server is ready and knows its Service range.
func start(ctx context.Context, options options) (*plane, error) {
	if options.assets == "" {
		return nil, errors.New("where etcd, kube-apiserver and kubectl are is not known: set KUBEBUILDER_ASSETS or -assets; `make control-plane` builds them")
	}
	programs := []string{etcdName, apiName, kubectlName}
	if options.controllerManager {
		programs = append(programs, managerName)
	}
	for _, name := range programs {
		if _, err := os.Stat(filepath.Join(options.assets, name)); err != nil {
			return nil, fmt.Errorf("%s is missing: %w", name, err)
		}
	}
	p := &plane{options: options, died: make(chan *process, 16)}
	if err := p.takeFolder(); err != nil {
		return nil, err
	}
	if err := p.startAll(ctx); err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

func (p *plane) startAll(ctx context.Context) error {
	var err error
	if p.credentials, err = newCredentials(p.folder, p.options.serviceRange); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.credentials.authority.certificate)
	p.client = &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true},
	}
	// Somebody else may take a port before we do.
	const attempts = 3
	for attempt := 1; ; attempt++ {
		err := p.startServers(ctx)
		if err == nil {
			break
		}
		p.killAll()
		if attempt == attempts || !errors.Is(err, errPortTaken) {
			return err
		}
	}
	if err := writeKubeconfig(p.kubeconfig(), p.server, p.credentials.authority.pem, "admin", p.credentials.adminToken); err != nil {
		return err
	}
	if p.options.controllerManager {
		return p.startManager(ctx)
	}
	return nil
}

// takeFolder takes a folder for this control plane alone.
func (p *plane) takeFolder() error {
	if p.options.folder == "" {
		var err error
		p.folder, err = os.MkdirTemp("", "control-plane-")
		return err
	}
	var err error
	if p.folder, err = filepath.Abs(p.options.folder); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.folder), 0o755); err != nil {
		return err
	}
	if p.lock, err = os.OpenFile(p.folder+".lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(p.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("a control plane runs in %s already", p.folder)
	}
	// What one that was killed has left.
	if err := os.RemoveAll(p.folder); err != nil {
		return err
	}
	return os.Mkdir(p.folder, 0o700)
}

func (p *plane) kubeconfig() string { return filepath.Join(p.folder, "kubeconfig") }

func (p *plane) program(name string) string { return filepath.Join(p.options.assets, name) }

func (p *plane) startServers(ctx context.Context) error {
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return err
		}
	}
	p.etcdClient = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	p.port = ports[2]
	p.server = fmt.Sprintf("https://127.0.0.1:%d", p.port)
	p.etcdArgs = []string{
		"--data-dir", filepath.Join(p.folder, "etcd"),
		"--listen-client-urls", p.etcdClient, "--advertise-client-urls", p.etcdClient,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default=" + peer,
		"--log-level", "warn",
	}
	if err := p.startEtcd(); err != nil {
		return err
	}
	// It waits for etcd by itself.
	return p.startAPIServer(ctx)
}

func (p *plane) startEtcd() error {
	var err error
	p.etcd, err = launch(p.program(etcdName), p.folder, p.died, p.etcdArgs...)
	return err
}

// auditedServices lets the audit log tell of every Service that is written, and of nothing else.
const auditedServices = `{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "Metadata", "verbs": ["create", "update", "patch"], "resources": [{"group": "", "resources": ["services"]}]},
    {"level": "None"}
  ]
}`

// startAPIServer changes nothing that a cluster's administrator would not, but for admission: Pods need a
// service account, which only the controller manager makes.
func (p *plane) startAPIServer(ctx context.Context) error {
	c := p.credentials
	args := []string{
		"--etcd-servers", p.etcdClient,
		"--bind-address", "127.0.0.1",
		"--secure-port", fmt.Sprint(p.port),
		"--external-hostname", "127.0.0.1",
		// The endpoints of default/kubernetes must not be on loopback; nobody goes there.
		"--advertise-address", "192.0.2.1",
		"--tls-cert-file", c.servingFile(), "--tls-private-key-file", c.servingKeyFile(),
		"--client-ca-file", c.authorityFile(),
		"--service-cluster-ip-range", p.options.serviceRange,
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", c.serviceAccountKeyFile(),
		"--service-account-signing-key-file", c.serviceAccountKeyFile(),
		"--token-auth-file", c.tokensFile(),
		"--authorization-mode", "Node,RBAC",
		"--allow-privileged",
	}
	if p.options.audit {
		auditPolicy := filepath.Join(p.folder, "audit-policy.json")
		if err := os.WriteFile(auditPolicy, []byte(auditedServices), 0o600); err != nil {
			return err
		}
		args = append(args, "--audit-policy-file", auditPolicy, "--audit-log-path", filepath.Join(p.folder, "audit.log"))
	}
	if !p.options.controllerManager {
		args = append(args, "--disable-admission-plugins", "ServiceAccount")
	}
	if p.options.webhookClient != "" {
		configuration, err := writeWebhookClient(p.folder, p.options.webhookClient)
		if err != nil {
			return err
		}
		args = append(args, "--admission-control-config-file", configuration)
	}
	var err error
	if p.apiServer, err = launch(p.program(apiName), p.folder, p.died, args...); err != nil {
		return err
	}
	return p.waitForAPIServer(ctx)
}

func (p *plane) startManager(ctx context.Context) error {
	kubeconfig := filepath.Join(p.folder, managerName+".kubeconfig")
	if err := writeKubeconfig(kubeconfig, p.server, p.credentials.authority.pem, "manager", p.credentials.managerToken); err != nil {
		return err
	}
	var err error
	p.manager, err = launch(p.program(managerName), p.folder, p.died,
		"--kubeconfig", kubeconfig,
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--root-ca-file", p.credentials.authorityFile(),
		"--service-account-private-key-file", p.credentials.serviceAccountKeyFile(),
		"--use-service-account-credentials",
		"--bind-address", "127.0.0.1", "--secure-port", "0",
		"--leader-elect=false",
		// Nodes and Pods are what tests write there: without kubelets they would be found dead, and cleared away.
		// Load balancers are made by nobody; up to 1.31 their controller panics where there is no cloud.
		"--controllers", "*,-service-lb-controller,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller",
	)
	if err != nil {
		return err
	}
	// It is at work when a namespace has got its service account.
	return p.wait(ctx, "the controller manager", p.manager, func() error {
		_, err := p.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
		return err
	})
}

var errPortTaken = errors.New("a port was taken by somebody else")

// waitForAPIServer returns when requests are served and Services get addresses.
func (p *plane) waitForAPIServer(ctx context.Context) error {
	err := p.wait(ctx, "the API server", p.apiServer, func() error {
		if _, err := p.get(ctx, "/readyz"); err != nil {
			return err
		}
		for _, path := range []string{"/api/v1/namespaces/default/services/kubernetes", "/api/v1/namespaces/kube-system"} {
			if _, err := p.get(ctx, path); err != nil {
				return err
			}
		}
		return p.serviceRangeReady(ctx)
	})
	if err != nil {
		return err
	}
	var version struct{ GitVersion string }
	text, err := p.get(ctx, "/version")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return err
	}
	p.version = version.GitVersion
	return nil
}

// serviceRangeReady asks for the object that tells of the Service range. Kubernetes has it since 1.33; before,
// the range is an argument alone, and ready at once.
func (p *plane) serviceRangeReady(ctx context.Context) error {
	resources, err := p.get(ctx, "/apis/networking.k8s.io/v1")
	if err != nil {
		return err
	}
	if !bytes.Contains(resources, []byte(`"servicecidrs"`)) {
		return nil
	}
	text, err := p.get(ctx, "/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
	if err != nil {
		return err
	}
	var serviceCIDR struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if err := json.Unmarshal(text, &serviceCIDR); err != nil {
		return err
	}
	for _, condition := range serviceCIDR.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			return nil
		}
	}
	return errors.New("ServiceCIDR kubernetes is not ready")
}

// wait asks until there is no error, or no use in asking.
func (p *plane) wait(ctx context.Context, what string, needed *process, ready func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, process := range []*process{p.etcd, needed} {
			select {
			case <-process.ended:
				if text, _ := os.ReadFile(process.log); bytes.Contains(text, []byte("address already in use")) {
					return fmt.Errorf("%w: %w", errPortTaken, process.failure())
				}
				return process.failure()
			default:
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %s: %w; its log is %s", what, patience, err, needed.log)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (p *plane) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.server+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+p.credentials.adminToken)
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", path, response.Status, bytes.TrimSpace(text))
	}
	return text, nil
}

// current tells whether this process is one of those that should run.
func (p *plane) current(process *process) bool {
	return process == p.etcd || process == p.apiServer || process == p.manager
}

// obey does what a command says, and returns when it is done.
func (p *plane) obey(ctx context.Context, command string) error {
	switch command {
	case "stop apiserver":
		if p.apiServer == nil {
			return errors.New("the API server does not run")
		}
		stopped := p.apiServer
		p.apiServer = nil
		stopped.kill()
		return nil
	case "start apiserver":
		if p.apiServer != nil {
			return errors.New("the API server runs already")
		}
		return p.startAPIServer(ctx)
	case "stop etcd":
		if p.etcd == nil {
			return errors.New("etcd does not run")
		}
		stopped := p.etcd
		p.etcd = nil
		stopped.kill()
		return nil
	case "start etcd":
		if p.etcd != nil {
			return errors.New("etcd runs already")
		}
		if err := p.startEtcd(); err != nil {
			return err
		}
		return p.waitForAPIServer(ctx)
	default:
		return fmt.Errorf("unknown command %q: there are `stop` and `start`, of `apiserver` and `etcd`", command)
	}
}

// killAll ends what runs: those first who would complain that another is gone.
func (p *plane) killAll() {
	for _, process := range []**process{&p.manager, &p.apiServer, &p.etcd} {
		if *process != nil {
			(*process).kill()
			*process = nil
		}
	}
}

// remove ends the control plane, and leaves nothing of it.
func (p *plane) remove() {
	p.killAll()
	if err := os.RemoveAll(p.folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "control-plane: not removed:", err)
	}
	if p.lock != nil {
		_ = p.lock.Close()
	}
}
