package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// The images of the cluster contain one program each, which is static. Upstream's tests use pause and agnhost by these
// names, and agnhost by this version.
const (
	pauseImage   = "registry.k8s.io/pause:3.10.2"
	corednsImage = "registry.k8s.io/coredns/coredns:v1.14.1"
	agnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
)

// writeImages writes the archives of the cluster's own images, and returns these and the requested ones, in the order
// in which they are needed.
func (p *plane) writeImages() ([]string, error) {
	var archives []string
	for _, image := range [][2]string{{pauseImage, pauseName}, {corednsImage, corednsName}, {agnhostImage, agnhostName}} {
		archive := filepath.Join(p.folder, image[1]+".tar")
		if err := writeImage(archive, image[0], p.program(image[1])); err != nil {
			return nil, fmt.Errorf("image %s: %w", image[0], err)
		}
		archives = append(archives, archive)
	}
	return append(archives, p.options.images...), nil
}

// runImage is the role that writes an archive of an image for tests: its arguments are the name of the image, the
// archive and the program, which is added with the shared libraries of this machine that it needs.
func runImage(args []string) error {
	if len(args) != 3 {
		return errors.New("expected the name of an image, an archive and a program")
	}
	output, err := exec.Command("ldd", args[2]).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", args[2], err)
	}
	var libraries []string
	for _, word := range strings.Fields(string(output)) {
		if strings.HasPrefix(word, "/") {
			libraries = append(libraries, word)
		}
	}
	return writeImage(args[1], args[0], args[2], libraries...)
}

// writeImage writes an archive of an OCI image with this name, which runs a program. The libraries keep their paths.
func writeImage(archive, name, program string, libraries ...string) error {
	path := "/" + filepath.Base(program)
	contents := []tarFile{{name: path[1:], mode: 0o755, source: program}}
	for _, library := range libraries {
		contents = append(contents, tarFile{name: library[1:], mode: 0o755, source: library})
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
		"config":       object{"Entrypoint": []string{path}, "Env": []string{"PATH=/"}},
		"rootfs":       object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	})
	manifest := blob("manifest.v1+json", object{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.manifest.v1+json",
		"config":        configuration,
		"layers":        []object{layer},
	})
	manifest["annotations"] = object{"io.containerd.image.name": name}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": []object{manifest}})
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
