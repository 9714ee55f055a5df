package main

import (
	"encoding/json"
	"os"
)

type object map[string]any

// writeKubeconfig writes the way to the API server for whoever has this token. JSON is YAML too.
func writeKubeconfig(file, server string, authority []byte, user, token string) error {
	text, err := json.MarshalIndent(object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"clusters":        []object{{"name": "control-plane", "cluster": object{"server": server, "certificate-authority-data": authority}}},
		"users":           []object{{"name": user, "user": object{"token": token}}},
		"contexts":        []object{{"name": "control-plane", "context": object{"cluster": "control-plane", "user": user}}},
		"current-context": "control-plane",
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o600)
}
