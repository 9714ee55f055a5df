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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options of a control plane.
type options struct {
	machine           bool
	assets            string
	serviceRange      string
	controllerManager bool
	audit             bool
	webhookClient     string
	policies          string
	featureGates      string
	folder            string
	port              int

	// Of a cluster with nodes.
	nodes        int
	apiServers   int
	windowsNodes int
	proxyMode    string
	images       []string
	cgroup       string
}

// plane is a running control plane.
type plane struct {
	options     options
	folder      string
	lock        *os.File
	credentials *credentials
	server      string
	version     string
	etcd        *process
	apiServers  []*process // The nth one runs on the nth node, and is nil while it is stopped.
	manager     *process
	scheduler   *process
	nodes       []*node
	died        chan *process

	port     int
	etcdArgs []string
	// Further arguments of the API servers, since a restart with them.
	apiArgs    []string
	etcdClient string
	client     *http.Client
}

const (
	etcdName      = "etcd"
	apiName       = "kube-apiserver"
	managerName   = "kube-controller-manager"
	schedulerName = "kube-scheduler"
	kubectlName   = "kubectl"
	kubeletName   = "kubelet"
	proxyName     = "kube-proxy"
	corednsName   = "coredns"
	pauseName     = "pause"
	agnhostName   = "agnhost"

	// The time limit of a start, which takes four seconds on an idle machine.
	patience = 2 * time.Minute
)

// start returns when the API server is ready and knows its Service range.
func start(ctx context.Context, options options) (*plane, error) {
	if options.assets == "" {
		return nil, errors.New("the folder of etcd, kube-apiserver and kubectl is not set: set KUBEBUILDER_ASSETS or -assets; `make control-plane` builds them")
	}
	programs := []string{etcdName, apiName, kubectlName}
	if options.controllerManager {
		programs = append(programs, managerName)
	}
	if options.nodes > 0 {
		programs = append(programs, schedulerName, kubeletName, proxyName, corednsName, pauseName, agnhostName)
	}
	for _, name := range programs {
		if _, err := os.Stat(filepath.Join(options.assets, name)); err != nil {
			return nil, fmt.Errorf("%s is missing: %w", name, err)
		}
	}
	p := &plane{options: options, apiServers: make([]*process, options.apiServers), died: make(chan *process, 16)}
	if options.nodes > 0 {
		// It was taken before this process was started, and the reaper removes it.
		p.folder = options.folder
	} else {
		var err error
		if p.folder, p.lock, err = takeFolder(options.folder); err != nil {
			return nil, err
		}
	}
	if err := p.startAll(ctx); err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

func (p *plane) startAll(ctx context.Context) error {
	if p.options.nodes > 0 {
		if err := startNetwork(); err != nil {
			return err
		}
	}
	var err error
	if p.credentials, err = newCredentials(p.folder, p.options.serviceRange, len(p.apiServers), nodeNames(p.options.nodes)); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.credentials.authority.certificate)
	p.client = &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true},
	}
	// Another process may take a port before its program listens on it.
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
		if err := p.startManager(ctx); err != nil {
			return err
		}
	}
	if p.options.nodes > 0 {
		return p.startNodes(ctx)
	}
	return nil
}

// takeFolder reserves a folder for a control plane, and empties it. A temporary folder needs no lock.
func takeFolder(path string) (folder string, lock *os.File, err error) {
	if path == "" {
		folder, err = os.MkdirTemp("", "control-plane-")
		return folder, nil, err
	}
	if folder, err = filepath.Abs(path); err != nil {
		return "", nil, err
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return "", nil, err
	}
	if lock, err = os.OpenFile(folder+".lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return "", nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return "", nil, fmt.Errorf("a control plane runs in %s already", folder)
	}
	// The remains of a killed control plane.
	if err := os.RemoveAll(folder); err != nil {
		return "", nil, err
	}
	return folder, lock, os.Mkdir(folder, 0o700)
}

func (p *plane) kubeconfig() string { return filepath.Join(p.folder, "kubeconfig") }

// kubeconfigOf writes the kubeconfig of one of the users of the programs, for an address of the API server.
func (p *plane) kubeconfigOf(user, server string) (string, error) {
	file := filepath.Join(p.folder, strings.ReplaceAll(user, ":", "-")+".kubeconfig")
	return file, writeKubeconfig(file, server, p.credentials.authority.pem, user, p.credentials.tokens[user])
}

func (p *plane) program(name string) string { return filepath.Join(p.options.assets, name) }

var errPortTaken = errors.New("another program took a port")

