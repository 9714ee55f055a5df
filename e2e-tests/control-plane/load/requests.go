package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// pauseBetween is the time between two requests of a connection that stays open.
const pauseBetween = 100 * time.Millisecond

// outcome is the time at which a request was sent, its error, and how long it took.
type outcome struct {
	sent time.Time
	err  error
	took time.Duration
}

// ended is the outcome of a request that ends now.
func ended(sent time.Time, err error) outcome { return outcome{sent, err, time.Since(sent)} }

// request looks the host up, connects, sends one request and reads its answer, all within the time limit.
func request(target string, timeout time.Duration) outcome {
	sent := time.Now()
	ctx, cancel := context.WithDeadline(context.Background(), sent.Add(timeout))
	defer cancel()
	connection, err := (&net.Dialer{Resolver: newResolver()}).DialContext(ctx, "tcp", target)
	if err != nil {
		return ended(sent, err)
	}
	defer connection.Close()
	return ended(sent, exchange(connection, bufio.NewReader(connection), target, "close", sent.Add(timeout)))
}

// newResolver returns a resolver for one look-up. A shared resolver lets requests wait for a look-up of the same name that
// was begun before, so that a query that is lost delays all of them.
func newResolver() *net.Resolver { return new(net.Resolver) }

// keepOpen sends requests through one connection until the context ends. A request that fails ends the connection, and
// the next request opens another one.
func keepOpen(ctx context.Context, target string, timeout, pause time.Duration, to *recorder) {
	var connection net.Conn
	var reader *bufio.Reader
	for ctx.Err() == nil {
		sent := time.Now()
		var err error
		if connection == nil {
			connection, err = net.DialTimeout("tcp", target, timeout)
			reader = bufio.NewReader(connection)
		}
		if err == nil {
			err = exchange(connection, reader, target, "keep-alive", sent.Add(timeout))
		}
		if err != nil && connection != nil {
			_ = connection.Close()
		}
		if err != nil {
			connection = nil
		}
		to.record(ended(sent, err))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	if connection != nil {
		_ = connection.Close()
	}
}

// exchange sends a request through a connection and reads the whole answer.
func exchange(connection net.Conn, reader *bufio.Reader, host, persistence string, deadline time.Time) error {
	if err := connection.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(connection, "GET /hostname HTTP/1.1\r\nHost: %s\r\nConnection: %s\r\n\r\n", host, persistence); err != nil {
		return err
	}
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		return err
	}
	return finish(answer)
}

// finish reads an answer to its end. Any status but 200 is an error.
func finish(answer *http.Response) error {
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// kind is a short name of an error, for counting.
func kind(err error) string {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case errors.As(err, &dns):
		return "look-up failed"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	// HTTP/2 has no type for the error of a connection that the server ends.
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), strings.Contains(err.Error(), "GOAWAY"):
		return "closed"
	default:
		return err.Error()
	}
}
