package main

import (
	"slices"
	"sync"
	"time"
)

// recorder collects the outcomes of requests. Several goroutines may use it.
type recorder struct {
	mutex    sync.Mutex
	outcomes []outcome
}

// summary is what becomes of the requests of one kind.
type summary struct {
	Requests int `json:"requests"`
	Failed   int `json:"failed"`
	// The longest time between two requests that succeeded and were sent one after the other, in milliseconds. At the
	// beginning and at the end, the first and the last request count as if they had succeeded.
	LongestPause int64 `json:"longestPause"`
	// How often each kind of error occurred.
	Errors map[string]int `json:"errors"`
}

func (r *recorder) record(outcome outcome) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.outcomes = append(r.outcomes, outcome)
}

func (r *recorder) summary() summary {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	// They ended in another order.
	slices.SortFunc(r.outcomes, func(a, b outcome) int { return a.sent.Compare(b.sent) })
	s := summary{Requests: len(r.outcomes), Errors: map[string]int{}}
	var last time.Time
	for nth, outcome := range r.outcomes {
		if outcome.err != nil {
			s.Failed++
			s.Errors[kind(outcome.err)]++
		}
		if nth == 0 {
			last = outcome.sent
		}
		if outcome.err == nil || nth == len(r.outcomes)-1 {
			s.LongestPause = max(s.LongestPause, outcome.sent.Sub(last).Milliseconds())
			last = outcome.sent
		}
	}
	return s
}