// waitForAPIServers returns when every API server that runs answers requests and gives addresses to Services.
func (p *plane) waitForAPIServers(ctx context.Context) error {
	for i, process := range p.apiServers {
		if process == nil {
			continue
		}
		server := p.serverOf(i + 1)
		err := p.wait(ctx, "the API server", process, func() error {
			for _, path := range []string{"/readyz", "/api/v1/namespaces/default/services/kubernetes", "/api/v1/namespaces/kube-system"} {
				if _, err := p.getFrom(ctx, server, path); err != nil {
					return err
				}
			}
			return p.serviceRangeReady(ctx, server)
		})
		if err != nil {
			return err
		}
	}
	if p.version != "" {
		return nil
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

// serviceRangeReady gets the ServiceCIDR, which Kubernetes has since 1.33. In older versions the range is only an
// argument, and ready at once.
func (p *plane) serviceRangeReady(ctx context.Context, server string) error {
	resources, err := p.getFrom(ctx, server, "/apis/networking.k8s.io/v1")
	if err != nil {
		return err
	}
	if !bytes.Contains(resources, []byte(`"servicecidrs"`)) {
		return nil
	}
	text, err := p.getFrom(ctx, server, "/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
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

// wait repeats until there is no error; it fails when the needed process has ended or the time is over.
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
	return p.getFrom(ctx, p.server, path)
}

func (p *plane) getFrom(ctx context.Context, server, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+path, nil)
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

// current reports whether this process should be running.
func (p *plane) current(process *process) bool {
	for _, node := range p.nodes {
		if process == node.process {
			return true
		}
	}
	return process == p.etcd || process == p.manager || process == p.scheduler || slices.Contains(p.apiServers, process)
}

// obey executes a command, and returns when it is done.
func (p *plane) obey(ctx context.Context, command string) error {
	if arguments, found := strings.CutPrefix(command, "restart apiserver "); found {
		return p.restartAPIServer(ctx, strings.Fields(arguments))
	}
	if dns, found := strings.CutPrefix(command, "set dns "); found {
		return p.setDNS(dns)
	}
	if serviceRange, found := strings.CutPrefix(command, "start apiserver "); found {
		// As administrators do who change the range: the certificate is for the old and the new first address.
		if err := p.credentials.serveAlsoFor(serviceRange); err != nil {
			return err
		}
		p.options.serviceRange = serviceRange
		command = "start apiserver"
	}
	switch command {
	case "stop apiserver":
		if p.apiServers[0] == nil {
			return errors.New("the API server is not running")
		}
		stopped := p.apiServers[0]
		p.apiServers[0] = nil
		stopped.kill()
		return nil
	case "start apiserver":
		if p.apiServers[0] != nil {
			return errors.New("the API server is already running")
		}
		return p.startAPIServer(ctx, 1)
	case "stop etcd":
		if p.etcd == nil {
			return errors.New("etcd is not running")
		}
		stopped := p.etcd
		p.etcd = nil
		stopped.kill()
		return nil
	case "start etcd":
		if p.etcd != nil {
			return errors.New("etcd is already running")
		}
		if err := p.startEtcd(); err != nil {
			return err
		}
		return p.waitForAPIServers(ctx)
	default:
		return fmt.Errorf("unknown command %q: expected `stop` or `start`, followed by `apiserver` or `etcd`, "+
			"`restart apiserver NUMBER RANGE [ARGUMENT…]` or `set dns ADDRESS`", command)
	}
}

// restartAPIServer ends an API server as kubelets do, and starts it again. The arguments are its number, its Service
// range and further arguments of kube-apiserver.
func (p *plane) restartAPIServer(ctx context.Context, arguments []string) error {
	if len(arguments) < 2 {
		return errors.New("restart apiserver: the number and the Service range are needed")
	}
	nth, err := strconv.Atoi(arguments[0])
	if err != nil || nth < 1 || nth > len(p.apiServers) || p.apiServers[nth-1] == nil {
		return fmt.Errorf("there is no API server %s", arguments[0])
	}
	serviceRange := arguments[1]
	if err := p.credentials.serveAlsoFor(serviceRange); err != nil {
		return err
	}
	p.options.serviceRange, p.apiArgs = serviceRange, arguments[2:]
	stopped := p.apiServers[nth-1]
	p.apiServers[nth-1] = nil
	stopped.terminate()
	return p.startAPIServer(ctx, nth)
}

// killAll kills the processes, those first that would log errors if another one is gone.
func (p *plane) killAll() {
	processes := []**process{&p.manager}
	for i := range p.apiServers {
		processes = append(processes, &p.apiServers[i])
	}
	for _, process := range append(processes, &p.etcd) {
		if *process != nil {
			(*process).kill()
			*process = nil
		}
	}
}

// remove stops the control plane and deletes its files. With nodes, this is done by the reaper.
func (p *plane) remove() {
	if p.options.nodes > 0 {
		return
	}
	p.killAll()
	if err := os.RemoveAll(p.folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "control-plane: not removed:", err)
	}
	if p.lock != nil {
		_ = p.lock.Close()
	}
}
