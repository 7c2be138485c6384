package vllm

import (
	"net"
	"strings"
	"testing"
)

func TestParseEndpoint(t *testing.T) {
	tests := []struct {
		text    string
		want    string // String()
		address string
		refusal string // part of the error
	}{
		{text: "", refusal: "it is empty"},
		{text: " \t\n", refusal: "it is empty"},
		{text: "engine:50051", want: "http://engine:50051", address: "engine:50051"},
		{text: "  engine:50051\n", want: "http://engine:50051", address: "engine:50051"},
		{text: "engine:50051/", want: "http://engine:50051", address: "engine:50051"},
		{text: "127.0.0.1:1", want: "http://127.0.0.1:1", address: "127.0.0.1:1"},
		{text: "http://engine:50051", want: "http://engine:50051", address: "engine:50051"},
		{text: "http://engine:50051/", want: "http://engine:50051", address: "engine:50051"},
		{text: "grpc://engine:50051", want: "http://engine:50051", address: "engine:50051"},
		{text: "grpc://engine:50051/", want: "http://engine:50051", address: "engine:50051"},
		{text: "https://engine:50051", refusal: "TLS"},
		{text: "grpcs://engine:50051", refusal: "TLS"},
		{text: "HTTP://engine:50051", refusal: `scheme "HTTP"`},
		{text: "GRPC://engine:50051", refusal: `scheme "GRPC"`},
		{text: "tcp://engine:50051", refusal: `scheme "tcp"`},
		{text: "://engine:50051", refusal: `scheme ""`},
		{text: "engine://x://y", refusal: "scheme"},
		{text: "[::1]:50051", want: "http://[::1]:50051", address: "[::1]:50051"},
		{text: "grpc://[2001:db8::7]:9/", want: "http://[2001:db8::7]:9", address: "[2001:db8::7]:9"},
		{text: "[::1]", want: "http://[::1]:80", address: "[::1]:80"},
		{text: "[fe80::1%25eth0]:9", want: "http://[fe80::1%25eth0]:9", address: "[fe80::1%eth0]:9"},
		{text: "::1:50051", refusal: "host and port"},
		{text: "[engine]:50051", refusal: "host"},
		{text: "a,b:50051", refusal: "not a host name"},
		{text: "engine_1.my-net.test:50051", want: "http://engine_1.my-net.test:50051", address: "engine_1.my-net.test:50051"},
		{text: "[::1:50051", refusal: "host and port"},
		{text: "user@engine:50051", refusal: "user and password"},
		{text: "http://user:secret@engine:50051", refusal: "user and password"},
		{text: "http://engine:50051/v1", refusal: `path ("/v1")`},
		{text: "engine:50051//", refusal: "path"},
		{text: "engine:50051?x=1", refusal: "query"},
		{text: "engine:50051/?", refusal: "query"},
		{text: "engine:50051#x", refusal: "fragment"},
		{text: "engine:50051#", refusal: "fragment"},
		{text: "http://", refusal: "host is missing"},
		{text: ":50051", refusal: "host is missing"},
		{text: "http:///x", refusal: "path"},
		{text: "engine", want: "http://engine:80", address: "engine:80"},
		{text: "http://engine/", want: "http://engine:80", address: "engine:80"},
		{text: "engine:", refusal: "port is empty"},
		{text: "engine:0", refusal: "port 0 is not in 1..65535"},
		{text: "engine:65536", refusal: "port 65536"},
		{text: "engine:grpc", refusal: "host and port"},
		{text: "engine :50051", refusal: "host and port"},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			got, err := ParseEndpoint(test.text)
			if test.want == "" {
				if KindOfError(err) != InvalidArgument || !strings.Contains(err.Error(), test.refusal) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %v and error %v, want a refusal with %q", got, err, test.refusal)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != test.want || got.Address() != test.address {
				t.Errorf("got %s at %s, want %s at %s", got, got.Address(), test.want, test.address)
			}
		})
	}
	if host := (Endpoint{Host: "::1", Port: 9}).AuthorityHost(); host != "[::1]" {
		t.Errorf("authority host %s", host)
	}
	if host := (Endpoint{Host: "engine", Port: 9}).AuthorityHost(); host != "engine" {
		t.Errorf("authority host %s", host)
	}
}

func TestParseHTTPEndpoint(t *testing.T) {
	tests := []struct{ text, want, refusal string }{
		{text: "http://engine:8000", want: "http://engine:8000"},
		{text: " https://engine ", want: "https://engine"},
		{text: "http://[::1]:8000/prefix/v1", want: "http://[::1]:8000/prefix/v1"},
		{text: "HTTP://engine", want: "http://engine"},
		{text: "", refusal: "it is empty"},
		{text: "engine:8000", refusal: "scheme is missing"},
		{text: "grpc://engine:8000", refusal: `scheme "grpc"`},
		{text: "ftp://engine", refusal: `scheme "ftp"`},
		{text: "https:///x", refusal: "host is missing"},
		{text: "http://", refusal: "host is missing"},
		{text: "http://:8000", refusal: "host is missing"},
		{text: "http://user:secret@engine", refusal: "user and password"},
		{text: "http://engine?x", refusal: "query"},
		{text: "http://engine?", refusal: "query"},
		{text: "http://engine#x", refusal: "fragment"},
		{text: "http://engine#", refusal: "fragment"},
		{text: "http://engine:port", refusal: "not a URL"},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			got, err := ParseHTTPEndpoint(test.text)
			if test.want == "" {
				if KindOfError(err) != InvalidArgument || !strings.Contains(err.Error(), test.refusal) {
					t.Errorf("got %v and error %v, want a refusal with %q", got, err, test.refusal)
				}
			} else if err != nil || got.String() != test.want {
				t.Errorf("got %v and error %v", got, err)
			}
		})
	}
}

// Whatever is accepted has one normal form, which is accepted as itself and can be dialled.
func FuzzParseEndpoint(f *testing.F) {
	for _, text := range []string{"engine:1", "http://[::1]:50051/", "grpc://a", "https://a", "a@b:1", "[fe80::1%25e]:9", "a:99999", "x://"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		endpoint, err := ParseEndpoint(text)
		if err != nil {
			if KindOfError(err) != InvalidArgument {
				t.Errorf("kind %v", KindOfError(err))
			}
			return
		}
		again, err := ParseEndpoint(endpoint.String())
		if err != nil || again != endpoint {
			t.Errorf("%q is %+v, whose form %q is %+v, %v", text, endpoint, endpoint, again, err)
		}
		host, port, err := net.SplitHostPort(endpoint.Address())
		if err != nil || host != endpoint.Host || port == "" || host == "" {
			t.Errorf("address %q: %v", endpoint.Address(), err)
		}
	})
}

func FuzzParseHTTPEndpoint(f *testing.F) {
	for _, text := range []string{"http://engine:8000/v1", "https://[::1]/", "http://u@h", "ftp://h", "http://h?q", "http://h#f"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := ParseHTTPEndpoint(text)
		if err != nil {
			return
		}
		if _, err = ParseHTTPEndpoint(parsed.String()); err != nil {
			t.Errorf("%q is %q, which is refused: %v", text, parsed, err)
		}
	})
}
