package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Config says where etcd is and how to get in.
type Config struct {
	// Endpoints are the members: http://host:port, https://host:port, or host:port, which means https where one of the three
	// files is given and http otherwise.
	Endpoints []string
	// LeaseID is the id under which the lease is taken out; the worker's instance id. Above 0 and below 2^63.
	LeaseID uint64
	// TTL is how long the records outlive a process that dies, in whole seconds; 0: 10 s. etcd may grant more.
	TTL time.Duration
	// StartTimeout bounds Open; 0: two minutes.
	StartTimeout time.Duration

	Username, Password string // both or neither
	CAFile             string // PEM; "": the system's
	CertFile, KeyFile  string // PEM, the client's own; both or neither

	Log   *slog.Logger // nil: none
	Meter Meter        // nil: none
	// Dial opens connections; nil: TCP without a proxy. Tests without ports set it.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Meter hears how discovery fares. Its methods may be called from any goroutine.
type Meter interface {
	SetDiscoveryUp(up bool)
	DiscoveryLeaseLost()
}

type noMeter struct{}

func (noMeter) SetDiscoveryUp(bool) {}
func (noMeter) DiscoveryLeaseLost() {}

const (
	defaultTTL          = 10 * time.Second
	defaultStartTimeout = 2 * time.Minute
	// callTimeout bounds every call but the keep-alive.
	callTimeout = 5 * time.Second
	// A connection that shows no life for pingAfter is asked for one, and given up after pingTimeout.
	pingAfter   = 10 * time.Second
	pingTimeout = 3 * time.Second
	// longestPause between attempts to connect. The default of two minutes would keep a worker out for as long after an outage.
	longestPause = 2 * time.Second
)

func (c Config) withDefaults() Config {
	if c.TTL <= 0 {
		c.TTL = defaultTTL
	}
	if c.StartTimeout <= 0 {
		c.StartTimeout = defaultStartTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Meter == nil {
		c.Meter = noMeter{}
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	return c
}

// Check tells what is wrong with the settings, without touching files or the network.
func (c Config) Check() error {
	if len(c.Endpoints) == 0 {
		return fmt.Errorf("%w: no endpoint is given", ErrConfig)
	}
	if (c.Username == "") != (c.Password == "") {
		return fmt.Errorf("%w: a user name and a password belong together", ErrConfig)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return fmt.Errorf("%w: a client certificate and its key belong together", ErrConfig)
	}
	for _, endpoint := range c.Endpoints {
		if err := c.checkEndpoint(endpoint); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) checkEndpoint(endpoint string) error {
	text := endpoint
	if !strings.Contains(text, "://") {
		text = "http://" + text
		if c.secret() {
			text = "https://" + endpoint
		}
	}
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Hostname() == "", u.Port() == "", u.User != nil, u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("%w: endpoint %q is not of the form http://host:port", ErrConfig, endpoint)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%w: endpoint %q: the scheme must be http or https", ErrConfig, endpoint)
	case u.Scheme == "http" && c.secret():
		return fmt.Errorf("%w: endpoint %q is http, but certificates are given: make it https", ErrConfig, endpoint)
	}
	return nil
}

// secret: something is set that only TLS can use.
func (c Config) secret() bool { return c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" }

// tls reads the files; nil where none is given.
func (c Config) tls() (*tls.Config, error) {
	if !c.secret() {
		return nil, nil //nolint:nilnil // no TLS settings are a value of their own: the client decides by the scheme
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%w: CA certificate: %w", ErrConfig, err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: CA certificate: %s has no certificate in PEM form", ErrConfig, c.CAFile)
		}
	}
	if c.CertFile != "" {
		own, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%w: client certificate: %w", ErrConfig, err)
		}
		t.Certificates = []tls.Certificate{own}
	}
	return t, nil
}

// client makes a client. With a user name it logs in, which takes a connection; without, it connects later.
func (c Config) client(ctx context.Context) (*clientv3.Client, error) {
	secrets, err := c.tls()
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: secrets, Username: c.Username, Password: c.Password, Context: ctx, DialTimeout: callTimeout,
		DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingTimeout, PermitWithoutStream: true,
		Logger: zap.NewNop(), // what matters comes back as errors
		DialOptions: []grpc.DialOption{
			grpc.WithNoProxy(), grpc.WithContextDialer(c.Dial),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longestPause},
				MinConnectTimeout: callTimeout,
			}),
		},
	})
}
