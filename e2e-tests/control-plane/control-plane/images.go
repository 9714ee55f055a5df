package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// The names of the images of the cluster. Upstream's tests use pause and agnhost by these names, and agnhost by this
// version.
const (
	pauseImage   = "registry.k8s.io/pause:3.10.2"
	corednsImage = "registry.k8s.io/coredns/coredns:v1.14.1"
	agnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
)

// notRoot is the user of released images. Pods with `runAsNonRoot` may leave the choice of a user to their image.
const notRoot = "65532:65532"

// image is what an image contains: programs in /, of which it runs the first with these arguments, further programs of
// this machine in /bin, and further files of this machine, which keep their paths. Without a user, it runs as root.
type image struct {
	names     []string
	programs  []string
	arguments []string
	user      string
	tools     []string
	files     []string
}

// agnhost is the image in which Kubernetes' own tests execute commands and run a DNS server. Some of their Pods have
// images of other names, which need no other programs.
func (p *plane) agnhost() image {
	return image{
		names: []string{
			agnhostImage,
			"registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0",
			"registry.k8s.io/e2e-test-images/nginx:1.15-4",
		},
		programs:  []string{p.program(agnhostName), p.program(corednsName)},
		arguments: []string{"pause"},
		tools: []string{
			"cat", "curl", "dig", "false", "getent", "grep", "hostname", "nc", "nslookup", "seq", "sh", "sleep", "ss", "tail",
			"wget",
		},
	}
}

// writeImages writes the archives of the cluster's own images, and returns these and the requested ones, in the order
// in which they are needed.
func (p *plane) writeImages() ([]string, error) {
	var archives []string
	for _, image := range []image{
		{names: []string{pauseImage}, programs: []string{p.program(pauseName)}},
		{names: []string{corednsImage}, programs: []string{p.program(corednsName)}},
		p.agnhost(),
	} {
		archive := filepath.Join(p.folder, filepath.Base(image.programs[0])+".tar")
		if err := image.write(archive); err != nil {
			return nil, fmt.Errorf("image %s: %w", image.names[0], err)
		}
		archives = append(archives, archive)
	}
	return append(archives, p.options.images...), nil
}

// runImage is the role that writes an archive of an image for tests: its arguments are the name of the image, the
// archive, the program and further files.
func runImage(args []string) error {
	if len(args) < 3 {
		return errors.New("expected the name of an image, an archive and a program, and optionally further files")
	}
	return image{names: args[:1], programs: args[2:3], user: notRoot, files: args[3:]}.write(args[1])
}

// contents are the programs, and the shared libraries of this machine that they need, which keep their paths.
func (i image) contents() ([]tarFile, error) {
	programs := slices.Clone(i.programs)
	var files []tarFile
	for _, program := range programs {
		files = append(files, tarFile{name: filepath.Base(program), mode: 0o755, source: program})
	}
	for _, name := range i.tools {
		program, err := exec.LookPath(name)
		if err != nil {
			return nil, err
		}
		files = append(files, tarFile{name: "bin/" + name, mode: 0o755, source: program})
		programs = append(programs, program)
	}
	libraries, err := librariesOf(programs)
	if err != nil {
		return nil, err
	}
	for _, library := range libraries {
		files = append(files, tarFile{name: library[1:], mode: 0o755, source: library})
	}
	for _, file := range i.files {
		files = append(files, tarFile{name: file[1:], mode: 0o644, source: file})
	}
	return files, nil
}

// librariesOf returns the paths of the shared libraries that these programs need.
func librariesOf(programs []string) ([]string, error) {
	var libraries []string
	for _, program := range programs {
		output, err := exec.Command("ldd", program).CombinedOutput()
		if bytes.Contains(output, []byte("not a dynamic executable")) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ldd %s: %w: %s", program, err, bytes.TrimSpace(output))
		}
		for _, word := range strings.Fields(string(output)) {
			if strings.HasPrefix(word, "/") {
				libraries = append(libraries, word)
			}
		}
	}
	slices.Sort(libraries)
	return slices.Compact(libraries), nil
}

// write writes an archive of this image in the format of OCI.
func (i image) write(archive string) error {
	contents, err := i.contents()
	if err != nil {
		return err
	}
	layerFile := archive + ".layer"
	defer os.Remove(layerFile)
	if err := writeTar(layerFile, contents); err != nil {
		return err
	}
	digest, size, err := digestOf(layerFile)
	if err != nil {
		return err
	}
	layer := descriptor("layer.v1.tar", digest, size)
	files := []tarFile{
		{name: "oci-layout", mode: 0o644, text: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: blobs + digest, mode: 0o644, source: layerFile},
	}
	// blob adds a file with this value, and returns its descriptor.
	blob := func(mediaType string, value object) object {
		text, _ := json.Marshal(value)
		digest := fmt.Sprintf("%x", sha256.Sum256(text))
		files = append(files, tarFile{name: blobs + digest, mode: 0o644, text: text})
		return descriptor(mediaType, digest, int64(len(text)))
	}
	configuration := blob("config.v1+json", object{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config": object{
			"Entrypoint": []string{"/" + filepath.Base(i.programs[0])},
			"Cmd":        i.arguments,
			"User":       i.user,
			"Env":        []string{"PATH=/bin:/"},
		},
		"rootfs": object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	})
	manifest := blob("manifest.v1+json", object{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.manifest.v1+json",
		"config":        configuration,
		"layers":        []object{layer},
	})
	var manifests []object
	for _, name := range i.names {
		named := maps.Clone(manifest)
		named["annotations"] = object{"io.containerd.image.name": name}
		manifests = append(manifests, named)
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": manifests})
	if err != nil {
		return err
	}
	return writeTar(archive, append(files, tarFile{name: "index.json", mode: 0o644, text: index}))
}

// blobs is the folder of an image's parts in its archive, which are named after their digests.
const blobs = "blobs/sha256/"

func descriptor(mediaType, digest string, size int64) object {
	return object{"mediaType": "application/vnd.oci.image." + mediaType, "digest": "sha256:" + digest, "size": size}
}

func digestOf(path string) (digest string, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	hash := sha256.New()
	size, err = io.Copy(hash, file)
	return fmt.Sprintf("%x", hash.Sum(nil)), size, err
}

// tarFile is a file in a tar archive, with a text or with the contents of another file.
type tarFile struct {
	name   string
	mode   int64
	text   []byte
	source string
}

func writeTar(archive string, files []tarFile) error {
	to, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer to.Close()
	writer := tar.NewWriter(to)
	for _, file := range files {
		if err := file.write(writer); err != nil {
			return err
		}
	}
	return writer.Close()
}

func (f tarFile) write(to *tar.Writer) error {
	var from io.Reader = bytes.NewReader(f.text)
	size := int64(len(f.text))
	if f.source != "" {
		file, err := os.Open(f.source)
		if err != nil {
			return err
		}
		defer file.Close()
		about, err := file.Stat()
		if err != nil {
			return err
		}
		from, size = file, about.Size()
	}
	if err := to.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: size}); err != nil {
		return err
	}
	_, err := io.Copy(to, from)
	return err
}
