// Command control-plane runs a Kubernetes control plane on loopback, for tests and trials: etcd, kube-apiserver and, if
// requested, kube-controller-manager. There is no scheduler and no kubelet, so the user writes what runs on nodes. It
// needs Linux. It stops everything and deletes its files on SIGINT and SIGTERM, and with -machine when its standard
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
	"syscall"
	"time"
)

func main() {
	// The kernel kills a child when the thread that started it ends. The main thread ends last, so it starts all children.
	runtime.LockOSThread()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "control-plane:", err)
		os.Exit(1)
	}
}

func run() error {
	var options options
	machine := flag.Bool("machine", false, "print one line of JSON when ready, take commands on standard input, end when it closes")
	flag.StringVar(&options.assets, "assets", os.Getenv("KUBEBUILDER_ASSETS"), "the folder with etcd, kube-apiserver and kubectl; $KUBEBUILDER_ASSETS where not given")
	flag.StringVar(&options.serviceRange, "service-cluster-ip-range", "172.21.0.0/16", "the range of Service addresses, or one of each IP family, with a comma")
	flag.BoolVar(&options.audit, "audit", false, "write what webhooks say of Services for the audit log into audit.log in the folder")
	flag.BoolVar(&options.controllerManager, "controller-manager", false, "run kube-controller-manager too")
	flag.StringVar(&options.webhookClient, "webhook-client", "", "the host and port of a webhook to which the API server shows a client certificate; its authority is "+webhookClientAuthority+" in the folder")
	flag.StringVar(&options.folder, "folder", "", "the folder for certificates, data and logs, emptied first and removed at the end; a temporary one where not given")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	commands := make(chan string)
	if *machine {
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

	if *machine {
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
