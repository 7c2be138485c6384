package main

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"remora/internal/dynamo/discovery/etcd"
	"remora/internal/dynamo/requestplane/natsplane"
)

// serviceArgs turn both services on.
var serviceArgs = []string{"--grpc-endpoint=127.0.0.1:50051", "--discovery-backend=etcd", "--request-plane=nats"}

func baseEtcd() discoveryConfig {
	return discoveryConfig{Backend: discoverEtcd, Etcd: etcd.Config{
		Endpoints: []string{"http://localhost:2379"}, TTL: 10 * time.Second, StartTimeout: 2 * time.Minute,
	}}
}

func baseNATS() *natsplane.Config {
	return &natsplane.Config{Servers: []string{"nats://localhost:4222"}, StartTimeout: 2 * time.Minute}
}

// serviceCases are the variables of etcd and NATS: with others that they need, and what they change.
var serviceCases = []struct {
	env, value string
	with       environment
	etcd       func(*etcd.Config)
	nats       func(*natsplane.Config)
}{
	{env: "ETCD_ENDPOINTS", value: "http://a:1, b:2,,https://[::1]:3/", etcd: func(c *etcd.Config) { c.Endpoints = []string{"http://a:1", "b:2", "https://[::1]:3/"} }},
	{env: "ETCD_LEASE_TTL", value: "30", etcd: func(c *etcd.Config) { c.TTL = 30 * time.Second }},
	{env: "ETCD_LEASE_TTL", value: "0"},
	{env: "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", value: "1.5", etcd: func(c *etcd.Config) { c.StartTimeout = 1500 * time.Millisecond }},
	{env: "ETCD_AUTH_USERNAME", value: "u", with: environment{"ETCD_AUTH_PASSWORD": "p"}, etcd: func(c *etcd.Config) { c.Username, c.Password = "u", "p" }},
	{env: "ETCD_AUTH_PASSWORD", value: "p", with: environment{"ETCD_AUTH_USERNAME": "u"}, etcd: func(c *etcd.Config) { c.Username, c.Password = "u", "p" }},
	{env: "ETCD_AUTH_CA", value: "/ca", with: environment{"ETCD_ENDPOINTS": "a:1"}, etcd: func(c *etcd.Config) { c.Endpoints, c.CAFile = []string{"a:1"}, "/ca" }},
	{env: "ETCD_AUTH_CLIENT_CERT", value: "/c", with: environment{"ETCD_AUTH_CLIENT_KEY": "/k", "ETCD_ENDPOINTS": "https://a:1"}, etcd: func(c *etcd.Config) {
		c.Endpoints, c.CertFile, c.KeyFile = []string{"https://a:1"}, "/c", "/k"
	}},
	{env: "ETCD_AUTH_CLIENT_KEY", value: "/k", with: environment{"ETCD_AUTH_CLIENT_CERT": "/c", "ETCD_ENDPOINTS": "https://a:1"}, etcd: func(c *etcd.Config) {
		c.Endpoints, c.CertFile, c.KeyFile = []string{"https://a:1"}, "/c", "/k"
	}},
	{env: "ETCD_KEEPALIVE_INTERVAL_SECONDS", value: "3"},
	{env: "NATS_SERVER", value: "nats://u:p@a:1, tls://b", nats: func(c *natsplane.Config) { c.Servers = []string{"nats://u:p@a:1", "tls://b"} }},
	{env: "NATS_STARTUP_CONNECT_TIMEOUT_SECONDS", value: "7", nats: func(c *natsplane.Config) { c.StartTimeout = 7 * time.Second }},
	{env: "NATS_AUTH_USERNAME", value: "u", with: environment{"NATS_AUTH_PASSWORD": "p"}, nats: func(c *natsplane.Config) { c.Username, c.Password = "u", "p" }},
	{env: "NATS_AUTH_PASSWORD", value: "p", with: environment{"NATS_AUTH_USERNAME": "u"}, nats: func(c *natsplane.Config) { c.Username, c.Password = "u", "p" }},
	{env: "NATS_AUTH_TOKEN", value: "t", nats: func(c *natsplane.Config) { c.Token = "t" }},
	{env: "NATS_AUTH_NKEY", value: "s", nats: func(c *natsplane.Config) { c.NKeySeed = "s" }},
	{env: "NATS_AUTH_CREDENTIALS_FILE", value: "/f", nats: func(c *natsplane.Config) { c.CredentialsFile = "/f" }},
	{env: "NATS_TLS_CA_CERT_PATH", value: "/ca", with: environment{"NATS_SERVER": "tls://a:1"}, nats: func(c *natsplane.Config) { c.Servers, c.CAFile = []string{"tls://a:1"}, "/ca" }},
	{env: "NATS_TLS_CLIENT_CERT_PATH", value: "/c", with: environment{"NATS_SERVER": "tls://a:1", "NATS_TLS_CLIENT_KEY_PATH": "/k"}, nats: func(c *natsplane.Config) {
		c.Servers, c.CertFile, c.KeyFile = []string{"tls://a:1"}, "/c", "/k"
	}},
	{env: "NATS_TLS_CLIENT_KEY_PATH", value: "/k", with: environment{"NATS_SERVER": "tls://a:1", "NATS_TLS_CLIENT_CERT_PATH": "/c"}, nats: func(c *natsplane.Config) {
		c.Servers, c.CertFile, c.KeyFile = []string{"tls://a:1"}, "/c", "/k"
	}},
	{env: "NATS_TLS_INSECURE", value: "yes", with: environment{"NATS_SERVER": "tls://a:1"}, nats: func(c *natsplane.Config) { c.Servers, c.Insecure = []string{"tls://a:1"}, true }},
}

