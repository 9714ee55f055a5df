package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The network of the nodes is a bridge in the network namespace of the first node, where the control plane is too: the
// API server reaches the addresses of Services by the rules of this node's kube-proxy. The last address is that of a
// namespace for clients outside of the cluster, and the gateway of all nodes.
const (
	networkPrefix  = "10.88.0."
	outsideAddress = networkPrefix + "254"
	outsideName    = "outside"
	bridgeName     = "nodes"
	podRange       = "10.244.0.0/16"
	maxNodes       = 100
)

func nodeAddress(nth int) string { return fmt.Sprintf("%s%d", networkPrefix, nth) }

func nodeNames(count int) []string {
	var names []string
	for nth := 1; nth <= count; nth++ {
		names = append(names, fmt.Sprintf("node-%d", nth))
	}
	return names
}

// node is a node of the cluster, as the process that starts it sees it.
type node struct {
	name    string
	address string
	folder  string
	// The network namespace of the first node is that of this process.
	first   bool
	process *process
	// The settings that the process has read last, and the pipe from which it reads them.
	settings nodeSettings
	pipe     *os.File
}

// ip runs the program ip in the network namespace of the node.
func (n *node) ip(args ...string) error {
	if !n.first {
		args = append([]string{"-n", n.name}, args...)
	}
	return execute("ip", args...)
}

func execute(program string, args ...string) error {
	output, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(output))
	}
	return nil
}

// startNodes starts the nodes, the scheduler and the DNS server, and returns when all of them are ready.
func (p *plane) startNodes(ctx context.Context) error {
	images, err := p.writeImages()
	if err != nil {
		return err
	}
	dns, err := serviceAddress(p.options.serviceRange, 10)
	if err != nil {
		return err
	}
	for i, name := range nodeNames(p.options.nodes) {
		node := &node{name: name, address: nodeAddress(i + 1), folder: filepath.Join(p.folder, name), first: i == 0}
		p.nodes = append(p.nodes, node)
		if err := p.startNode(node, i+1, images, dns.String()); err != nil {
			return err
		}
	}
	for nth := 2; nth <= len(p.apiServers); nth++ {
		if err := p.startAPIServer(ctx, nth); err != nil {
			return err
		}
	}
	if err := p.startScheduler(); err != nil {
		return err
	}
	if err := p.apply(ctx, strings.NewReplacer("CLUSTER_IP", dns.String(), "COREDNS_IMAGE", corednsImage).Replace(corednsManifest)); err != nil {
		return err
	}
	if err := p.registerWindowsNodes(ctx); err != nil {
		return err
	}
	if err := p.connectPods(ctx); err != nil {
		return err
	}
	return p.waitForNodes(ctx, "the nodes and the DNS server", func() error {
		return p.kubectl(ctx, "", "rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=1s")
	})
}

