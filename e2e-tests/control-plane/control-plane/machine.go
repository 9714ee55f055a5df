package main

import (
	"encoding/json"
	"io"
)

// describe prints a line of JSON with the addresses and files of the control plane, and the names and addresses of its
// nodes.
func describe(to io.Writer, p *plane) error {
	nodes := map[string]string{}
	for _, node := range p.nodes {
		nodes[node.name] = node.address
	}
	return json.NewEncoder(to).Encode(struct {
		Server               string            `json:"server"`
		Etcd                 string            `json:"etcd"`
		Version              string            `json:"version"`
		Kubeconfig           string            `json:"kubeconfig"`
		CertificateAuthority string            `json:"certificateAuthority"`
		AdminToken           string            `json:"adminToken"`
		Kubectl              string            `json:"kubectl"`
		Folder               string            `json:"folder"`
		Nodes                map[string]string `json:"nodes,omitempty"`
	}{p.server, p.etcdClient, p.version, p.kubeconfig(), p.credentials.authorityFile(), p.credentials.adminToken, p.program(kubectlName), p.folder, nodes})
}

// answer prints a line of JSON with the result of a command.
func answer(to io.Writer, command string, err error) error {
	line := struct {
		Command string `json:"command"`
		Error   string `json:"error,omitempty"`
	}{Command: command}
	if err != nil {
		line.Error = err.Error()
	}
	return json.NewEncoder(to).Encode(line)
}
