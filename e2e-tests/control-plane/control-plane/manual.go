package main

import (
	"fmt"
	"io"
	"time"
)

// explain prints how to use the control plane, or the cluster.
func explain(to io.Writer, p *plane, took time.Duration) {
	if p.options.nodes > 0 {
		fmt.Fprintf(to, `
Kubernetes %[1]s with %[2]d nodes is ready after %.1[3]f s. Services are in %[4]s, logs in %[5]s.

  KUBECONFIG=%[6]s %[7]s get nodes

Ctrl-C here stops it, and removes everything that is in it.
`, p.version, p.options.nodes, took.Seconds(), p.options.serviceRange, p.folder, p.kubeconfig(), p.program(kubectlName))
		return
	}
	fmt.Fprintf(to, `
Kubernetes %[1]s is ready after %.1[2]f s: %[3]s, Services in %[4]s.
There are no nodes: workloads are recorded, Pods stay pending. Logs are in %[5]s.

In a second terminal:

  export KUBECONFIG=%[6]s
  export PATH=$PWD/target/release:%[7]s:$PATH
  clusterip serve --kubeconfig "$KUBECONFIG" --settings examples/settings/k2s.yaml \
    --listen 127.0.0.1:8443 --register-url https://127.0.0.1:8443

In a third one, with the same two exports:

  kubectl apply -f examples/shop/cluster.yaml -f examples/shop
  kubectl get services -A

Ctrl-C here stops it, and removes everything that is in it.
`, p.version, took.Seconds(), p.server, p.options.serviceRange, p.folder, p.kubeconfig(), p.options.assets)
}
