package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// forward connects each client of the listener with the address in another network namespace.
func forward(listener net.Listener, network *os.File, address string) {
	// Only this thread is in the other namespace. It ends with the goroutine, because it stays locked. The listener
	// belongs to the namespace in which it was made.
	runtime.LockOSThread()
	if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
		fmt.Fprintln(os.Stderr, "control-plane: enter the network of the cluster:", err)
		return
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", address)
		if err != nil {
			// The API server is not running, which a client sees as a closed connection.
			_ = client.Close()
			continue
		}
		go copyAndClose(server.(*net.TCPConn), client.(*net.TCPConn))
		go copyAndClose(client.(*net.TCPConn), server.(*net.TCPConn))
	}
}

// copyAndClose copies until the end of one direction of a connection, and closes that direction.
func copyAndClose(to, from *net.TCPConn) {
	_, _ = io.Copy(to, from)
	_ = to.CloseWrite()
	_ = from.CloseRead()
}
