package status

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newServer(t *testing.T, c Config) *Server {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answer is what a client sees.
type answer struct {
	code   int
	header http.Header
	body   string
}

// ask sends a target as it may stand on a request line, uncleaned.
func ask(s *Server, method, target string) answer {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(context.Background(), method, "/", nil)
	r.URL.Path = target
	s.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

func TestHealthFollowsReadiness(t *testing.T) {
	s := newServer(t, Config{})
	for _, step := range []struct {
		set  func()
		code int
		body string
	}{
		{func() {}, 503, `{"status":"notready"}`},
		{func() { s.SetReady(true) }, 200, `{"status":"ready"}`},
		{func() { s.SetReady(false) }, 503, `{"status":"notready"}`},
	} {
		step.set()
		r := ask(s, http.MethodGet, "/health")
		if r.code != step.code || r.body != step.body || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("%d %s %v, want %d %s", r.code, r.body, r.header, step.code, step.body)
		}
		if r = ask(s, http.MethodGet, "/live"); r.code != 200 || r.body != "" {
			t.Errorf("/live: %d", r.code)
		}
	}
}

func TestPathsAreConfigurable(t *testing.T) {
	s := newServer(t, Config{HealthPath: "/healthz", LivePath: "/a/live"})
	for path, code := range map[string]int{"/healthz": 503, "/a/live": 200, "/health": 404, "/live": 404} {
		if r := ask(s, http.MethodGet, path); r.code != code {
			t.Errorf("%s: %d, want %d", path, r.code, code)
		}
	}
	for _, bad := range []Config{
		{HealthPath: "health"}, {LivePath: "live"}, {HealthPath: "/x", LivePath: "/x"}, {HealthPath: "/live"},
		{HealthPath: "/metrics"}, {LivePath: "/v1/metadata/x"},
	} {
		if _, err := New(bad); !errors.Is(err, ErrPath) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	s := newServer(t, Config{Metrics: NewMetrics().Handler()})
	for _, path := range []string{"/", "", "/health/", "//health", "/HEALTH", "/nope", "/metadata", "/v1/metadata/", "/v1/loras", "/debug/pprof/"} {
		r := ask(s, http.MethodGet, path)
		if r.code != 404 || r.body != `{"error":"not found"}` || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: %d %s", path, r.code, r.body)
		}
	}
	for _, path := range []string{"/health", "/live", "/metrics"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, "BREW"} {
			r := ask(s, method, path)
			if r.code != 405 || r.body != `{"error":"method not allowed"}` || r.header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %d %s", method, path, r.code, r.body)
			}
		}
	}
	if r := ask(newServer(t, Config{}), http.MethodGet, "/metrics"); r.code != 404 {
		t.Errorf("/metrics without metrics: %d", r.code)
	}
}

func TestModelFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"config.json": `{"a":1}`, "chat_template.jinja": "{{ m }}", "tokenizer.model": "\x00\x01", "secret": "s"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const base = "/v1/metadata/dynamo/backend/generate/m/_base/"
	s := newServer(t, Config{})
	if r := ask(s, http.MethodGet, base+"config.json"); r.code != 404 {
		t.Errorf("before any file was set: %d", r.code)
	}
	s.SetFiles([]File{
		{base + "config.json", filepath.Join(dir, "config.json")},
		{base + "chat_template.jinja", filepath.Join(dir, "chat_template.jinja")},
		{base + "tokenizer.model", filepath.Join(dir, "tokenizer.model")},
		{base + "gone", filepath.Join(dir, "gone")},
		{base + "folder", dir},
		{"/elsewhere", filepath.Join(dir, "secret")},
		{"/v1/metadata/", filepath.Join(dir, "secret")},
	})
	for path, want := range map[string]struct{ body, kind string }{
		"config.json":         {`{"a":1}`, "application/json"},
		"chat_template.jinja": {"{{ m }}", "text/plain; charset=utf-8"},
		"tokenizer.model":     {"\x00\x01", "application/octet-stream"},
	} {
		r := ask(s, http.MethodGet, base+path)
		if r.code != 200 || r.body != want.body || r.header.Get("Content-Type") != want.kind {
			t.Errorf("%s: %d %q %v", path, r.code, r.body, r.header)
		}
		if r = ask(s, http.MethodHead, base+path); r.code != 200 || r.body != "" || r.header.Get("Content-Length") != strconv.Itoa(len(want.body)) {
			t.Errorf("HEAD %s: %d, length %s", path, r.code, r.header.Get("Content-Length"))
		}
	}
	for _, path := range []string{
		base + "gone", base + "folder", base, base + "secret", base + "../_base/config.json", base + "folder/secret", base + "folder/../config.json",
		base + "config.json/", base + "./config.json", "/v1/metadata/../../etc/passwd", "/v1/metadata//etc/passwd", "/elsewhere", "/v1/metadata/",
		base + "config.json\x00", "/v1//metadata/dynamo/backend/generate/m/_base/config.json",
	} {
		if r := ask(s, http.MethodGet, path); r.code != 404 {
			t.Errorf("%q: %d %s", path, r.code, r.body)
		}
	}
	if r := ask(s, http.MethodPost, base+"config.json"); r.code != 405 {
		t.Errorf("POST: %d", r.code)
	}
	s.SetFiles(nil)
	if r := ask(s, http.MethodGet, base+"config.json"); r.code != 404 {
		t.Errorf("after the card was taken back: %d", r.code)
	}
}

