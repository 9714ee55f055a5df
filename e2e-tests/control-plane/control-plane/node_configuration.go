package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	// Debian's folder of the plugins that connect Pods with the network.
	cniFolder = "/usr/lib/cni"
	// Where a node's containerd finds the configuration of the Pods' network.
	podNetworkFolder = "run/cni"
)

// containerdConfiguration has gaps for the image of a Pod's sandbox and the folders of CNI. Without the capability
// CAP_SYS_RESOURCE, containers can't get a lower oom_score_adj than containerd has.
const containerdConfiguration = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "` + containerdSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
`

// writeConfigurations writes the configurations of containerd and kube-proxy.
func (s nodeSettings) writeConfigurations() error {
	text := fmt.Sprintf(containerdConfiguration, pauseImage, cniFolder, "/"+podNetworkFolder)
	if err := os.WriteFile(s.file("containerd.toml"), []byte(text), 0o600); err != nil {
		return err
	}
	return writeJSON(s.file("kube-proxy.json"), object{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"clientConnection": object{"kubeconfig": s.ProxyConfig},
		"mode":             s.ProxyMode,
		"clusterCIDR":      podRange,
		// The limits of the connection table belong to the whole machine.
		"conntrack": object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
}

// cgroup is the cgroup of the node's containers.
func (s nodeSettings) cgroup() string { return s.Cgroup + "/" + s.Name }

func (s nodeSettings) kubeletConfiguration() object {
	return object{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"clusterDNS":               []string{s.DNS},
		"clusterDomain":            "cluster.local",
		"resolvConf":               "",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": false},
			"x509":      object{"clientCAFile": s.Authority},
		},
		"authorization":   object{"mode": "AlwaysAllow"},
		"volumePluginDir": "/var/lib/kubelet/volume-plugins",
		// The machine is not only for this node: no limits of swap, no evictions, no reservations. All containers are in
		// one cgroup, which is removed with the cluster.
		"cgroupDriver":                  "cgroupfs",
		"cgroupRoot":                    "/" + s.cgroup(),
		"enforceNodeAllocatable":        []string{},
		"evictionHard":                  object{},
		"failCgroupV1":                  false,
		"failSwapOn":                    false,
		"localStorageCapacityIsolation": false,
		// Images were imported, and can't be pulled again.
		"imageGCHighThresholdPercent": 100,
	}
}

// writePodNetwork writes the configuration of the network for a node's Pods: each has a route to its node.
func writePodNetwork(nodeFolder, pods string) error {
	folder := filepath.Join(nodeFolder, podNetworkFolder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	// containerd reads the file as soon as it has this name.
	file := filepath.Join(folder, "pods.conflist")
	err := writeJSON(file+".new", object{
		"cniVersion": "0.4.0",
		"name":       "pods",
		"plugins": []object{
			{
				"type": "ptp",
				"ipam": object{
					"type":   "host-local",
					"ranges": [][]object{{{"subnet": pods}}},
					"routes": []object{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	})
	if err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