func TestServiceSettings(t *testing.T) {
	for _, c := range serviceCases {
		t.Run(c.env+"="+c.value, func(t *testing.T) {
			env := environment{c.env: c.value}
			maps.Copy(env, c.with)
			want := baseConfig()
			want.Discovery, want.RequestPlane.NATS = baseEtcd(), baseNATS()
			if c.etcd != nil {
				c.etcd(&want.Discovery.Etcd)
			}
			if c.nats != nil {
				c.nats(want.RequestPlane.NATS)
			}
			got, err := parseSidecar(serviceArgs, env.lookup)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// TestBadServiceSettings wants the variables named, and no password shown.
func TestBadServiceSettings(t *testing.T) {
	for _, c := range []struct {
		env  environment
		want string
	}{
		{environment{"ETCD_ENDPOINTS": ","}, "no endpoint is given (see ETCD_ENDPOINTS"},
		{environment{"ETCD_ENDPOINTS": "http://a"}, `endpoint "http://a" is not of the form http://host:port`},
		{environment{"ETCD_ENDPOINTS": "ftp://a:1"}, "must be http or https"},
		{environment{"ETCD_ENDPOINTS": "http://a:1/v3"}, "is not of the form"},
		{environment{"ETCD_ENDPOINTS": "http://u:p@a:1"}, "is not of the form"},
		{environment{"ETCD_ENDPOINTS": "http://a:x"}, "is not of the form"},
		{environment{"ETCD_AUTH_USERNAME": "u"}, "a user name and a password belong together (see ETCD_ENDPOINTS and ETCD_AUTH_*)"},
		{environment{"ETCD_AUTH_CA": "/ca"}, `endpoint "http://localhost:2379" is http, but certificates are given: make it https`},
		{environment{"ETCD_AUTH_CLIENT_CERT": "/c", "ETCD_ENDPOINTS": "https://a:1"}, "belong together"},
		{environment{"ETCD_LEASE_TTL": "soon"}, "ETCD_LEASE_TTL"},
		{environment{"ETCD_LEASE_TTL": "9000000001"}, "ETCD_LEASE_TTL"},
		{environment{"ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS": "0"}, "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS"},
		{environment{"NATS_SERVER": ","}, "no server is given (see NATS_SERVER"},
		{environment{"NATS_SERVER": "a:4222"}, "NATS settings: server"},
		{environment{"NATS_SERVER": "ws://a:4222"}, "must start with nats:// or tls://"},
		{environment{"NATS_SERVER": "nats://u:secret@a:1/x"}, "nats://u:xxxxx@a:1/x"},
		{environment{"NATS_AUTH_PASSWORD": "p"}, "belong together (see NATS_SERVER, NATS_AUTH_* and NATS_TLS_*)"},
		{environment{"NATS_TLS_INSECURE": "true"}, "is nats://, but TLS settings are given: make it tls://"},
		{environment{"NATS_TLS_INSECURE": "perhaps"}, "NATS_TLS_INSECURE"},
		{environment{"NATS_TLS_CLIENT_KEY_PATH": "/k", "NATS_SERVER": "tls://a:1"}, "a client certificate and its key belong together"},
		{environment{"NATS_STARTUP_CONNECT_TIMEOUT_SECONDS": "-1"}, "NATS_STARTUP_CONNECT_TIMEOUT_SECONDS"},
	} {
		_, err := parseSidecar(serviceArgs, c.env.lookup)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: got %v, want %q", c.env, err, c.want)
		}
	}
}

// TestServicesAway starts without flags where nothing listens: one last line says what to set.
func TestServicesAway(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  environment
		want []string
	}{
		{
			[]string{"sidecar", "--grpc-endpoint=a:1"},
			environment{"ETCD_ENDPOINTS": "http://127.0.0.1:1", "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS": "0.001"},
			[]string{
				"remora sidecar: etcd can't be reached at http://127.0.0.1:1 within 1ms: ", "connection refused",
				"set ETCD_ENDPOINTS and ETCD_AUTH_* to a running etcd, or --discovery-backend file with DYN_FILE_KV",
			},
		},
		{
			[]string{"sidecar", "--grpc-endpoint=a:1", "--discovery-backend=mem", "--request-plane=nats"},
			environment{"NATS_SERVER": "nats://127.0.0.1:1", "NATS_STARTUP_CONNECT_TIMEOUT_SECONDS": "0.001"},
			[]string{
				"remora sidecar: the NATS server can't be reached at nats://127.0.0.1:1 within 1ms: ",
				"set NATS_SERVER and NATS_AUTH_* to a running server, or --request-plane tcp, on the frontend too",
			},
		},
	} {
		got := runWith(c.env, c.args...)
		lines := strings.Split(strings.TrimSuffix(got.stderr, "\n"), "\n")
		last := lines[len(lines)-1]
		if got.code != 1 || !strings.HasPrefix(last, c.want[0]) {
			t.Errorf("code %d: %s", got.code, last)
		}
		for _, part := range c.want {
			if !strings.Contains(last, part) {
				t.Errorf("%q is not in %s", part, last)
			}
		}
	}
}
