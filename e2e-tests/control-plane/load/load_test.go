package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
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
			r.record(outcome{begin.Add(time.Duration(nth) * time.Second), err})
		}
		s := r.summary()
		if s.Requests != len(test.requests) || s.Failed != test.failed || s.LongestPause != test.pause {
			t.Errorf("%s: %+v", test.name, s)
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
