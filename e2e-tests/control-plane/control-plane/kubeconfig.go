package main

type object map[string]any

// writeKubeconfig writes a kubeconfig for the API server, with this token.
func writeKubeconfig(file, server string, authority []byte, user, token string) error {
	return writeJSON(file, object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"clusters":        []object{{"name": "control-plane", "cluster": object{"server": server, "certificate-authority-data": authority}}},
		"users":           []object{{"name": user, "user": object{"token": token}}},
		"contexts":        []object{{"name": "control-plane", "context": object{"cluster": "control-plane", "user": user}}},
		"current-context": "control-plane",
	})
}
