package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// process is one of the programs of the control plane.
type process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// launch starts a program that logs to a file. When the program ends, it is sent to died.
func launch(program string, logs string, died chan<- *process, args ...string) (*process, error) {
	return launchIn(0, filepath.Base(program), nil, program, logs, died, args...)
}

// launchIn starts a program in new namespaces, with a name for messages and its log, and with a standard input.
func launchIn(namespaces uintptr, name string, stdin io.Reader, program, logs string, died chan<- *process, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(logs, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, log, log
	// The API server allocates most of what it uses: collecting half as often saves some of its time.
	p.cmd.Env = append([]string{"GOGC=200"}, os.Environ()...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		// A terminal sends Ctrl-C to the whole process group. Children in other groups are stopped in order.
		Setpgid:    true,
		Pdeathsig:  syscall.SIGKILL,
		Cloneflags: namespaces,
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
		died <- p
	}()
	return p, nil
}

// kill sends SIGKILL, because nothing that the program would still save is needed.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// terminate sends SIGTERM, and SIGKILL if the program needs longer than the kubelet allows.
func (p *process) terminate() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		p.kill()
	}
}

// failure returns how the program ended, with the end of its log.
func (p *process) failure() error {
	const most = 20
	text, _ := os.ReadFile(p.log)
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return fmt.Errorf("%s ended by itself: %s; the end of its log:\n%s", p.name, p.cmd.ProcessState, bytes.Join(lines, []byte("\n")))
}

// executable is the path of this program, which starts itself in several roles.
func executable() string {
	path, err := os.Executable()
	if err != nil {
		return "/proc/self/exe"
	}
	return path
}
