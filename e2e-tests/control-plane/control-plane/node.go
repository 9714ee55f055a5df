package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// nodeSettings are the settings of a node. The role node reads them from its standard input when its network is ready,
// and again when DNS has another address.
type nodeSettings struct {
	Name, Address, Folder, Assets         string
	Images                                []string
	Authority, KubeletConfig, ProxyConfig string
	ProxyMode, DNS, Cgroup                string
}

// ownFolders are the folders that each node has for itself: the programs use them by their usual names.
var ownFolders = map[string]string{"run": "/run", "lib": "/var/lib", "log": "/var/log"}

// runNode runs a node in the namespaces of this process, until one of its programs ends by itself.
func runNode(input io.Reader) error {
	settings := json.NewDecoder(input)
	var s nodeSettings
	if err := settings.Decode(&s); err != nil {
		return fmt.Errorf("read the settings of the node: %w", err)
	}
	if err := s.prepare(); err != nil {
		return err
	}
	died := make(chan *process, 4)
	if _, err := launch("containerd", s.Folder, died, "--config", s.file("containerd.toml")); err != nil {
		return err
	}
	if err := waitForSocket(containerdSocket); err != nil {
		return err
	}
	for _, image := range s.Images {
		if err := importImage(image); err != nil {
			return err
		}
	}
	kubelet, err := s.startKubelet(died)
	if err != nil {
		return err
	}
	if _, err := launch(filepath.Join(s.Assets, proxyName), s.Folder, died, "--config", s.file("kube-proxy.json")); err != nil {
		return err
	}
	changed := make(chan nodeSettings)
	go func() {
		for settings.Decode(&s) == nil {
			changed <- s
		}
	}()
	for {
		select {
		case latest := <-changed:
			kubelet.kill()
			if kubelet, err = latest.startKubelet(died); err != nil {
				return err
			}
		case ended := <-died:
			// A kubelet that was killed above is replaced.
			if ended.name != kubeletName || ended == kubelet {
				return ended.failure()
			}
		}
	}
}

func (s nodeSettings) startKubelet(died chan<- *process) (*process, error) {
	if err := writeJSON(s.file("kubelet.json"), s.kubeletConfiguration()); err != nil {
		return nil, err
	}
	return launch(filepath.Join(s.Assets, kubeletName), s.Folder, died,
		"--config", s.file("kubelet.json"),
		"--kubeconfig", s.KubeletConfig,
		"--node-ip", s.Address,
	)
}

func (s nodeSettings) file(name string) string { return filepath.Join(s.Folder, name) }

// prepare sets the name of the machine, mounts the folders of the node, and writes the configurations of its programs.
func (s nodeSettings) prepare() error {
	if err := syscall.Sethostname([]byte(s.Name)); err != nil {
		return err
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for name, target := range ownFolders {
		source := s.file(name)
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(source, target, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	// Containers may see what the kubelet mounts later.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts with containers: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	// The kubelet makes cgroups only below one that exists.
	if err := makeCgroup(s.cgroup()); err != nil {
		return err
	}
	return s.writeConfigurations()
}

func waitForSocket(path string) error {
	deadline := time.Now().Add(patience)
	for {
		connection, err := net.Dial("unix", path)
		if err == nil {
			return connection.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd is not ready after %s: %w", patience, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// importImage imports the images of an archive into the containerd of this node.
func importImage(archive string) error {
	return execute("ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", archive)
}
