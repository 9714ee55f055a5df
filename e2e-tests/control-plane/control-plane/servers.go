package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func (p *plane) startServers(ctx context.Context) error {
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return err
		}
	}
	p.etcdClient = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	clients := p.etcdClient
	if len(p.apiServers) > 1 {
		clients = p.etcdClient + "," + p.etcdOfNodes()
	}
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	p.port = ports[2]
	if p.options.port != 0 {
		p.port = p.options.port
	}
	p.server = fmt.Sprintf("https://127.0.0.1:%d", p.port)
	p.etcdArgs = []string{
		"--data-dir", filepath.Join(p.folder, "etcd"),
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default=" + peer,
		"--log-level", "warn",
		// The data need not survive a crash of the machine. Tests kill etcd, but the kernel keeps what a killed process
		// has written.
		"--unsafe-no-fsync",
	}
	if err := p.startEtcd(); err != nil {
		return err
	}
	// The API server waits for etcd. Further API servers start when their nodes have a network.
	return p.startAPIServer(ctx, 1)
}

// etcdOfNodes is the URL of etcd for API servers on other nodes than the first one.
func (p *plane) etcdOfNodes() string {
	return strings.Replace(p.etcdClient, "127.0.0.1", nodeAddress(1), 1)
}

// serverOf is the URL at which this process reaches the nth API server: on loopback only the first one, which runs in
// the network of this process.
func (p *plane) serverOf(nth int) string {
	if nth == 1 {
		return p.server
	}
	return p.serverForNode(nth)
}

// serverForNode is the URL of the API server that the nth node uses: its own one, if the node has one. Every node
// reaches this URL.
func (p *plane) serverForNode(nth int) string {
	return fmt.Sprintf("https://%s:%d", nodeAddress(1+(nth-1)%len(p.apiServers)), p.port)
}

func (p *plane) startEtcd() error {
	var err error
	p.etcd, err = launch(p.program(etcdName), p.folder, p.died, p.etcdArgs...)
	return err
}

// auditedServices is an audit policy that logs writes of Services, and nothing else.
const auditedServices = `{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "Metadata", "verbs": ["create", "update", "patch"], "resources": [{"group": "", "resources": ["services"]}]},
    {"level": "None"}
  ]
}`

// startAPIServer uses the defaults, except for admission: Pods need a service account, which only the controller
// manager creates.
func (p *plane) startAPIServer(ctx context.Context, nth int) error {
	c := p.credentials
	args := []string{
		"--etcd-servers", p.etcdClient,
		"--bind-address", "127.0.0.1",
		"--secure-port", fmt.Sprint(p.port),
		"--external-hostname", "127.0.0.1",
		// The endpoints of default/kubernetes must not be on loopback. No client uses them.
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
	if p.options.nodes > 0 {
		// Later arguments override earlier ones.
		args = append(args,
			"--bind-address", "0.0.0.0",
			"--advertise-address", nodeAddress(nth),
			"--kubelet-client-certificate", c.kubeletClientFile(), "--kubelet-client-key", c.kubeletClientKeyFile(),
			// No DNS server knows the names of the nodes.
			"--kubelet-preferred-address-types", "InternalIP",
			// examples/shop has a namespace whose Pods all run on Windows nodes.
			"--enable-admission-plugins", "PodNodeSelector",
		)
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
	if p.options.featureGates != "" {
		args = append(args, "--feature-gates", p.options.featureGates)
	}
	var plugins []object
	if p.options.webhookClient != "" {
		plugin, err := webhookClientPlugin(p.folder, p.options.webhookClient)
		if err != nil {
			return err
		}
		plugins = append(plugins, plugin)
	}
	if p.options.policies != "" {
		plugins = append(plugins, policiesPlugin(p.options.policies))
	}
	if len(plugins) > 0 {
		configuration, err := writeAdmission(p.folder, plugins)
		if err != nil {
			return err
		}
		args = append(args, "--admission-control-config-file", configuration)
	}
	args = append(args, p.apiArgs...)
	var err error
	if nth == 1 {
		p.apiServers[0], err = launch(p.program(apiName), p.folder, p.died, args...)
	} else {
		args = append([]string{"netns", "exec", nodeNames(nth)[nth-1], p.program(apiName)}, append(args, "--etcd-servers", p.etcdOfNodes())...)
		p.apiServers[nth-1], err = launchIn(0, fmt.Sprintf("%s-%d", apiName, nth), nil, "ip", p.folder, p.died, args...)
	}
	if err != nil {
		return err
	}
	return p.waitForAPIServers(ctx)
}

func (p *plane) startManager(ctx context.Context) error {
	kubeconfig, err := p.kubeconfigOf(managerUser, p.server)
	if err != nil {
		return err
	}
	controllers := "*"
	if p.hasLoadBalancerController() {
		// No load balancers are created, and up to Kubernetes 1.31 their controller panics without a cloud.
		controllers += ",-service-lb-controller"
	}
	args := []string{
		"--kubeconfig", kubeconfig,
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--root-ca-file", p.credentials.authorityFile(),
		"--service-account-private-key-file", p.credentials.serviceAccountKeyFile(),
		"--use-service-account-credentials",
		"--bind-address", "127.0.0.1", "--secure-port", "0",
		"--leader-elect=false",
	}
	if p.options.nodes == 0 {
		// Tests write Nodes and Pods. Without kubelets, the controllers would consider them dead and delete them.
		controllers += ",-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"
	} else {
		args = append(args, "--allocate-node-cidrs", "--cluster-cidr", podRange, "--service-cluster-ip-range", p.options.serviceRange)
	}
	p.manager, err = launch(p.program(managerName), p.folder, p.died, append(args, "--controllers", controllers)...)
	if err != nil {
		return err
	}
	// The controller manager works as soon as a namespace has its service account.
	return p.wait(ctx, "the controller manager", p.manager, func() error {
		_, err := p.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
		return err
	})
}

// hasLoadBalancerController says whether the controller manager has the controller of cloud load balancers, as before
// Kubernetes 1.37. A name that it does not know is an error.
func (p *plane) hasLoadBalancerController() bool {
	var major, minor int
	_, err := fmt.Sscanf(p.version, "v%d.%d", &major, &minor)
	return err == nil && minor < 37
}
