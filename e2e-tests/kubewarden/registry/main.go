// Command registry is the container registry of the tests of Kubewarden: distribution without TLS, which keeps what is
// pushed in memory.
package main

import (
	"context"
	"log"
	"os"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
)

func main() {
	// There is no collector of traces.
	if err := os.Setenv("OTEL_TRACES_EXPORTER", "none"); err != nil {
		log.Fatal(err)
	}
	configured := &configuration.Configuration{Storage: configuration.Storage{"inmemory": nil}}
	configured.HTTP.Addr = ":5000"
	server, err := registry.NewRegistry(context.Background(), configured)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.ListenAndServe())
}
