package main

import (
	"os"
	"path/filepath"
)

// webhookClientAuthority is the CA file for the certificate that the API server shows to a webhook.
const webhookClientAuthority = "webhook-client-ca.crt"

// webhookClientPlugin generates an authority and a client certificate, and returns the configuration with which the API
// server shows the certificate to the webhook at this host and port.
func webhookClientPlugin(folder, hostAndPort string) (object, error) {
	file := func(name string) string { return filepath.Join(folder, name) }
	authority, err := newAuthority()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file(webhookClientAuthority), authority.pem, 0o600); err != nil {
		return nil, err
	}
	certificate, key := file("webhook-client.crt"), file("webhook-client.key")
	if err := authority.client(certificate, key); err != nil {
		return nil, err
	}
	kubeconfig := file("webhooks.kubeconfig")
	user := object{"client-certificate": certificate, "client-key": key}
	err = writeJSON(kubeconfig, object{
		"apiVersion": "v1",
		"kind":       "Config",
		"users":      []object{{"name": hostAndPort, "user": user}},
	})
	if err != nil {
		return nil, err
	}
	return plugin("MutatingAdmissionWebhook", object{"kind": "WebhookAdmissionConfiguration", "kubeConfigFile": kubeconfig}), nil
}
