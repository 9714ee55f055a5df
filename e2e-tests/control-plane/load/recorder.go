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

// A request counts as slow if it succeeds after this time or later: TCP repeats a lost packet after a second.
const slow = time.Second

// second counts the requests that were sent in one second, which `at` names in seconds since 1970. `longestPause` is
// the longest pause between two successful requests that ended in this second, in milliseconds.
type second struct {
	At           int64          `json:"at"`
	Requests     int            `json:"requests"`
	Failed       int            `json:"failed"`
	Slow         int            `json:"slow"`
	LongestPause int64          `json:"longestPause"`
	Errors       map[string]int `json:"errors,omitempty"`
}

// seconds returns the outcomes in each second with a request. If the target starts late, they begin with the first
// success.
func (r *recorder) seconds(startsLate bool) []second {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.sort()
	seconds := []second{}
	var last time.Time
	for _, outcome := range r.outcomes {
		if startsLate && last.IsZero() && outcome.err != nil {
			continue
		}
		at := outcome.sent.Unix()
		if len(seconds) == 0 || seconds[len(seconds)-1].At != at {
			seconds = append(seconds, second{At: at})
		}
		now := &seconds[len(seconds)-1]
		now.Requests++
		if last.IsZero() {
			last = outcome.sent
		}
		// A pause that has not ended counts as well.
		now.LongestPause = max(now.LongestPause, outcome.sent.Sub(last).Milliseconds())
		if outcome.err == nil {
			last = outcome.sent
			if outcome.took >= slow {
				now.Slow++
			}
			continue
		}
		now.Failed++
		if now.Errors == nil {
			now.Errors = map[string]int{}
		}
		now.Errors[kind(outcome.err)]++
	}
	return seconds
}

// sort orders the outcomes by the times at which their requests were sent. Requests end in another order.
func (r *recorder) sort() {
	slices.SortFunc(r.outcomes, func(a, b outcome) int { return a.sent.Compare(b.sent) })
}

func (r *recorder) summary() summary {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.sort()
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
