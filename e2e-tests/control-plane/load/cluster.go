package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// clusterOptions are the targets and the limits of requests in a cluster whose addresses change.
type clusterOptions struct {
	services       []string
	port           string
	keepsOpen      bool
	resolver       string
	domain         string
	oldDNS, newDNS string
	api, apiName   string
	account        string
	rate           int
	apiRate        int
	timeout        time.Duration
	apiTimeout     time.Duration
	duration       time.Duration
	until          string
}

// runCluster sends requests of all kinds until the time is over or a file exists, and prints as JSON what became of
// them in each second.
func runCluster(args []string) error {
	var o clusterOptions
	var services string
	flags := flag.NewFlagSet("load cluster", flag.ExitOnError)
	flags.StringVar(&services, "services", "", "the Services of this namespace, with commas between them")
	flags.StringVar(&o.port, "port", "80", "the port of the Services")
	flags.BoolVar(&o.keepsOpen, "open", false, "also keep a connection to each Service open")
	flags.StringVar(&o.oldDNS, "old-dns", "", "an `IP:PORT` of the cluster's DNS")
	flags.StringVar(&o.newDNS, "new-dns", "", "another `IP:PORT` of the cluster's DNS; its requests count from the first answer on")
	flags.IntVar(&o.rate, "rate", 25, "requests per second of each kind")
	flags.IntVar(&o.apiRate, "api-rate", 5, "requests per second to the API server with new connections, and the same number through a kept connection, and by name")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Second, "the time limit of a query to DNS, and of a request to a Service after its look-up")
	flags.DurationVar(&o.apiTimeout, "api-timeout", 5*time.Second, "the time limit of a request to the API server")
	flags.DurationVar(&o.duration, "duration", time.Minute, "how long to send requests at most")
	flags.StringVar(&o.until, "until", "", "the `FILE` whose existence ends the run")
	_ = flags.Parse(args)
	o.services = strings.Split(services, ",")
	o.api = net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	o.apiName = "kubernetes.default.svc"
	o.account = "/var/run/secrets/kubernetes.io/serviceaccount"
	resolver, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return err
	}
	if services == "" || len(resolver.Servers) == 0 || len(resolver.Search) == 0 {
		return errors.New("-services is missing, or /etc/resolv.conf is not that of a Pod")
	}
	o.resolver, o.domain = net.JoinHostPort(resolver.Servers[0], resolver.Port), resolver.Search[0]
	clients, err := o.clients()
	if err != nil {
		return err
	}
	if err := o.waitForAnswers(clients); err != nil {
		return err
	}
	fmt.Println("begun")
	text, err := json.Marshal(o.run(clients))
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	return nil
}

// kindOfRequest is one kind of requests. `send` gets the number of the request.
type kindOfRequest struct {
	name string
	rate int
	// Whether failures before the first success do not count.
	startsLate bool
	send       func(nth int) outcome
}

func (o clusterOptions) clients() ([]kindOfRequest, error) {
	byAddress := addressClient{o: o, known: map[string]knownAddress{}}
	kinds := []kindOfRequest{
		{name: "byName", rate: o.rate, send: o.byName},
		{name: "byAddress", rate: o.rate, send: byAddress.request},
	}
	for _, server := range []kindOfRequest{{name: "oldDns"}, {name: "newDns", startsLate: true}} {
		address := map[string]string{"oldDns": o.oldDNS, "newDns": o.newDNS}[server.name]
		if address == "" {
			continue
		}
		server.rate = o.rate
		server.send = func(nth int) outcome {
			sent := time.Now()
			_, _, err := o.lookUp(address, o.service(nth))
			return ended(sent, err)
		}
		kinds = append(kinds, server)
	}
	if o.apiRate == 0 {
		return kinds, nil
	}
	api, err := o.apiClients()
	return append(kinds, api...), err
}

func (o clusterOptions) service(nth int) string { return o.services[nth%len(o.services)] }

func (o clusterOptions) target(nth int) string { return net.JoinHostPort(o.service(nth), o.port) }

// waitForAnswers returns when requests of all kinds succeed, without kinds that start late.
func (o clusterOptions) waitForAnswers(kinds []kindOfRequest) error {
	deadline := time.Now().Add(patience)
	for _, kind := range kinds {
		for nth := 0; !kind.startsLate && nth < len(o.services); {
			outcome := kind.send(nth)
			if outcome.err == nil {
				nth++
				continue
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s: no answer within %s: %w", kind.name, patience, outcome.err)
			}
			time.Sleep(pauseBetween)
		}
	}
	return nil
}

// run sends all requests, and returns when the last one has ended.
func (o clusterOptions) run(kinds []kindOfRequest) map[string][]second {
	ctx, end := context.WithTimeout(context.Background(), o.duration)
	defer end()
	go func() {
		for o.until != "" && ctx.Err() == nil {
			if _, err := os.Stat(o.until); err == nil {
				end()
			}
			time.Sleep(pauseBetween)
		}
	}()
	var running sync.WaitGroup
	recorders := make([]recorder, len(kinds))
	for i, kind := range kinds {
		running.Go(func() {
			atRate(ctx, time.Second/time.Duration(kind.rate), func(nth int) { recorders[i].record(kind.send(nth)) })
		})
	}
	var open recorder
	if o.keepsOpen {
		// As many requests a second as of the other kinds.
		pause := time.Second * time.Duration(len(o.services)) / time.Duration(o.rate)
		for nth := range o.services {
			running.Go(func() { keepOpen(ctx, o.target(nth), o.timeout, pause, &open) })
		}
	}
	running.Wait()
	result := map[string][]second{}
	for i, kind := range kinds {
		result[kind.name] = recorders[i].seconds(kind.startsLate)
	}
	if o.keepsOpen {
		result["open"] = open.seconds(false)
	}
	return result
}

