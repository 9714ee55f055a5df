// Command coredns answers the DNS names of Services. It has only the plugins that the cluster's Corefile names and that
// Kubernetes' own tests use, because all plugins of CoreDNS take many minutes to build.
package main

import (
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

func main() {
	// The order in which the plugins of a server handle a query.
	dnsserver.Directives = []string{"errors", "log", "health", "ready", "cache", "hosts", "kubernetes"}
	coremain.Run()
}
