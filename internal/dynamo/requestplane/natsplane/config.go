package natsplane

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Config says where the server is and how to get in.
type Config struct {
	// Servers are nats://host:port or tls://host:port, in any order.
	Servers []string
	// StartTimeout bounds Open; 0: two minutes.
	StartTimeout time.Duration

	// The first of these that is set counts: user name and password together, token, the seed of an nkey, the path of a file of
	// credentials. None: user name and password "user", as Dynamo does.
	Username, Password string
	Token              string
	NKeySeed           string
	CredentialsFile    string

	CAFile            string // PEM; "": the system's
	CertFile, KeyFile string // PEM, the client's own; both or neither
	Insecure          bool   // the server's certificate is not looked at

	Log   *slog.Logger // nil: none
	Meter Meter        // nil: none
	// Dial opens connections; nil: TCP. Tests without ports set it.
	Dial func(network, address string) (net.Conn, error)
}

// Meter hears how the connection fares. Its methods may be called from any goroutine.
type Meter interface {
	SetPlaneUp(up bool)
	PlaneReconnected()
}

type noMeter struct{}

func (noMeter) SetPlaneUp(bool)   {}
func (noMeter) PlaneReconnected() {}

const (
	defaultStartTimeout = 2 * time.Minute
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 5 * time.Second
	// The server is asked for a sign of life every pingInterval; after the second that stays unanswered it counts as away.
	pingInterval = 5 * time.Second
	pingsOut     = 2
	// drainTimeout bounds how long Close waits for messages that have arrived to be acknowledged.
	drainTimeout = 2 * time.Second
	// maxPending messages that nobody has looked at may wait, and maxPendingBytes of them; more are dropped, and their frontends
	// look elsewhere after their own timeout. Looking at one takes microseconds, so this is a bound and not a queue.
	maxPending      = 16 << 10
	maxPendingBytes = 256 << 20
)

func (c Config) withDefaults() Config {
	if c.StartTimeout <= 0 {
		c.StartTimeout = defaultStartTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Meter == nil {
		c.Meter = noMeter{}
	}
	return c
}

// Check tells what is wrong with the settings, without touching files or the network.
func (c Config) Check() error {
	if len(c.Servers) == 0 {
		return fmt.Errorf("%w: no server is given", ErrConfig)
	}
	for _, server := range c.Servers {
		u, err := url.Parse(server)
		switch {
		case err != nil, u.Hostname() == "", u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
			return fmt.Errorf("%w: server %q is not of the form nats://host:port", ErrConfig, redacted(server))
		case u.Scheme != "nats" && u.Scheme != "tls":
			return fmt.Errorf("%w: server %q must start with nats:// or tls://", ErrConfig, redacted(server))
		case u.Scheme == "nats" && c.secret():
			return fmt.Errorf("%w: server %q is nats://, but TLS settings are given: make it tls://", ErrConfig, redacted(server))
		}
	}
	if (c.Username == "") != (c.Password == "") {
		return fmt.Errorf("%w: a user name and a password belong together", ErrConfig)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return fmt.Errorf("%w: a client certificate and its key belong together", ErrConfig)
	}
	return nil
}

// redacted is a server without the password that it may carry.
func redacted(server string) string {
	if u, err := url.Parse(server); err == nil {
		return u.Redacted()
	}
	return "(not a URL)"
}

// secret: something is set that only TLS can use.
func (c Config) secret() bool {
	return c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" || c.Insecure
}

// options are what the client is told beside its handlers.
func (c Config) options() ([]nats.Option, error) {
	options := []nats.Option{
		nats.Name("remora"), nats.Timeout(dialTimeout), nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsOut), nats.DrainTimeout(drainTimeout),
		nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.ReconnectJitter(500*time.Millisecond, 500*time.Millisecond),
		nats.IgnoreAuthErrorAbort(), // a server that is set up anew may refuse us for a while
		// What is written while the server is away are acknowledgements that nobody waits for any more.
		nats.ReconnectBufSize(-1),
	}
	login, err := c.login()
	if err != nil {
		return nil, err
	}
	options = append(options, login)
	if c.Dial != nil {
		options = append(options, nats.SetCustomDialer(dialer(c.Dial)))
	}
	if c.secret() {
		secure, err := c.secure()
		if err != nil {
			return nil, err
		}
		options = append(options, secure...)
	}
	return options, nil
}

func (c Config) login() (nats.Option, error) {
	switch {
	case c.Username != "":
		return nats.UserInfo(c.Username, c.Password), nil
	case c.Token != "":
		return nats.Token(c.Token), nil
	case c.NKeySeed != "":
		pair, err := nkeys.FromSeed([]byte(c.NKeySeed))
		if err != nil {
			return nil, fmt.Errorf("%w: nkey seed: %w", ErrConfig, err)
		}
		public, err := pair.PublicKey()
		if err != nil {
			return nil, fmt.Errorf("%w: nkey seed: %w", ErrConfig, err)
		}
		return nats.Nkey(public, pair.Sign), nil
	case c.CredentialsFile != "":
		return nats.UserCredentials(c.CredentialsFile), nil
	}
	return nats.UserInfo("user", "user"), nil
}

func (c Config) secure() ([]nats.Option, error) {
	options := []nats.Option{nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.Insecure})} //nolint:gosec // as the operator asks
	if c.CAFile != "" {
		options = append(options, nats.RootCAs(c.CAFile))
	}
	if c.CertFile != "" {
		own, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%w: client certificate: %w", ErrConfig, err)
		}
		options = append(options, func(o *nats.Options) error {
			o.TLSConfig.Certificates = []tls.Certificate{own}
			return nil
		})
	}
	return options, nil
}

type dialer func(network, address string) (net.Conn, error)

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) { return d(network, address) }
