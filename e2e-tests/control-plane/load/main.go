// load sends web requests at a fixed rate, whatever becomes of the ones before, and prints as JSON how many failed: by
// name and by address with a new connection for each request, and through connections that stay open. It has no cache
// of names: each request by name asks the DNS server. `load cluster` sends more kinds of requests.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"
)

// patience is how long the targets may take to answer for the first time.
const patience = time.Minute

// options are the targets and the limits of a run.
type options struct {
	name, address   string
	rate            int
	connections     int
	timeout         time.Duration
	nameDuration    time.Duration
	addressDuration time.Duration
}

// result is what is printed.
type result struct {
	ByName    summary `json:"byName"`
	ByAddress summary `json:"byAddress"`
	LongLived summary `json:"longLived"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "cluster" {
		if err := runCluster(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.name, "name", "", "the `HOST:PORT` that is looked up for each request")
	flag.StringVar(&o.address, "address", "", "the `IP:PORT` of the other requests and of the open connections")
	flag.IntVar(&o.rate, "rate", 100, "requests per second by name, and as many by address")
	flag.IntVar(&o.connections, "connections", 4, "connections that stay open, with ten requests a second each")
	flag.DurationVar(&o.timeout, "timeout", time.Second, "the time limit of one request, with its look-up")
	flag.DurationVar(&o.nameDuration, "name-duration", time.Minute, "how long to send requests by name and through open connections")
	flag.DurationVar(&o.addressDuration, "address-duration", time.Minute, "how long to send requests by address")
	flag.Parse()
	if o.name == "" || o.address == "" || o.rate < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "load: -name, -address and a rate are needed, and no other arguments")
		os.Exit(2)
	}
	if err := waitForAnswers(o); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	// The Service may move from now on.
	fmt.Println("begun")
	text, err := json.Marshal(run(o))
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}

// waitForAnswers returns when both targets answer.
func waitForAnswers(o options) error {
	deadline := time.Now().Add(patience)
	for _, target := range []string{o.name, o.address} {
		for {
			outcome := request(target, o.timeout)
			if outcome.err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("no answer from %s within %s: %w", target, patience, outcome.err)
			}
			time.Sleep(pauseBetween)
		}
	}
	return nil
}

// run sends all requests, and returns when the last one has ended.
func run(o options) result {
	var byName, byAddress, longLived recorder
	var running sync.WaitGroup
	interval := time.Second / time.Duration(o.rate)
	named, endNamed := context.WithTimeout(context.Background(), o.nameDuration)
	defer endNamed()
	addressed, endAddressed := context.WithTimeout(context.Background(), o.addressDuration)
	defer endAddressed()
	running.Go(func() { atRate(named, interval, func(int) { byName.record(request(o.name, o.timeout)) }) })
	running.Go(func() { atRate(addressed, interval, func(int) { byAddress.record(request(o.address, o.timeout)) }) })
	for range o.connections {
		running.Go(func() { keepOpen(named, o.address, o.timeout, pauseBetween, &longLived) })
	}
	running.Wait()
	return result{byName.summary(), byAddress.summary(), longLived.summary()}
}

// atRate calls send at a fixed rate until the context ends, each time with its number and in a goroutine of its own, and
// waits for all of them.
func atRate(ctx context.Context, interval time.Duration, send func(nth int)) {
	var sent sync.WaitGroup
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for nth := 0; ; nth++ {
		select {
		case <-ctx.Done():
			sent.Wait()
			return
		case <-ticks.C:
			sent.Go(func() { send(nth) })
		}
	}
}
