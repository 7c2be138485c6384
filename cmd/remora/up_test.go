package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// small is a running `remora up`.
type small struct {
	t       *testing.T
	url     string
	engine  string // URL of the last engine's HTTP side
	stopNow context.CancelFunc
	cutNow  context.CancelFunc
	code    chan int
	logs    *bytes.Buffer // read it when code has come
	temp    string        // the folder for temporary files
}

var (
	doorLine   = regexp.MustCompile(`front door +(http://\S+), ready`)
	engineLine = regexp.MustCompile(`metrics (http://\S+)/metrics`)
)

func startUp(t *testing.T, args ...string) *small {
	t.Helper()
	s := &small{t: t, code: make(chan int, 1), logs: new(bytes.Buffer), temp: t.TempDir()}
	t.Setenv("TMPDIR", s.temp)
	var stop, cut context.Context
	cut, s.cutNow = context.WithCancel(t.Context())
	stop, s.stopNow = context.WithCancel(cut)
	t.Cleanup(s.cutNow)
	out := make(announced, 64)
	env := environment{}
	go func() {
		s.code <- run(stop, cut, system{args: withoutTwice(append([]string{"up", "--port=0", "--step-time=1ms"}, args...)), lookup: env.lookup, stdout: out, stderr: s.logs})
	}()
	for s.url == "" {
		select {
		case line := <-out:
			if found := engineLine.FindStringSubmatch(line); found != nil {
				s.engine = found[1]
			}
			if found := doorLine.FindStringSubmatch(line); found != nil {
				s.url = found[1]
			}
		case c := <-s.code:
			t.Fatalf("it did not start: code %d, %s", c, s.logs)
		}
	}
	return s
}

// post sends JSON and gives status and lines of the answer.
func (s *small) post(path, body string) (code int, lines []string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	in := bufio.NewScanner(answer.Body)
	for in.Scan() {
		if in.Text() != "" {
			lines = append(lines, in.Text())
		}
	}
	if err := in.Err(); err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, lines
}

// stops ends it and checks that it leaves nothing.
func (s *small) stops(end context.CancelFunc, most time.Duration, want int) {
	s.t.Helper()
	began := time.Now()
	end()
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case c := <-s.code:
		if c != want {
			s.t.Errorf("code %d, want %d: %s", c, want, s.logs)
		}
	case <-limit.C:
		s.t.Fatalf("it still runs %v after the stop", time.Since(began))
	}
	left, err := os.ReadDir(s.temp)
	if err != nil || len(left) > 0 {
		s.t.Errorf("left in the folder for temporary files: %v %v", left, err)
	}
	if text := s.logs.String(); strings.Contains(text, "ERROR") || strings.Contains(text, " WARN ") {
		s.t.Errorf("it complained:\n%s", text)
	}

}

func TestUpAnswers(t *testing.T) {
	for name, args := range map[string][]string{"disaggregated": nil, "aggregated": {"--aggregated"}, "ranks": {"--data-parallel-size=2"}} {
		t.Run(name, func(t *testing.T) {
			s := startUp(t, args...)
			code, lines := s.post("/v1/chat/completions",
				`{"model":"remora-tiny","stream":true,"max_tokens":12,"messages":[{"role":"user","content":"Hello!"}]}`)
			if code != http.StatusOK || len(lines) < 3 || lines[len(lines)-1] != "data: [DONE]" {
				t.Fatalf("status %d, %q", code, lines)
			}
			text := ""
			for _, line := range lines[:len(lines)-1] {
				var chunk struct {
					Choices []struct {
						Delta struct{ Content string }
					}
				}
				if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &chunk); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				for _, c := range chunk.Choices {
					text += c.Delta.Content
				}
			}
			if text == "" {
				t.Errorf("no text in %q", lines)
			}
			code, lines = s.post("/v1/completions", `{"model":"remora-tiny","max_tokens":5,"prompt":"one two three"}`)
			var whole struct {
				Choices []struct {
					Text         string
					FinishReason string `json:"finish_reason"`
				}
				Usage struct {
					CompletionTokens int `json:"completion_tokens"`
				}
			}
			if err := json.Unmarshal([]byte(strings.Join(lines, "")), &whole); err != nil || code != http.StatusOK {
				t.Fatalf("status %d, %q: %v", code, lines, err)
			}
			if len(whole.Choices) != 1 || whole.Choices[0].Text == "" || whole.Choices[0].FinishReason != "length" || whole.Usage.CompletionTokens != 5 {
				t.Errorf("%+v", whole)
			}
			s.stops(s.stopNow, 10*time.Second, exitOK)
		})
	}
}

