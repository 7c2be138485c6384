package main

import (
	"fmt"
	"strings"
	"time"

	"remora/cmd/remora/internal/flags"
	"remora/internal/dynamo/discovery/etcd"
	"remora/internal/dynamo/requestplane/natsplane"
)

// etcdSettings are the variables of etcd as they are read.
type etcdSettings struct {
	endpoints          string
	ttl                uint64 // seconds; 0: the default
	start              time.Duration
	username, password string
	ca, cert, key      string
}

// maxTTL is the longest lease that etcd grants, in seconds.
const maxTTL = 9_000_000_000

func (s *etcdSettings) variables() []flags.Variable {
	return []flags.Variable{
		{Name: "ETCD_ENDPOINTS", Default: "http://localhost:2379", Value: flags.Text(&s.endpoints), Help: "The members, separated by commas: http://host:port or https://host:port."},
		{Name: "ETCD_LEASE_TTL", Default: "10", Value: flags.Number(&s.ttl, 0, maxTTL), Help: "How long frontends believe in a worker that gives no sign of life, in seconds; 0 means 10."},
		{Name: "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", Default: "120", Value: seconds(&s.start, time.Millisecond), Help: "How long the start tries to reach etcd, in seconds."},
		{Name: "ETCD_AUTH_USERNAME", Value: flags.Text(&s.username), Help: "User name, together with ETCD_AUTH_PASSWORD."},
		{Name: "ETCD_AUTH_PASSWORD", Value: flags.Text(&s.password), Help: "The password."},
		{Name: "ETCD_AUTH_CA", Value: flags.Text(&s.ca), Help: "PEM file with the authorities that the members' certificates are checked against. Without it, the system's."},
		{Name: "ETCD_AUTH_CLIENT_CERT", Value: flags.Text(&s.cert), Help: "PEM file with the worker's own certificate, together with ETCD_AUTH_CLIENT_KEY."},
		{Name: "ETCD_AUTH_CLIENT_KEY", Value: flags.Text(&s.key), Help: "PEM file with its key."},
		{Name: "ETCD_KEEPALIVE_INTERVAL_SECONDS", Value: noEffect(), Help: "Taken and without effect, as is ETCD_KEEPALIVE_TIMEOUT_SECONDS: a connection that shows no life for 10 seconds is asked for one and given up after another 3."},
	}
}

func (s *etcdSettings) config() (etcd.Config, error) {
	c := etcd.Config{
		Endpoints: list(s.endpoints), TTL: time.Duration(s.ttl) * time.Second, StartTimeout: s.start,
		Username: s.username, Password: s.password, CAFile: s.ca, CertFile: s.cert, KeyFile: s.key,
	}
	if s.ttl == 0 {
		c.TTL = 10 * time.Second
	}
	if err := c.Check(); err != nil {
		return c, fmt.Errorf("%w (see ETCD_ENDPOINTS and ETCD_AUTH_*)", err)
	}
	return c, nil
}

// natsSettings are the variables of NATS as they are read.
type natsSettings struct {
	server             string
	start              time.Duration
	username, password string
	token, nkey, creds string
	ca, cert, key      string
	insecure           bool
}

func (s *natsSettings) variables() []flags.Variable {
	return []flags.Variable{
		{Name: "NATS_SERVER", Default: "nats://localhost:4222", Value: flags.Text(&s.server), Help: "The servers, separated by commas: nats://host:port, or tls://host:port."},
		{Name: "NATS_STARTUP_CONNECT_TIMEOUT_SECONDS", Default: "120", Value: seconds(&s.start, time.Millisecond), Help: "How long the start tries to reach a server, in seconds."},
		{Name: "NATS_AUTH_USERNAME", Value: flags.Text(&s.username), Help: "User name, together with NATS_AUTH_PASSWORD. Without any of NATS_AUTH_*, both are user, as with the Rust sidecar."},
		{Name: "NATS_AUTH_PASSWORD", Value: flags.Text(&s.password), Help: "The password."},
		{Name: "NATS_AUTH_TOKEN", Value: flags.Text(&s.token), Help: "Token, where there is no user name."},
		{Name: "NATS_AUTH_NKEY", Value: flags.Text(&s.nkey), Help: "Seed of an nkey, where there is neither."},
		{Name: "NATS_AUTH_CREDENTIALS_FILE", Value: flags.Text(&s.creds), Help: "File of credentials, where there is none of these."},
		{Name: "NATS_TLS_CA_CERT_PATH", Value: flags.Text(&s.ca), Help: "PEM file with the authorities that the server's certificate is checked against. Without it, the system's."},
		{Name: "NATS_TLS_CLIENT_CERT_PATH", Value: flags.Text(&s.cert), Help: "PEM file with the worker's own certificate, together with NATS_TLS_CLIENT_KEY_PATH."},
		{Name: "NATS_TLS_CLIENT_KEY_PATH", Value: flags.Text(&s.key), Help: "PEM file with its key."},
		{Name: "NATS_TLS_INSECURE", Default: "false", Value: flags.Truthy(&s.insecure), Help: "Whether the server's certificate is taken unseen."},
	}
}

func (s *natsSettings) config() (*natsplane.Config, error) {
	c := natsplane.Config{
		Servers: list(s.server), StartTimeout: s.start, Username: s.username, Password: s.password, Token: s.token, NKeySeed: s.nkey,
		CredentialsFile: s.creds, CAFile: s.ca, CertFile: s.cert, KeyFile: s.key, Insecure: s.insecure,
	}
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("%w (see NATS_SERVER, NATS_AUTH_* and NATS_TLS_*)", err)
	}
	return &c, nil
}

// list takes a text apart at its commas; blank parts are skipped.
func list(text string) []string {
	var parts []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}
