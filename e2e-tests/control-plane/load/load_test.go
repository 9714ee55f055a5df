package main

import (
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestSummary(t *testing.T) {
	begin := time.Now()
	failed := errors.New("failed")
	// A request is sent every second; true succeeds.
	for _, test := range []struct {
		name     string
		requests []bool
		failed   int
		pause    int64
	}{
		{"no request", nil, 0, 0},
		{"all succeed", []bool{true, true, true}, 0, 1000},
		{"one fails", []bool{true, false, true}, 1, 2000},
		{"two pauses", []bool{true, false, true, false, false, true}, 3, 3000},
		{"the first ones fail", []bool{false, false, true, true}, 2, 2000},
		{"the last ones fail", []bool{true, true, false, false}, 2, 2000},
		{"all fail", []bool{false, false, false}, 3, 2000},
	} {
		var r recorder
		// In another order than they were sent.
		for nth := len(test.requests) - 1; nth >= 0; nth-- {
			var err error
			if !test.requests[nth] {
				err = failed
			}
			r.record(outcome{sent: begin.Add(time.Duration(nth) * time.Second), err: err})
		}
		s := r.summary()
		if s.Requests != len(test.requests) || s.Failed != test.failed || s.LongestPause != test.pause {
			t.Errorf("%s: %+v", test.name, s)
		}
	}
}

func TestSeconds(t *testing.T) {
	failed := errors.New("failed")
	one := map[string]int{"failed": 1}
	// A request is sent every half second; true succeeds.
	for _, test := range []struct {
		name       string
		requests   []bool
		startsLate bool
		seconds    []second
	}{
		{"no request", nil, false, []second{}},
		{"all succeed", []bool{true, true, true}, false, []second{{At: 100, Requests: 2, LongestPause: 500}, {At: 101, Requests: 1, LongestPause: 500}}},
		{"one fails", []bool{true, true, false, true}, false, []second{
			{At: 100, Requests: 2, LongestPause: 500}, {At: 101, Requests: 2, Failed: 1, Slow: 1, LongestPause: 1000, Errors: one},
		}},
		{"the last one fails", []bool{true, false}, false, []second{{At: 100, Requests: 2, Failed: 1, LongestPause: 500, Errors: one}}},
		{"the first one fails", []bool{false, true}, false, []second{{At: 100, Requests: 2, Failed: 1, LongestPause: 500, Errors: one}}},
		{"the first ones fail, of a target that starts late", []bool{false, false, true, false}, true, []second{{At: 101, Requests: 2, Failed: 1, LongestPause: 500, Errors: one}}},
	} {
		var r recorder
		for nth := len(test.requests) - 1; nth >= 0; nth-- {
			var err error
			if !test.requests[nth] {
				err = failed
			}
			took := time.Duration(nth) * time.Second / 3
			r.record(outcome{time.Unix(100, 0).Add(time.Duration(nth) * time.Second / 2), err, took})
		}
		if got := r.seconds(test.startsLate); !reflect.DeepEqual(got, test.seconds) {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

// clusterOf starts the servers of a cluster on loopback: a web server, a DNS server with these answers, and an API
// server. A query is lost if its answer is nil.
func clusterOf(t *testing.T, answers func() []dns.RR) clusterOptions {
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(web.Close)
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/version" || request.Header.Get("Authorization") != "Bearer secret" {
			answer.WriteHeader(http.StatusUnauthorized)
		}
	}))
	api.EnableHTTP2 = true
	api.StartTLS()
	t.Cleanup(api.Close)
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: socket, Handler: dns.HandlerFunc(func(answer dns.ResponseWriter, question *dns.Msg) {
		message := new(dns.Msg).SetReply(question)
		if message.Answer = answers(); message.Answer != nil {
			_ = answer.WriteMsg(message)
		}
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	account := t.TempDir()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	for name, text := range map[string][]byte{"token": []byte("secret"), "ca.crt": authority} {
		if err := os.WriteFile(filepath.Join(account, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	return clusterOptions{
		services: []string{"localhost"}, port: port, keepsOpen: true, resolver: socket.LocalAddr().String(), domain: "test",
		oldDNS: socket.LocalAddr().String(), newDNS: "127.0.0.1:1", api: api.Listener.Addr().String(), account: account,
		apiName: api.Listener.Addr().String(),
		rate:    50, apiRate: 20, timeout: time.Second, apiTimeout: time.Second, duration: 500 * time.Millisecond,
	}
}

func TestCluster(t *testing.T) {
	var asked atomic.Int32
	o := clusterOf(t, func() []dns.RR {
		asked.Add(1)
		alias := &dns.CNAME{Hdr: dns.RR_Header{Name: "localhost.test.", Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 3600}, Target: "other.test."}
		address := &dns.A{Hdr: dns.RR_Header{Name: "other.test.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1800}, A: net.IPv4(127, 0, 0, 1)}
		return []dns.RR{alias, address}
	})
	kinds, err := o.clients()
	if err != nil {
		t.Fatal(err)
	}
	if err := o.waitForAnswers(kinds); err != nil {
		t.Fatal(err)
	}
	if address, ttl, err := o.lookUp(o.resolver, "localhost"); address != "127.0.0.1" || ttl != 30*time.Minute || err != nil {
		t.Errorf("%s %s %v", address, ttl, err)
	}
	result := o.run(kinds)
	queries := 0
	for _, name := range []string{"byName", "byAddress", "open", "oldDns", "apiNew", "apiKept", "apiByName"} {
		requests := 0
		for _, second := range result[name] {
			requests += second.Requests
			if second.Failed > 0 {
				t.Errorf("%s: %+v", name, second)
			}
		}
		if requests == 0 {
			t.Errorf("%s: no request", name)
		}
		if name == "oldDns" {
			queries = requests
		}
	}
	// Besides the counted queries, one serves all requests by address, one is of this test, and one of
	// `waitForAnswers`.
	if got := int(asked.Load()); got != queries+3 {
		t.Errorf("%d queries, of which %d are counted", got, queries)
	}
	if len(result["newDns"]) != 0 {
		t.Errorf("nothing answers there: %+v", result["newDns"])
	}
	o.until = o.account
	o.duration = time.Hour
	o.run(kinds[:1])
}

func TestResolveRepeatsLostQueries(t *testing.T) {
	address := []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "localhost.test.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)}}
	for _, test := range []struct {
		name     string
		answers  [][]dns.RR
		queries  int32
		succeeds bool
	}{
		{"the first query is answered", [][]dns.RR{address}, 1, true},
		{"the first query is lost", [][]dns.RR{nil, address}, 2, true},
		{"two queries are lost", [][]dns.RR{nil, nil, address}, 2, false},
		{"the answer has no address", [][]dns.RR{{}, address}, 1, false},
	} {
		var queries atomic.Int32
		o := clusterOf(t, func() []dns.RR { return test.answers[queries.Add(1)-1] })
		o.timeout = 200 * time.Millisecond
		_, _, err := o.resolve("localhost")
		if queries.Load() != test.queries || (err == nil) != test.succeeds {
			t.Errorf("%s: %d queries, %v", test.name, queries.Load(), err)
		}
	}
}

func TestRun(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		_, _ = answer.Write([]byte("web"))
	}))
	address := server.Listener.Addr().String()
	o := options{
		name: address, address: address, rate: 100, connections: 2, timeout: time.Second,
		nameDuration: 500 * time.Millisecond, addressDuration: 300 * time.Millisecond,
	}
	r := run(o)
	for name, s := range map[string]summary{"by name": r.ByName, "by address": r.ByAddress, "open": r.LongLived} {
		if s.Requests == 0 || s.Failed != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if r.ByName.Requests <= r.ByAddress.Requests {
		t.Errorf("the durations are ignored: %+v", r)
	}
	server.Close()
	r = run(o)
	for name, s := range map[string]summary{"by name": r.ByName, "by address": r.ByAddress, "open": r.LongLived} {
		if s.Requests == 0 || s.Failed != s.Requests || s.Errors["refused"] != s.Requests {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