// attempts is how often resolvers send a query that gets no answer: that of Go, and those of glibc and musl by default.
const attempts = 2

// byName looks a Service up with the resolver of Go, and sends a request to the address.
func (o clusterOptions) byName(nth int) outcome {
	sent := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), attempts*o.timeout)
	defer cancel()
	addresses, err := newResolver().LookupNetIP(ctx, "ip", o.service(nth))
	if err != nil {
		return ended(sent, err)
	}
	first := slices.IndexFunc(addresses, func(address netip.Addr) bool { return address.Unmap().Is4() })
	if first < 0 {
		return ended(sent, errNoAddress)
	}
	target := net.JoinHostPort(addresses[first].Unmap().String(), o.port)
	return ended(sent, request(target, o.timeout).err)
}

// resolve looks a Service up as resolvers do: a query without an answer is sent again.
func (o clusterOptions) resolve(service string) (address string, ttl time.Duration, err error) {
	for range attempts {
		address, ttl, err = o.lookUp(o.resolver, service)
		if lost := net.Error(nil); !errors.As(err, &lost) {
			break
		}
	}
	return address, ttl, err
}

var errNoAddress = errors.New("DNS: no address")

// lookUp sends one query for the address of a Service to a DNS server, and returns the address with the time for which
// it may be used.
func (o clusterOptions) lookUp(server, service string) (string, time.Duration, error) {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(service+"."+o.domain), dns.TypeA)
	answer, _, err := (&dns.Client{Timeout: o.timeout}).Exchange(question, server)
	if err != nil {
		return "", 0, err
	}
	if answer.Rcode != dns.RcodeSuccess {
		return "", 0, fmt.Errorf("DNS: %s", dns.RcodeToString[answer.Rcode])
	}
	address, ttl := "", uint32(0)
	for nth, record := range answer.Answer {
		// The record with the shortest time decides: during a move, the name of the Service is an alias of another
		// name.
		if nth == 0 || record.Header().Ttl < ttl {
			ttl = record.Header().Ttl
		}
		if a, isAddress := record.(*dns.A); isAddress {
			address = a.A.String()
		}
	}
	if address == "" {
		return "", 0, errNoAddress
	}
	return address, time.Duration(ttl) * time.Second, nil
}

// addressClient sends requests to addresses, which it remembers for as long as DNS allows.
type addressClient struct {
	o     clusterOptions
	mutex sync.Mutex
	known map[string]knownAddress
}

type knownAddress struct {
	address string
	until   time.Time
}

func (c *addressClient) request(nth int) outcome {
	sent := time.Now()
	service := c.o.service(nth)
	c.mutex.Lock()
	known := c.known[service]
	c.mutex.Unlock()
	if !sent.Before(known.until) {
		address, ttl, err := c.o.resolve(service)
		if err != nil {
			return ended(sent, err)
		}
		known = knownAddress{address, time.Now().Add(ttl)}
		c.mutex.Lock()
		c.known[service] = known
		c.mutex.Unlock()
	}
	return ended(sent, request(net.JoinHostPort(known.address, c.o.port), c.o.timeout).err)
}

// apiClients returns the requests to the API server with the service account of the Pod. As most programs in Pods do, two
// kinds use the address in the environment: one with a new connection for each request, the other through a kept
// connection. The third kind looks a name up for each request.
func (o clusterOptions) apiClients() ([]kindOfRequest, error) {
	token, err := os.ReadFile(filepath.Join(o.account, "token"))
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(filepath.Join(o.account, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := func(address string, isKept bool, timeout time.Duration) func(int) outcome {
		dial := func(ctx context.Context, network, target string) (net.Conn, error) {
			return (&net.Dialer{Resolver: newResolver()}).DialContext(ctx, network, target)
		}
		client := &http.Client{Timeout: timeout, Transport: &http.Transport{
			DialContext: dial, DisableKeepAlives: !isKept, ForceAttemptHTTP2: isKept,
			TLSClientConfig: &tls.Config{RootCAs: roots},
		}}
		return func(int) outcome {
			sent := time.Now()
			return ended(sent, ask(client, "https://"+address+"/version", string(token)))
		}
	}
	return []kindOfRequest{
		{name: "apiNew", rate: o.apiRate, send: client(o.api, false, o.apiTimeout)},
		{name: "apiKept", rate: o.apiRate, send: client(o.api, true, o.apiTimeout)},
		{name: "apiByName", rate: o.apiRate, send: client(o.apiName, false, attempts*o.timeout+o.apiTimeout)},
	}, nil
}

func ask(client *http.Client, url, token string) error {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	return finish(answer)
}