// Over a real socket, with the escapes and tricks that only a request line can carry.
func TestServeOverLoopback(t *testing.T) {
	file := filepath.Join(t.TempDir(), "odd name?.json")
	if err := os.WriteFile(file, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, Config{})
	s.SetFiles([]File{{"/v1/metadata/n/c/e/m/_base/odd name?.json", file}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	for line, want := range map[string]string{
		"GET /health HTTP/1.1":     "503",
		"GET /health?x=1 HTTP/1.1": "503",
		"GET /v1/metadata/n/c/e/m/_base/odd%20name%3F.json HTTP/1.1":              "200",
		"GET /v1/metadata/n/c/e/m/_base/x/../odd%20name%3F.json HTTP/1.1":         "404",
		"GET /v1/metadata/n/c/e/m/_base/..%2f_base%2fodd%20name%3F.json HTTP/1.1": "404",
		"GET /v1/metadata/..%2f..%2fetc%2fpasswd HTTP/1.1":                        "404",
		"GET ../../etc/passwd HTTP/1.1":                                           "400",
		"GARBAGE":                                                                 "400",
		"GET /live HTTP/1.1\r\nX: " + strings.Repeat("x", 64<<10):                 "431",
	} {
		conn, dialErr := net.Dial("tcp", l.Addr().String())
		if dialErr != nil {
			t.Fatal(dialErr)
		}
		_, _ = io.WriteString(conn, line+"\r\nHost: h\r\nConnection: close\r\n\r\n")
		answer, readErr := bufio.NewReader(conn).ReadString('\n')
		if readErr != nil || !strings.Contains(answer, " "+want+" ") {
			t.Errorf("%.80s: %q, %v, want %s", line, answer, readErr, want)
		}
		_ = conn.Close()
	}
	cancel()
	if err = <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err = net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("still listening after Serve returned")
	}
}

func TestServeReportsABrokenListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err = newServer(t, Config{}).Serve(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// pipes is a listener whose connections are in memory, for the fake clock.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

func TestStopWaitsForAnswersUnderWayButNotForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := newServer(t, Config{Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-hold
			_, _ = io.WriteString(w, "done")
		})})
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }()

		busy := l.dial()
		_, _ = io.WriteString(busy, "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
		synctest.Wait()
		cancel()
		time.Sleep(stopGrace / 2)
		synctest.Wait()
		select {
		case err := <-served:
			t.Fatalf("stopped in the middle of an answer: %v", err)
		default:
		}
		close(hold)
		if answer, err := io.ReadAll(busy); err != nil || !strings.HasSuffix(string(answer), "done") {
			t.Errorf("%q, %v", answer, err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := newServer(t, Config{Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold })})
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }()
		stuck := l.dial()
		_, _ = io.WriteString(stuck, "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
		synctest.Wait()
		cancel()
		start := time.Now()
		if err := <-served; err != nil || time.Since(start) != stopGrace {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if _, err := stuck.Read(make([]byte, 1)); err == nil {
			t.Error("the stuck connection was not cut")
		}
		close(hold)
	})
}

// A peer that sends half a request costs a connection for a bounded time.
func TestSlowPeersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, Config{})
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }()
		slow := l.dial()
		_, _ = io.WriteString(slow, "GET /health HT")
		start := time.Now()
		if _, err := io.ReadAll(slow); err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited > readTimeout+time.Second {
			t.Errorf("dropped only after %v", waited)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
