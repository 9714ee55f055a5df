package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// lifetime of all certificates, longer than any test or trial.
const lifetime = 7 * 24 * time.Hour

// authority signs the certificate of the API server.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	pem         []byte
}

func newAuthority() (*authority, error) {
	template, err := unsigned("control-plane")
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{certificate, key, encode("CERTIFICATE", der)}, nil
}

// serving writes a certificate for a server with these names and addresses, and its key.
func (a *authority) serving(certificateFile, keyFile string, names []string, addresses []net.IP) error {
	template, err := unsigned("kube-apiserver")
	if err != nil {
		return err
	}
	template.DNSNames, template.IPAddresses = names, addresses
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return a.issue(template, certificateFile, keyFile)
}

// client writes a certificate for a client, and its key.
func (a *authority) client(certificateFile, keyFile string) error {
	template, err := unsigned(apiName)
	if err != nil {
		return err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template, certificateFile, keyFile)
}

func (a *authority) issue(template *x509.Certificate, certificateFile, keyFile string) error {
	template.KeyUsage = x509.KeyUsageDigitalSignature
	key, err := writeKey(keyFile)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return err
	}
	return os.WriteFile(certificateFile, encode("CERTIFICATE", der), 0o600)
}

// writeKey generates a key and writes it. The API server signs and verifies service account tokens with such a key.
func writeKey(file string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(file, encode("EC PRIVATE KEY", der), 0o600)
}

func unsigned(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(lifetime),
	}, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// credentials are the files with which the programs are started.
type credentials struct {
	folder     string
	authority  *authority
	adminToken string
	// The tokens of the other programs, which are not administrators, by the names of their users.
	tokens map[string]string
	// The addresses that the certificate of the API server names.
	addresses []net.IP
}

// newCredentials writes the credentials of a cluster with this number of API servers and these nodes.
func newCredentials(folder string, serviceRange string, apiServers int, nodes []string) (*credentials, error) {
	first, err := serviceAddress(serviceRange, 1)
	if err != nil {
		return nil, err
	}
	authority, err := newAuthority()
	if err != nil {
		return nil, err
	}
	addresses := []net.IP{net.IPv4(127, 0, 0, 1), first}
	for nth := 1; nth <= apiServers; nth++ {
		addresses = append(addresses, net.ParseIP(nodeAddress(nth)))
	}
	c := &credentials{folder, authority, rand.Text(), map[string]string{}, addresses}
	if err := os.WriteFile(c.authorityFile(), authority.pem, 0o600); err != nil {
		return nil, err
	}
	if err := c.writeServing(); err != nil {
		return nil, err
	}
	if err := authority.client(c.kubeletClientFile(), c.kubeletClientKeyFile()); err != nil {
		return nil, err
	}
	if _, err := writeKey(c.serviceAccountKeyFile()); err != nil {
		return nil, err
	}
	lines := fmt.Sprintf("%s,admin,admin,system:masters\n", c.adminToken)
	add := func(user, group string) {
		c.tokens[user] = rand.Text()
		lines += fmt.Sprintf("%s,%s,%s,%s\n", c.tokens[user], user, user, group)
	}
	for _, user := range []string{managerUser, schedulerUser, proxyUser} {
		add(user, "")
	}
	for _, node := range nodes {
		add(nodeUser(node), "system:nodes")
	}
	return c, os.WriteFile(c.tokensFile(), []byte(lines), 0o600)
}

// writeServing writes the certificate of the API server.
func (c *credentials) writeServing() error {
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	return c.authority.serving(c.servingFile(), c.servingKeyFile(), names, c.addresses)
}

// serveAlsoFor makes the certificate of the API server name the first address of another range, too.
func (c *credentials) serveAlsoFor(serviceRange string) error {
	first, err := serviceAddress(serviceRange, 1)
	if err != nil {
		return err
	}
	c.addresses = append(c.addresses, first)
	return c.writeServing()
}

// The users of the programs. Kubernetes has roles for them.
const (
	managerUser   = "system:kube-controller-manager"
	schedulerUser = "system:kube-scheduler"
	proxyUser     = "system:kube-proxy"
)

func nodeUser(node string) string { return "system:node:" + node }

func (c *credentials) authorityFile() string  { return filepath.Join(c.folder, "ca.crt") }
func (c *credentials) servingFile() string    { return filepath.Join(c.folder, "kube-apiserver.crt") }
func (c *credentials) servingKeyFile() string { return filepath.Join(c.folder, "kube-apiserver.key") }
func (c *credentials) serviceAccountKeyFile() string {
	return filepath.Join(c.folder, "service-accounts.key")
}
func (c *credentials) tokensFile() string { return filepath.Join(c.folder, "tokens.csv") }
func (c *credentials) kubeletClientFile() string {
	return filepath.Join(c.folder, "kubelet-client.crt")
}
func (c *credentials) kubeletClientKeyFile() string {
	return filepath.Join(c.folder, "kubelet-client.key")
}

// serviceAddress is the nth address of the primary range. The first one is that of default/kubernetes.
func serviceAddress(serviceRange string, nth byte) (net.IP, error) {
	primary, _, _ := strings.Cut(serviceRange, ",")
	_, network, err := net.ParseCIDR(primary)
	if err != nil {
		return nil, fmt.Errorf("-service-cluster-ip-range: %w", err)
	}
	address := network.IP
	address[len(address)-1] += nth
	return address, nil
}
