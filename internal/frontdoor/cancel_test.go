package frontdoor

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/tinymodel"
)

func handoffParams() protocol.Value {
	return protocol.Map(protocol.Member{Key: "remote_port", Value: protocol.Int(5600)})
}

func TestPrefillThenDecode(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Prefill, protocol.Decode)
	answer := d.post(completionPath, promptBody(`,"max_tokens":20,"min_tokens":3`))
	p := d.call()
	if p.to.ID != 1 || *p.request.StopConditions.MaxTokens != 1 || p.request.StopConditions.MinTokens != nil ||
		p.request.PrefillResult != nil || *p.request.Routing.PrefillWorkerID != 1 {
		t.Errorf("prefill request %+v", p.request)
	}
	p.accept()
	cached, link := uint32(4), &protocol.TraceLink{TraceID: "t", SpanID: "s"}
	p.data(protocol.EngineOutput{
		FinishReason: protocol.FinishLength, DisaggregatedParams: handoffParams(), WorkerTraceLink: link,
		Usage: &protocol.Usage{PromptTokens: 5, TotalTokens: 5, CachedTokens: &cached},
	})
	d.noCall() // the stream has not ended yet
	p.close()
	c := d.call()
	result := c.request.PrefillResult
	if c.to.ID != 2 || c.id != p.id || *c.request.StopConditions.MaxTokens != 20 || *c.request.StopConditions.MinTokens != 3 ||
		*c.request.Routing.PrefillWorkerID != 1 || *c.request.MigrationLink != *link {
		t.Errorf("decode request %+v", c.request)
	}
	port, _ := result.DisaggregatedParams.Get("remote_port")
	details, _ := result.PromptTokensDetails.Get("cached_tokens")
	if port.Int != 5600 || details.Int != 4 {
		t.Errorf("prefill result %+v", result)
	}
	c.accept()
	c.tokens(tinymodel.Encode(" you")...)
	c.finish(protocol.FinishLength)
	if r := <-answer; r.status != http.StatusOK || r.get(t, "choices.0.text") != " you" {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestPrefillEnds(t *testing.T) {
	out := func(finish protocol.FinishReason, params protocol.Value, ids ...uint32) protocol.Item {
		return protocol.Item{Data: &protocol.EngineOutput{FinishReason: finish, DisaggregatedParams: params, TokenIDs: ids}}
	}
	failure := protocol.Item{Error: &protocol.Error{Kind: protocol.ErrorBackendTimeout}}
	for _, tc := range []struct {
		name   string
		items  []protocol.Item
		broken bool // no regular end
		status int  // 0: decode follows
		text   string
	}{
		{name: "stop is final", items: []protocol.Item{out(protocol.FinishStop, handoffParams(), 'x')}, status: 200, text: "x"},
		{name: "eos is final", items: []protocol.Item{out(protocol.FinishEOS, handoffParams())}, status: 200},
		{name: "cancelled is final", items: []protocol.Item{out(protocol.FinishCancelled, protocol.Null())}, status: 200},
		{name: "no finish reason", items: []protocol.Item{out("", handoffParams())}},
		{name: "finish reason later", items: []protocol.Item{out("", handoffParams()), out(protocol.FinishLength, protocol.Null())}},
		{name: "empty parameters", items: []protocol.Item{out(protocol.FinishLength, protocol.Map())}},
		{name: "no parameters", items: []protocol.Item{out(protocol.FinishLength, protocol.Null())}, status: 500},
		{name: "parameters later", items: []protocol.Item{out("", protocol.Null()), out("", handoffParams())}, status: 500},
		{name: "nothing", status: 500},
		{name: "error finish", items: []protocol.Item{out(protocol.FinishError, handoffParams())}, status: 500},
		{name: "error first", items: []protocol.Item{failure}, status: 504},
		{name: "error later", items: []protocol.Item{out(protocol.FinishLength, handoffParams()), failure}, status: 503},
		{name: "broken off", items: []protocol.Item{out(protocol.FinishLength, handoffParams())}, broken: true, status: 503},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := openDoor(t, nil)
			d.serve(protocol.Prefill, protocol.Decode)
			answer := d.post(completionPath, promptBody(""))
			p := d.call()
			p.accept()
			for _, item := range tc.items {
				p.items <- item
			}
			if tc.broken {
				p.end <- ErrUnavailable
			} else {
				p.close()
			}
			if tc.status == 0 {
				c := d.call()
				c.accept()
				c.finish(protocol.FinishLength)
				tc.status = 200
			}
			r := <-answer
			if r.status != tc.status || (tc.status == 200 && r.get(t, "choices.0.text") != tc.text) {
				t.Errorf("%d %s", r.status, r.body)
			}
			d.noCall()
		})
	}
}

// A client that leaves during prefill: the prefill worker hears nothing, the decode worker gets the hand-off and is killed.
func TestClientLeavesDuringPrefill(t *testing.T) {
	for _, stage := range []string{"before the prologue", "after the prologue"} {
		t.Run(stage, func(t *testing.T) {
			d := openDoor(t, nil)
			d.serve(protocol.Prefill, protocol.Decode)
			e := d.open(chatPath, streamBody)
			p := d.call()
			if stage == "after the prologue" {
				p.accept()
			}
			e.cancel()
			<-e.opened
			d.noCall()
			if p.isKilled() {
				t.Error("the prefill worker was told")
			}
			p.handoff(handoffParams())
			c := d.call()
			if c.request.PrefillResult == nil || c.to.ID != 2 {
				t.Errorf("decode request %+v", c.request)
			}
			c.awaitKill(t)
		})
	}
}

