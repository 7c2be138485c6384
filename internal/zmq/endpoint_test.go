package zmq

import (
	"errors"
	"strings"
	"testing"
)

func TestParseEndpoint(t *testing.T) {
	good := []struct {
		text     string
		want     Endpoint
		wildcard bool
		again    string
	}{
		{"tcp://127.0.0.1:5557", Endpoint{Network: "tcp", Host: "127.0.0.1", Port: 5557}, false, ""},
		{"tcp://engine-0.pool.internal:5557", Endpoint{Network: "tcp", Host: "engine-0.pool.internal", Port: 5557}, false, ""},
		{"tcp://host_a:1", Endpoint{Network: "tcp", Host: "host_a", Port: 1}, false, ""},
		{"tcp://[::1]:5557", Endpoint{Network: "tcp", Host: "::1", Port: 5557}, false, ""},
		{"tcp://[fe80::1%eth0]:5557", Endpoint{Network: "tcp", Host: "fe80::1%eth0", Port: 5557}, false, ""},
		{"tcp://*:5557", Endpoint{Network: "tcp", Port: 5557}, true, ""},
		{"tcp://0.0.0.0:5557", Endpoint{Network: "tcp", Host: "0.0.0.0", Port: 5557}, true, ""},
		{"tcp://[::]:5557", Endpoint{Network: "tcp", Host: "::", Port: 5557}, true, ""},
		{"tcp://[0:0::0]:5557", Endpoint{Network: "tcp", Host: "0:0::0", Port: 5557}, true, ""},
		{"tcp://127.0.0.1:*", Endpoint{Network: "tcp", Host: "127.0.0.1"}, false, ""},
		{"tcp://127.0.0.1:0", Endpoint{Network: "tcp", Host: "127.0.0.1"}, false, "tcp://127.0.0.1:*"},
		{"tcp://*:*", Endpoint{Network: "tcp"}, true, ""},
		{"ipc:///run/kv.sock", Endpoint{Network: "unix", Path: "/run/kv.sock"}, false, ""},
		{"ipc://relative", Endpoint{Network: "unix", Path: "relative"}, false, ""},
		{"ipc://@abstract", Endpoint{Network: "unix", Path: "@abstract"}, false, ""},
	}
	for _, test := range good {
		got, err := ParseEndpoint(test.text)
		if err != nil || got != test.want || got.Wildcard() != test.wildcard {
			t.Errorf("%s: got %+v, wildcard %v, %v", test.text, got, got.Wildcard(), err)
		}
		if test.again == "" {
			test.again = test.text
		}
		if got.String() != test.again {
			t.Errorf("%s reads back as %s", test.text, got)
		}
	}
	for text, want := range map[string]string{
		"":                                  "the scheme is missing",
		"127.0.0.1:5557":                    "the scheme is missing",
		" tcp://127.0.0.1:5557":             `transport " tcp"`,
		"tcp://127.0.0.1:5557 ":             `port "5557 "`,
		"TCP://127.0.0.1:5557":              `transport "TCP"`,
		"inproc://events":                   `transport "inproc"`,
		"udp://127.0.0.1:5557":              `transport "udp"`,
		"tcp://":                            "is not host:port",
		"tcp://127.0.0.1":                   "is not host:port",
		"tcp://127.0.0.1:1:5557":            "is not host:port",
		"tcp://[::1:5557":                   "is not host:port",
		"tcp://:5557":                       "the host is missing",
		"tcp://127.0.0.1:":                  `port ""`,
		"tcp://127.0.0.1:65536":             `port "65536"`,
		"tcp://127.0.0.1:-1":                `port "-1"`,
		"tcp://127.0.0.1:+1":                `port "+1"`,
		"tcp://127.0.0.1:http":              `port "http"`,
		"tcp://a host:1":                    `"a host" is not a host`,
		"tcp://a/b:1":                       "is not a host",
		"tcp://host;127.0.0.1:1":            "is not a host",
		"tcp://**:1":                        "is not a host",
		"ipc://":                            "the path is empty",
		"ipc://@":                           "the path is empty",
		"ipc://*":                           "in place of the wildcard",
		"ipc://a\x00b":                      "zero byte",
		"ipc://" + strings.Repeat("x", 108): "108 bytes",
	} {
		if got, err := ParseEndpoint(text); !errors.Is(err, ErrEndpoint) || !strings.Contains(err.Error(), want) || got != (Endpoint{}) {
			t.Errorf("%q: got %+v, %v; want %q", text, got, err, want)
		}
	}
	if (Endpoint{}).String() != "" || (Endpoint{}).Wildcard() {
		t.Error("the zero endpoint is something")
	}
}

func TestCannotConnect(t *testing.T) {
	for _, e := range []Endpoint{{}, endpoint(t, "tcp://*:1"), endpoint(t, "tcp://[::]:1"), endpoint(t, "tcp://127.0.0.1:*")} {
		if _, err := DialDealer(t.Context(), e, Limits{}); !errors.Is(err, ErrEndpoint) {
			t.Errorf("%+v: %v", e, err)
		}
		if err := (&Sub{Endpoint: e}).Run(t.Context(), newListener()); !errors.Is(err, ErrEndpoint) {
			t.Errorf("%+v: %v", e, err)
		}
	}
	if _, err := ListenPub(Endpoint{}, PubConfig{}); !errors.Is(err, ErrEndpoint) {
		t.Error(err)
	}
	if _, err := ListenRouter(Endpoint{}, RouterConfig{}, nil); !errors.Is(err, ErrEndpoint) {
		t.Error(err)
	}
}

func FuzzParseEndpoint(f *testing.F) {
	for _, text := range []string{"tcp://127.0.0.1:5557", "tcp://*:*", "tcp://[::1%a]:1", "ipc://@a", "ipc:///a", "tcp://host;b:1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseEndpoint(text)
		if err != nil {
			if got != (Endpoint{}) {
				t.Errorf("%q: %+v and %v", text, got, err)
			}
			return
		}
		if again, err := ParseEndpoint(got.String()); err != nil || again != got {
			t.Errorf("%q: %+v reads back as %+v, %v", text, got, again, err)
		}
	})
}
