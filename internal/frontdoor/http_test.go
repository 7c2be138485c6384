package frontdoor

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reply is an HTTP answer whose body has been read.
type reply struct {
	status int
	header http.Header
	body   string
}

// json reads the body and picks a value by path, "choices.0.text".
func (r reply) get(t *testing.T, path string) any {
	t.Helper()
	return pick(t, r.body, path)
}

func pick(t *testing.T, text, path string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not JSON: %v: %s", err, text)
	}
	for step := range strings.SplitSeq(path, ".") {
		switch node := v.(type) {
		case map[string]any:
			v = node[step]
		case []any:
			i := int(step[0] - '0')
			if i >= len(node) {
				t.Fatalf("no %s in %s", path, text)
			}
			v = node[i]
		default:
			t.Fatalf("no %s in %s", path, text)
		}
	}
	return v
}

func (d *door) do(ctx context.Context, method, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, d.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// send makes a request and reads the whole answer.
func (d *door) send(method, path, body string) reply {
	d.t.Helper()
	res, err := d.do(d.t.Context(), method, path, body)
	d.must(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	d.must(err)
	return reply{res.StatusCode, res.Header, string(text)}
}

// post sends in the background; the reply comes on the channel.
func (d *door) post(path, body string) <-chan reply {
	out := make(chan reply, 1)
	go func() {
		defer close(out)
		res, err := d.do(context.Background(), http.MethodPost, path, body)
		if err != nil {
			return
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return
		}
		out <- reply{res.StatusCode, res.Header, string(text)}
	}()
	return out
}

// events is a streamed request of which the headers, and then the events, are awaited.
type events struct {
	t      *testing.T
	opened chan error
	res    *http.Response // after opened
	lines  *bufio.Scanner // after opened
	cancel context.CancelFunc
}

// open begins a streamed request and returns at once: the worker, played by the test, decides when the headers come.
func (d *door) open(path, body string) *events {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	e := &events{t: d.t, opened: make(chan error, 1), cancel: cancel}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res, err := d.do(ctx, http.MethodPost, path, body) //nolint:bodyclose // the cleanup below closes it
		if err == nil {
			e.res, e.lines = res, bufio.NewScanner(res.Body)
		}
		e.opened <- err
	}()
	d.t.Cleanup(func() {
		cancel()
		<-ended
		if e.res != nil {
			_ = e.res.Body.Close()
		}
	})
	return e
}

// headers waits for the good answer's headers.
func (e *events) headers() {
	e.t.Helper()
	select {
	case err := <-e.opened:
		if err != nil {
			e.t.Fatal(err)
		}
	case <-time.After(patience):
		e.t.Fatal("no headers")
	}
	if kind := e.res.Header.Get("Content-Type"); e.res.StatusCode != http.StatusOK || kind != "text/event-stream" {
		e.t.Fatalf("status %d, %s", e.res.StatusCode, kind)
	}
}

// next gives the next event's data.
func (e *events) next() string {
	e.t.Helper()
	for e.lines.Scan() {
		if data, ok := strings.CutPrefix(e.lines.Text(), "data: "); ok {
			return data
		}
	}
	e.t.Fatalf("the stream ended: %v", e.lines.Err())
	return ""
}

// rest gives the text of all chunks to the end, and the finish reason; path finds a chunk's text.
func (e *events) rest(path string) (text, finish string) {
	e.t.Helper()
	for {
		data := e.next()
		if data == "[DONE]" {
			return text, finish
		}
		if piece, ok := pick(e.t, data, path).(string); ok {
			text += piece
		}
		if reason, ok := pick(e.t, data, "choices.0.finish_reason").(string); ok {
			finish = reason
		}
	}
}