func TestClientLeavesDuringGeneration(t *testing.T) {
	for _, tc := range []struct {
		name             string
		roles            []protocol.Role
		accepted, tokens bool
	}{
		{"aggregated, before the prologue", []protocol.Role{protocol.Aggregated}, false, false},
		{"aggregated, before the first token", []protocol.Role{protocol.Aggregated}, true, false},
		{"aggregated, later", []protocol.Role{protocol.Aggregated}, true, true},
		{"decode, before the prologue", []protocol.Role{protocol.Prefill, protocol.Decode}, false, false},
		{"decode, before the first token", []protocol.Role{protocol.Prefill, protocol.Decode}, true, false},
		{"decode, later", []protocol.Role{protocol.Prefill, protocol.Decode}, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := openDoor(t, nil)
			d.serve(tc.roles...)
			e := d.open(chatPath, streamBody)
			if len(tc.roles) == 2 {
				d.call().handoff(handoffParams())
			}
			c := d.call()
			if tc.accepted {
				c.accept()
				e.headers()
			}
			if tc.tokens {
				c.tokens('x')
				e.next()
			}
			if c.isKilled() {
				t.Error("killed while the client is there")
			}
			e.cancel()
			c.awaitKill(t)
		})
	}
}

func TestClientLeavesWithoutStreaming(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	e := d.open(completionPath, promptBody(""))
	c := d.call()
	c.accept()
	c.tokens('x')
	e.cancel()
	c.awaitKill(t)
}

// TestHalfClosed: one who sends no more counts as gone, as for the stock frontend, but may still read: no answer may look whole.
func TestHalfClosed(t *testing.T) {
	for name, stream := range map[string]string{"whole": "", "stream": `,"stream":true`} {
		t.Run(name, func(t *testing.T) {
			d := openDoor(t, nil)
			d.serve(protocol.Aggregated)
			body := promptBody(stream)
			conn := d.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", completionPath, len(body), body))
			c := d.call()
			c.accept()
			in := bufio.NewReader(conn)
			if stream != "" {
				_, err := in.Peek(1)
				d.must(err)
			}
			d.must(conn.CloseWrite())
			c.awaitKill(t)
			answer, err := http.ReadResponse(in, nil)
			if err == nil {
				defer answer.Body.Close()
				_, err = io.ReadAll(answer.Body)
			}
			if err == nil {
				t.Errorf("a whole answer: %s", answer.Status)
			}
		})
	}
}

// The client has all of its answer; only the stream's regular end is missing.
func TestStreamWithoutItsEnd(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	e := d.open(completionPath, promptBody(`,"stream":true`))
	c := d.call()
	c.accept()
	e.headers()
	c.data(protocol.EngineOutput{TokenIDs: []uint32{'x'}, FinishReason: protocol.FinishLength})
	e.next()
	c.tokens('y') // no longer part of the answer
	c.end <- ErrUnavailable
	if event := e.next(); pick(t, event, "error.code") != 503.0 {
		t.Errorf("event %s", event)
	}
}

func TestShutdown(t *testing.T) {
	d := openDoor(t, func(c *Config) { c.ShutdownTime = patience })
	d.serve(protocol.Aggregated)
	e := d.open(completionPath, promptBody(`,"stream":true`))
	c := d.call()
	c.accept()
	e.headers()
	d.stop()
	d.await(func() bool { // the door is shut, the request goes on
		res, err := d.do(t.Context(), http.MethodGet, "/health", "")
		if err == nil {
			_ = res.Body.Close()
		}
		return err != nil
	})
	c.tokens('x')
	c.finish(protocol.FinishLength)
	if text, _ := e.rest("choices.0.text"); text != "x" {
		t.Errorf("%q", text)
	}
	d.must(d.ended())
}

func TestShutdownCuts(t *testing.T) {
	d := openDoor(t, func(c *Config) { c.ShutdownTime = time.Millisecond })
	d.serve(protocol.Prefill, protocol.Decode)
	e := d.open(completionPath, promptBody(`,"stream":true`))
	d.call().handoff(handoffParams())
	c := d.call()
	c.accept()
	e.headers()
	d.post(completionPath, promptBody(""))
	p := d.call() // a prefill is cut as well
	d.stop()
	c.awaitKill(t)
	p.awaitKill(t)
	if event := e.next(); pick(t, event, "error.code") != 503.0 {
		t.Errorf("event %s", event)
	}
	d.must(d.ended())
}

// TestSecondStopCuts: the second stop ends what the shutdown time would have waited for, an unfinished upload too.
func TestSecondStopCuts(t *testing.T) {
	d := openDoor(t, func(c *Config) { c.ShutdownTime = time.Hour })
	d.serve(protocol.Aggregated)
	e := d.open(completionPath, promptBody(`,"stream":true`))
	c := d.call()
	c.accept()
	e.headers()
	upload := d.raw("POST " + completionPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
	d.await(func() bool { return len(d.server.slots) == 2 })
	d.stop()
	d.cut()
	c.awaitKill(t)
	if event := e.next(); pick(t, event, "error.code") != 503.0 {
		t.Errorf("event %s", event)
	}
	d.must(d.ended())
	if answer, _ := io.ReadAll(upload); len(answer) > 0 {
		t.Errorf("the upload was answered: %s", answer)
	}
}

// raw opens a connection of its own and sends text on it.
func (d *door) raw(text string) *net.TCPConn {
	d.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	d.must(err)
	d.t.Cleanup(func() { _ = conn.Close() })
	d.must(conn.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(conn, text)
	d.must(err)
	return conn.(*net.TCPConn)
}

// ended waits for Run's end.
func (d *door) ended() error {
	d.t.Helper()
	select {
	case err := <-d.done:
		close(d.done)
		return err
	case <-time.After(patience):
		d.t.Fatal("Run does not end")
		return nil
	}
}
