// Command control-plane runs a Kubernetes control plane on loopback, for tests and trials: etcd, kube-apiserver and, if
// requested, kube-controller-manager. Without -nodes there is no scheduler and no kubelet, so the user writes what runs
// on nodes. With -nodes it runs a whole cluster: see isolation.go.
//
// It needs Linux. It stops everything and deletes its files on SIGINT and SIGTERM, and with -machine when its standard
// input closes, so that a killed test leaves nothing behind. If it is killed itself, the kernel kills its children.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	// The kernel kills a child when the thread that started it ends. The main thread ends last, so it starts all children.
	runtime.LockOSThread()
	if err := dispatch(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "control-plane:", err)
		os.Exit(1)
	}
}

// The roles of this program, as its first argument. It starts itself in all roles but the first two.
const (
	checkRole  = "check"
	imageRole  = "image"
	initRole   = "init"
	insideRole = "inside"
	nodeRole   = "node"
	reaperRole = "reaper"
)

func dispatch(args []string) error {
	role := ""
	if len(args) > 0 {
		role = args[0]
	}
	switch role {
	case checkRole:
		return checkMachine()
	case imageRole:
		return runImage(args[1:])
	case initRole:
		return runInit(args[1:])
	case nodeRole:
		return runNode(os.Stdin)
	case reaperRole:
		return runReaper(args[1:])
	case insideRole:
		args = args[1:]
	}
	options, err := parse(args)
	if err != nil {
		return err
	}
	if options.nodes > 0 && role != insideRole {
		return isolate(options, args)
	}
	return run(options)
}

func parse(args []string) (options, error) {
	var options options
	var images string
	flags := flag.NewFlagSet("control-plane", flag.ExitOnError)
	flags.BoolVar(&options.machine, "machine", false, "print one line of JSON when ready, take commands on standard input, end when it closes")
	flags.StringVar(&options.assets, "assets", os.Getenv("KUBEBUILDER_ASSETS"), "the folder with etcd, kube-apiserver and kubectl; by default $KUBEBUILDER_ASSETS")
	flags.StringVar(&options.serviceRange, "service-cluster-ip-range", "172.21.0.0/16", "the range of Service addresses, or one of each IP family, with a comma")
	flags.BoolVar(&options.audit, "audit", false, "write an audit log of Services, with the audit annotations of webhooks, to audit.log in the folder")
	flags.BoolVar(&options.controllerManager, "controller-manager", false, "run kube-controller-manager too")
	flags.StringVar(&options.featureGates, "feature-gates", "", "feature gates of the API server, such as WatchList=false")
	flags.StringVar(&options.webhookClient, "webhook-client", "", "the host and port of a webhook to which the API server shows a client certificate; its authority is "+webhookClientAuthority+" in the folder")
	flags.StringVar(&options.policies, "policies", "", "a folder with ValidatingAdmissionPolicies that the API server reads from files")
	flags.StringVar(&options.folder, "folder", "", "the folder for certificates, data and logs, emptied first and removed at the end; by default a temporary one")
	flags.IntVar(&options.nodes, "nodes", 0, "run a whole cluster with this number of nodes, as root")
	flags.IntVar(&options.windowsNodes, "windows-nodes", 0, "register this number of Windows nodes, on which nothing runs")
	flags.IntVar(&options.apiServers, "api-servers", 1, "run this number of API servers, each on a node of its own")
	flags.StringVar(&options.proxyMode, "proxy-mode", "nftables", "the mode of kube-proxy: nftables or iptables")
	flags.StringVar(&images, "images", "", "archives of images for the nodes, with commas between them")
	flags.IntVar(&options.port, "port", 0, "the port of the API server; by default a free one")
	flags.StringVar(&options.cgroup, "cgroup", "", "set by the program itself: the cgroup of the containers of all nodes")
	if err := flags.Parse(args); err != nil {
		return options, err
	}
	if flags.NArg() > 0 {
		return options, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if options.apiServers < 1 || options.apiServers > max(options.nodes, 1) {
		return options, fmt.Errorf("-api-servers %d: expected 1, or at most the number of nodes", options.apiServers)
	}
	if images != "" {
		options.images = strings.Split(images, ",")
	}
	// Nodes need Pods, and Pods need service accounts.
	options.controllerManager = options.controllerManager || options.nodes > 0
	return options, nil
}

func run(options options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	commands := make(chan string)
	if options.machine {
		go func() {
			lines(os.Stdin, commands)
			stop()
		}()
	}

	began := time.Now()
	plane, err := start(ctx, options)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return err
	}
	defer plane.remove()

	if options.machine {
		if err := describe(os.Stdout, plane); err != nil {
			return err
		}
	} else {
		explain(os.Stdout, plane, time.Since(began))
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case died := <-plane.died:
			// A process that was stopped on purpose is not current any more.
			if plane.current(died) {
				return died.failure()
			}
		case command := <-commands:
			if err := answer(os.Stdout, command, plane.obey(ctx, command)); err != nil {
				return err
			}
		}
	}
}

// lines sends each line that is read, until the end of the input.
func lines(from io.Reader, to chan<- string) {
	scanner := bufio.NewScanner(from)
	for scanner.Scan() {
		to <- scanner.Text()
	}
}
