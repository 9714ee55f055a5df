package main

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// These ports are below those that the kernel picks for outgoing connections, so the port of an API server is still
// free when the API server restarts.
const (
	firstPort = 20000
	lastPort  = 29999
)

// freePort returns a port of 127.0.0.1 on which no process listens now.
func freePort() (int, error) {
	port, listener, err := listenOnLoopback()
	if err != nil {
		return 0, err
	}
	return port, listener.Close()
}

// listenOnLoopback listens on a free port of 127.0.0.1.
func listenOnLoopback() (int, net.Listener, error) {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, listener, nil
		}
	}
	return 0, nil, errors.New("found no free port of 127.0.0.1")
}