// TestUpIsCut while it answers.
func TestUpIsCut(t *testing.T) {
	s := startUp(t, "--step-time=50ms")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/v1/completions",
		strings.NewReader(`{"model":"remora-tiny","stream":true,"max_tokens":400,"ignore_eos":true,"prompt":"one"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := answer.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.cutNow()
	<-s.code // either code: whether the worker still had the request when it was cut is a race with the front door's end
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	if left, err := os.ReadDir(s.temp); err != nil || len(left) > 0 {
		t.Errorf("left in the folder for temporary files: %v %v", left, err)
	}
}

// TestUpPartBreaks: a part that ends by itself ends it all, with one line that says which, and leaves nothing.
func TestUpPartBreaks(t *testing.T) {
	s := startUp(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.engine+"/sim/restart", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	select {
	case code := <-s.code:
		lines := strings.Split(strings.TrimSpace(s.logs.String()), "\n")
		if last := lines[len(lines)-1]; code != exitFailed || !strings.HasPrefix(last, "remora up: decode engine: ") {
			t.Errorf("code %d: %s", code, last)
		}
	case <-limit.C:
		t.Fatal("it still runs")
	}
	if left, err := os.ReadDir(s.temp); err != nil || len(left) > 0 {
		t.Errorf("left in the folder for temporary files: %v %v", left, err)
	}
}

// TestDoorConnections: each has room for the files of its request.
func TestDoorConnections(t *testing.T) {
	for files, want := range map[uint64]int{0: 8, 160: 8, 300: 46, 1024: 288, 20_000: 6613, math.MaxUint64: 9946} {
		if got := doorConnections(files); got != want {
			t.Errorf("%d open files: %d connections, want %d", files, got, want)
		}
	}
	if openFiles() < 64 {
		t.Errorf("%d open files", openFiles())
	}
}

// TestUpHosts: what it listens on is what was said, and what it prints can be called.
func TestUpHosts(t *testing.T) {
	for listener, want := range map[string]string{"0.0.0.0:80": "127.0.0.1:80", "[::]:80": "127.0.0.1:80", "[::1]:80": "[::1]:80", "192.0.2.1:80": "192.0.2.1:80"} {
		if got := caller(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(listener))); got != want {
			t.Errorf("%s: %s", listener, got)
		}
	}
	if c, err := parseUp([]string{"--host=[::1]"}, environment{}.lookup); err != nil || c.Host != "::1" {
		t.Errorf("%+v, %v", c, err)
	}
	if got := runWith(nil, "up", "--host="); got.code != exitUsage || !strings.Contains(got.stderr, "it is empty") {
		t.Errorf("%+v", got)
	}
	if got := runWith(nil, "up", "--port=0", "--host=192.0.2.1"); got.code != exitFailed || strings.Contains(got.stderr, "--port") {
		t.Errorf("%+v", got)
	}
}

func TestUpPortTaken(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	port := listening(t, "127.0.0.1:0")
	got := runWith(nil, "up", "--port="+port)
	if got.code != exitFailed || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, "choose another --port") {
		t.Fatalf("%+v", got)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left in the folder for temporary files: %v %v", left, err)
	}
}
