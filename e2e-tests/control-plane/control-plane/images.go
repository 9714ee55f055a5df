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
	var contained []tarFile
	for _, source := range append([]string{program}, libraries...) {
		text, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		target := source
		if source == program {
			target = path
		}
		contained = append(contained, tarFile{name: target[1:], mode: 0o755, text: text})
	}
	var layer bytes.Buffer
	if err := writeTar(&layer, contained); err != nil {
		return err
	}
	files := []tarFile{{name: "oci-layout", mode: 0o644, text: []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	// blob adds a file with this text, and returns its descriptor.
	blob := func(mediaType string, text []byte) object {
		digest := fmt.Sprintf("%x", sha256.Sum256(text))
		files = append(files, tarFile{name: "blobs/sha256/" + digest, mode: 0o644, text: text})
		return object{"mediaType": "application/vnd.oci.image." + mediaType, "digest": "sha256:" + digest, "size": len(text)}
	}
	descriptor := func(mediaType string, value object) object {
		text, _ := json.Marshal(value)
		return blob(mediaType, text)
	}
	contents := blob("layer.v1.tar", layer.Bytes())
	configuration := descriptor("config.v1+json", object{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       object{"Entrypoint": []string{path}, "Env": []string{"PATH=/"}},
		"rootfs":       object{"type": "layers", "diff_ids": []any{contents["digest"]}},
	})
	manifest := descriptor("manifest.v1+json", object{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.manifest.v1+json",
		"config":        configuration,
		"layers":        []object{contents},
	})
	manifest["annotations"] = object{"io.containerd.image.name": name}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": []object{manifest}})
	if err != nil {
		return err
	}
	files = append(files, tarFile{name: "index.json", mode: 0o644, text: index})
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	return writeTar(file, files)
}

type tarFile struct {
	name string
	mode int64
	text []byte
}

func writeTar(to io.Writer, files []tarFile) error {
	writer := tar.NewWriter(to)
	for _, file := range files {
		if err := writer.WriteHeader(&tar.Header{Name: file.name, Mode: file.mode, Size: int64(len(file.text))}); err != nil {
			return err
		}
		if _, err := writer.Write(file.text); err != nil {
			return err
		}
	}
	return writer.Close()
}
