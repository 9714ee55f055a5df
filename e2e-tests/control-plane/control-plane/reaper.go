package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// reaper is the process that removes what a cluster leaves. It begins when the pipe to it closes.
type reaper struct {
	command *exec.Cmd
	pipe    io.WriteCloser
}

func startReaper(folder string, lock *os.File, cgroup string) (*reaper, error) {
	command := exec.Command(executable(), reaperRole, folder, cgroup)
	command.Stderr = os.Stderr
	if lock != nil {
		// Another cluster may use the folder only after it was removed.
		command.ExtraFiles = []*os.File{lock}
	}
	// A signal to the process group or to the terminal is not for the reaper.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the reaper: %w", err)
	}
	return &reaper{command, pipe}, nil
}

// waitsFor names the process whose end the reaper waits for.
func (r *reaper) waitsFor(pid int) error {
	_, err := fmt.Fprintln(r.pipe, pid)
	return err
}

// finish returns when everything is removed.
func (r *reaper) finish() {
	_ = r.pipe.Close()
	_ = r.command.Wait()
}

// runReaper reads the ID of the cluster's first process. When the pipe closes, it waits for the end of this process,
// which the kernel kills, and removes the cgroup and the folder.
func runReaper(args []string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	folder, cgroup := args[0], args[1]
	deadline := time.Now().Add(patience)
	for {
		err := errors.New("processes of the cluster are still running")
		if ended(strings.TrimSpace(string(text))) {
			err = errors.Join(removeCgroup(cgroup), os.RemoveAll(folder))
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// ended reports whether this process has ended, even if its parent has not waited for it yet.
func ended(pid string) bool {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if pid == "" || err != nil {
		return true
	}
	// The state follows the name, which is in parentheses.
	_, state, _ := bytes.Cut(text, []byte(") "))
	return bytes.HasPrefix(state, []byte("Z"))
}
