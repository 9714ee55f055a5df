// Command kube-controller-manager makes ReplicaSets, Pods and EndpointSlices of what is applied.
package main

import (
	"os"
	_ "time/tzdata" // CronJobs with a time zone are scheduled

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	os.Exit(cli.Run(app.NewControllerManagerCommand()))
}
