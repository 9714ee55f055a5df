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
	template, err := unsigned("kube-apiserver")
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
	// The token of the controller manager, which is not an administrator.
	managerToken string
}

func newCredentials(folder string, serviceRange string) (*credentials, error) {
	first, err := firstAddress(serviceRange)
	if err != nil {
		return nil, err
	}
	authority, err := newAuthority()
	if err != nil {
		return nil, err
	}
	c := &credentials{folder, authority, rand.Text(), rand.Text()}
	if err := os.WriteFile(c.authorityFile(), authority.pem, 0o600); err != nil {
		return nil, err
	}
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	if err := authority.serving(c.servingFile(), c.servingKeyFile(), names, []net.IP{net.IPv4(127, 0, 0, 1), first}); err != nil {
		return nil, err
	}
	if _, err := writeKey(c.serviceAccountKeyFile()); err != nil {
		return nil, err
	}
	tokens := fmt.Sprintf("%s,admin,admin,system:masters\n%s,system:kube-controller-manager,system:kube-controller-manager\n", c.adminToken, c.managerToken)
	return c, os.WriteFile(c.tokensFile(), []byte(tokens), 0o600)
}

func (c *credentials) authorityFile() string  { return filepath.Join(c.folder, "ca.crt") }
func (c *credentials) servingFile() string    { return filepath.Join(c.folder, "kube-apiserver.crt") }
func (c *credentials) servingKeyFile() string { return filepath.Join(c.folder, "kube-apiserver.key") }
func (c *credentials) serviceAccountKeyFile() string {
	return filepath.Join(c.folder, "service-accounts.key")
}
func (c *credentials) tokensFile() string { return filepath.Join(c.folder, "tokens.csv") }

// firstAddress is the address of default/kubernetes, the first one of the primary range.
func firstAddress(serviceRange string) (net.IP, error) {
	primary, _, _ := strings.Cut(serviceRange, ",")
	_, network, err := net.ParseCIDR(primary)
	if err != nil {
		return nil, fmt.Errorf("-service-cluster-ip-range: %w", err)
	}
	first := network.IP
	first[len(first)-1]++
	return first, nil
}