// startNetwork makes the network of the nodes.
func startNetwork() error {
	// Packets between other nodes pass this bridge, and must not pass the rules of the first node.
	for _, rules := range []string{"iptables", "ip6tables"} {
		file := "/proc/sys/net/bridge/bridge-nf-call-" + rules
		if err := os.WriteFile(file, []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", bridgeName, "type", "bridge"},
		{"addr", "add", nodeAddress(1) + "/24", "dev", bridgeName},
		{"link", "set", bridgeName, "up"},
		{"route", "add", "default", "via", outsideAddress},
		{"netns", "add", outsideName},
	} {
		if err := execute("ip", args...); err != nil {
			return err
		}
	}
	return plug(outsideName, outsideAddress)
}

// plug connects a network namespace with the network of the nodes.
func plug(namespace, address string) error {
	for _, args := range [][]string{
		{"link", "add", namespace, "type", "veth", "peer", "name", "eth0", "netns", namespace},
		{"link", "set", namespace, "master", bridgeName, "up"},
		{"-n", namespace, "link", "set", "lo", "up"},
		{"-n", namespace, "addr", "add", address + "/24", "dev", "eth0"},
		{"-n", namespace, "link", "set", "eth0", "up"},
	} {
		if err := execute("ip", args...); err != nil {
			return err
		}
	}
	return nil
}

func (p *plane) startNode(n *node, nth int, images []string, dns string) error {
	server := p.serverForNode(nth)
	kubelet, err := p.kubeconfigOf(nodeUser(n.name), server)
	if err != nil {
		return err
	}
	proxy := filepath.Join(p.folder, n.name+"-proxy.kubeconfig")
	if err := writeKubeconfig(proxy, server, p.credentials.authority.pem, proxyUser, p.credentials.tokens[proxyUser]); err != nil {
		return err
	}
	if err := os.Mkdir(n.folder, 0o755); err != nil {
		return err
	}
	namespaces := uintptr(syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS)
	if !n.first {
		namespaces |= syscall.CLONE_NEWNET
	}
	settings, pipe, err := os.Pipe()
	if err != nil {
		return err
	}
	defer settings.Close()
	n.process, err = launchIn(namespaces, n.name, settings, executable(), p.folder, p.died, nodeRole)
	if err != nil {
		return err
	}
	if !n.first {
		if err := execute("ip", "netns", "attach", n.name, fmt.Sprint(n.process.cmd.Process.Pid)); err != nil {
			return err
		}
		if err := plug(n.name, n.address); err != nil {
			return err
		}
		if err := n.ip("route", "add", "default", "via", outsideAddress); err != nil {
			return err
		}
	}
	n.pipe = pipe
	n.settings = nodeSettings{
		Name: n.name, Address: n.address, Folder: n.folder, Assets: p.options.assets, Images: images,
		Authority: p.credentials.authorityFile(), KubeletConfig: kubelet, ProxyConfig: proxy,
		ProxyMode: p.options.proxyMode, DNS: dns, Cgroup: p.options.cgroup,
	}
	return json.NewEncoder(pipe).Encode(n.settings)
}

// setDNS restarts the kubelets with another address of DNS for their Pods.
func (p *plane) setDNS(address string) error {
	for _, node := range p.nodes {
		node.settings.DNS = address
		if err := json.NewEncoder(node.pipe).Encode(node.settings); err != nil {
			return err
		}
	}
	return nil
}

func (p *plane) startScheduler() error {
	kubeconfig, err := p.kubeconfigOf(schedulerUser, p.server)
	if err != nil {
		return err
	}
	p.scheduler, err = launch(p.program(schedulerName), p.folder, p.died,
		"--kubeconfig", kubeconfig,
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--bind-address", "127.0.0.1",
		"--leader-elect=false",
	)
	return err
}

// The objects of CoreDNS.
//
//go:embed coredns.yaml
var corednsManifest string

// registerWindowsNodes creates Nodes on which nothing runs: no kubelet registers them. They are tainted as
// administrators taint Windows nodes, and cordoned, so that Pods that tolerate the taint stay pending.
func (p *plane) registerWindowsNodes(ctx context.Context) error {
	var items []object
	for nth := 1; nth <= p.options.windowsNodes; nth++ {
		name := fmt.Sprintf("windows-%d", nth)
		items = append(items, object{
			"apiVersion": "v1",
			"kind":       "Node",
			"metadata": object{"name": name, "labels": object{
				"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, "kubernetes.io/os": "windows",
			}},
			"spec": object{
				"unschedulable": true,
				"taints":        []object{{"key": "os", "value": "windows", "effect": "NoSchedule"}},
			},
		})
	}
	if len(items) == 0 {
		return nil
	}
	manifest, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return err
	}
	return p.apply(ctx, string(manifest))
}

// apply applies a manifest. It tries again if a namespace is missing: the API server creates kube-system and others
// after it is ready.
func (p *plane) apply(ctx context.Context, manifest string) error {
	return p.waitForNodes(ctx, "the objects of the cluster", func() error {
		return p.kubectl(ctx, manifest, "apply", "--filename=-")
	})
}

func (p *plane) kubectl(ctx context.Context, stdin string, args ...string) error {
	command := exec.CommandContext(ctx, p.program(kubectlName), append([]string{"--kubeconfig", p.kubeconfig()}, args...)...)
	command.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(p.folder, "kubectl"))
	command.Stdin = strings.NewReader(stdin)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(output))
	}
	return nil
}

// connectPods writes each node's configuration of the Pods' network as soon as the node has a range, and makes a route
// from each node to the range of every other one. When the configuration is there, the kubelet reports the node ready.
func (p *plane) connectPods(ctx context.Context) error {
	connected := map[string]bool{}
	return p.waitForNodes(ctx, "the ranges of the Pods", func() error {
		text, err := p.get(ctx, "/api/v1/nodes")
		if err != nil {
			return err
		}
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Spec     struct{ PodCIDR string }
			}
		}
		if err := json.Unmarshal(text, &list); err != nil {
			return err
		}
		ranges := map[string]string{}
		for _, item := range list.Items {
			ranges[item.Metadata.Name] = item.Spec.PodCIDR
		}
		for _, node := range p.nodes {
			pods := ranges[node.name]
			if pods == "" {
				return fmt.Errorf("%s has no range for Pods yet", node.name)
			}
			if connected[node.name] {
				continue
			}
			for _, other := range p.nodes {
				if other == node {
					continue
				}
				if err := other.ip("route", "replace", pods, "via", node.address); err != nil {
					return err
				}
			}
			if err := writePodNetwork(node.folder, pods); err != nil {
				return err
			}
			connected[node.name] = true
		}
		return nil
	})
}

// waitForNodes repeats until there is no error; it fails when a process of the cluster has ended or the time is over.
func (p *plane) waitForNodes(ctx context.Context, what string, ready func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case died := <-p.died:
			return died.failure()
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not ready after %s: %w; logs are in %s", what, patience, err, p.folder)
		}
	}
}
