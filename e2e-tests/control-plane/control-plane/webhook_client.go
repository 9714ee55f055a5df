package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// webhookClientAuthority is the CA file for the certificate that the API server shows to a webhook.
const webhookClientAuthority = "webhook-client-ca.crt"

// writeWebhookClient generates an authority and a client certificate, and returns the configuration with which the API
// server shows the certificate to the webhook at this host and port. The plugins are those that call webhooks.
func writeWebhookClient(folder, hostAndPort string) (string, error) {
	file := func(name string) string { return filepath.Join(folder, name) }
	authority, err := newAuthority()
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file(webhookClientAuthority), authority.pem, 0o600); err != nil {
		return "", err
	}
	certificate, key := file("webhook-client.crt"), file("webhook-client.key")
	if err := authority.client(certificate, key); err != nil {
		return "", err
	}
	kubeconfig := file("webhooks.kubeconfig")
	user := object{"client-certificate": certificate, "client-key": key}
	err = writeJSON(kubeconfig, object{
		"apiVersion": "v1",
		"kind":       "Config",
		"users":      []object{{"name": hostAndPort, "user": user}},
	})
	if err != nil {
		return "", err
	}
	const version = "apiserver.config.k8s.io/v1"
	webhooks := object{"apiVersion": version, "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": kubeconfig}
	configuration := file("admission.json")
	return configuration, writeJSON(configuration, object{
		"apiVersion": version,
		"kind":       "AdmissionConfiguration",
		"plugins":    []object{{"name": "MutatingAdmissionWebhook", "configuration": webhooks}},
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
