package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

const admissionVersion = "apiserver.config.k8s.io/v1"

// policiesPlugin is the configuration with which the API server reads ValidatingAdmissionPolicies from this folder.
func policiesPlugin(folder string) object {
	return plugin("ValidatingAdmissionPolicy", object{"kind": "ValidatingAdmissionPolicyConfiguration", "staticManifestsDir": folder})
}

func plugin(name string, configuration object) object {
	configuration["apiVersion"] = admissionVersion
	return object{"name": name, "configuration": configuration}
}

// writeAdmission writes the configuration of these plugins, and returns its file.
func writeAdmission(folder string, plugins []object) (string, error) {
	configuration := filepath.Join(folder, "admission.json")
	return configuration, writeJSON(configuration, object{
		"apiVersion": admissionVersion,
		"kind":       "AdmissionConfiguration",
		"plugins":    plugins,
	})
}

// writeJSON writes a JSON file, which is also YAML.
func writeJSON(file string, value object) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o600)
}
