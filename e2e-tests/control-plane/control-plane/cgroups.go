package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// cgroupPrefix is followed by the ID of the process that runs the cluster.
const cgroupPrefix = "clusterip-cluster-"

// cgroupHierarchies are the folders in which a cgroup can be: one for each controller of version 1, and version 2.
func cgroupHierarchies() []string {
	controllers, _ := filepath.Glob("/sys/fs/cgroup/*")
	return append(controllers, "/sys/fs/cgroup")
}

// makeCgroup makes a cgroup, and those above it, in every hierarchy. The name does not begin with a slash.
func makeCgroup(name string) error {
	for _, hierarchy := range cgroupHierarchies() {
		if _, err := os.Stat(filepath.Join(hierarchy, "cgroup.procs")); err != nil {
			continue
		}
		if err := os.MkdirAll(filepath.Join(hierarchy, name), 0o755); err != nil {
			return err
		}
		// In version 2, controllers work below a cgroup only if that says so. Not every machine has all of them.
		folder := hierarchy
		for _, next := range strings.Split(name, "/") {
			for _, controller := range []string{"cpu", "cpuset", "io", "memory", "pids"} {
				_ = os.WriteFile(filepath.Join(folder, "cgroup.subtree_control"), []byte("+"+controller), 0)
			}
			folder = filepath.Join(folder, next)
		}
	}
	return nil
}

// removeCgroup removes a cgroup, and those below it, from every hierarchy.
func removeCgroup(name string) error {
	var failed error
	for _, hierarchy := range cgroupHierarchies() {
		var folders []string
		_ = filepath.WalkDir(filepath.Join(hierarchy, name), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				folders = append(folders, path)
			}
			return nil
		})
		for i := len(folders) - 1; i >= 0; i-- {
			if err := syscall.Rmdir(folders[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = fmt.Errorf("remove %s: %w", folders[i], err)
			}
		}
	}
	return failed
}

// removeAbandonedCgroups removes the cgroups of clusters whose process and reaper were killed.
func removeAbandonedCgroups() {
	for _, hierarchy := range cgroupHierarchies() {
		folders, _ := filepath.Glob(filepath.Join(hierarchy, cgroupPrefix+"*"))
		for _, folder := range folders {
			name := filepath.Base(folder)
			pid, err := strconv.Atoi(strings.TrimPrefix(name, cgroupPrefix))
			if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				_ = removeCgroup(name)
			}
		}
	}
}
