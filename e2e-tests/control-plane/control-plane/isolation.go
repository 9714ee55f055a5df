package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A cluster with nodes consists of these processes:
//
//	control-plane           forwards the port of the API server, and waits
//	├── reaper              removes cgroups and files when control-plane has ended in any way
//	└── init                process 1 of PID, mount and network namespaces of their own
//	    └── inside          starts and watches the control plane, the network and the nodes
//	        ├── etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//	        └── node        one for each node, with mount, network and UTS namespaces of its own
//	            └── containerd, kubelet, kube-proxy
//
// If control-plane ends, the kernel kills init, and with it every process in its PID namespace. Mounts, interfaces and
// rules vanish with the namespaces. Only cgroups and files remain, for the reaper.

// nodePrograms are those that -nodes needs besides the programs in the folder of the assets, with the Debian packages
// that contain them.
var nodePrograms = [][2]string{
	{"containerd", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"}, {"ip", "iproute2"}, {"ss", "iproute2"},
	{"nft", "nftables"}, {"iptables", "iptables"}, {"conntrack", "conntrack"},
	{cniFolder + "/ptp", "containernetworking-plugins"},
	// The image agnhost contains these and ss.
	{"curl", "curl"}, {"dig", "bind9-dnsutils"}, {"nslookup", "bind9-dnsutils"}, {"nc", "netcat-openbsd"}, {"wget", "wget"},
}

// checkMachine returns an error that names what a cluster with nodes needs and this machine lacks.
func checkMachine() error {
	const alone = "without nodes (make cluster NODES=0), the control plane runs alone"
	if os.Getuid() != 0 {
		return errors.New("nodes need root; " + alone)
	}
	var programs, packages []string
	for _, program := range nodePrograms {
		if _, err := exec.LookPath(program[0]); err != nil {
			programs, packages = append(programs, program[0]), append(packages, program[1])
		}
	}
	if len(programs) > 0 {
		return fmt.Errorf("nodes need %s: apt-get install %s; %s",
			strings.Join(programs, ", "), strings.Join(slices.Compact(packages), " "), alone)
	}
	return nil
}

func (o options) check() error {
	if o.proxyMode != "nftables" && o.proxyMode != "iptables" {
		return fmt.Errorf("-proxy-mode %s: expected nftables or iptables", o.proxyMode)
	}
	if o.nodes > maxNodes {
		return fmt.Errorf("-nodes %d: expected at most %d", o.nodes, maxNodes)
	}
	return checkMachine()
}

// isolate runs a cluster in namespaces of its own, until a signal or its end.
func isolate(options options, args []string) error {
	if err := options.check(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	folder, lock, err := takeFolder(options.folder)
	if err != nil {
		return err
	}
	removeAbandonedCgroups()
	cgroup := cgroupPrefix + strconv.Itoa(os.Getpid())
	reaper, err := startReaper(folder, lock, cgroup)
	if err != nil {
		return err
	}
	defer reaper.finish()

	port, listener, err := listenOnLoopback()
	if err != nil {
		return err
	}
	command := exec.Command(executable(), append(append([]string{initRole}, args...),
		"-folder", folder, "-port", strconv.Itoa(port), "-cgroup", cgroup)...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		// Ctrl-C is for this process alone.
		Setpgid:   true,
		Pdeathsig: syscall.SIGKILL,
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start in new namespaces: %w", err)
	}
	if err := reaper.waitsFor(command.Process.Pid); err != nil {
		_ = command.Process.Kill()
		return err
	}
	pid := strconv.Itoa(command.Process.Pid)
	// With this ID, tests and users enter the namespaces.
	if err := os.WriteFile(filepath.Join(folder, "pid"), []byte(pid+"\n"), 0o600); err != nil {
		return err
	}
	network, err := os.Open(filepath.Join("/proc", pid, "ns/net"))
	if err != nil {
		return err
	}
	go forward(listener, network, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))

	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case <-ctx.Done():
		_ = command.Process.Kill()
		<-ended
		return nil
	case err := <-ended:
		// The process inside has written the reason.
		if err != nil {
			return fmt.Errorf("the cluster ended: %w", err)
		}
		return nil
	}
}

// runInit is process 1 of the cluster. It starts the role inside, and waits for orphaned processes, such as the shims
// of ended containers, until that one ends.
func runInit(args []string) error {
	// Nothing that is mounted from here on is visible outside.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	inside := exec.Command(executable(), append([]string{insideRole}, args...)...)
	inside.Stdin, inside.Stdout, inside.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := inside.Start(); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && err != syscall.EINTR {
			return fmt.Errorf("wait for processes: %w", err)
		}
		if pid == inside.Process.Pid {
			os.Exit(status.ExitStatus() & 0xff)
		}
	}
}
