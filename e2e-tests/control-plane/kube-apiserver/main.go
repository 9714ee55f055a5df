// Command kube-apiserver is the real one, of the version that go.mod names.
package main

import (
	"os"
	_ "time/tzdata" // CronJobs with a time zone are validated

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
