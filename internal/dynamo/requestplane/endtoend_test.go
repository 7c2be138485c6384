package requestplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"remora/internal/dynamo/protocol"
)

// echoWorker answers each request with its own token ids, one an item.
func echoWorker(tb testing.TB, dialer *Dialer) Handler {
	tb.Helper()
	return handlerFunc{serve: func(ctx context.Context, r *Request) {
		ev := newEvents()
		s, err := dialer.Dial(ctx, r.Control.Connection, ev.on)
		if err != nil {
			tb.Errorf("dial: %v", err)
			return
		}
		defer s.Wait()
		req, err := protocol.ParseRequest(r.Control.Codec, r.Body)
		if err != nil {
			refusal := &protocol.Error{Kind: protocol.ErrorInvalidArgument, Message: err.Error()}
			if err := s.EndFrames(AppendSentinel(AppendErrorPrologue(nil, refusal)), nil); err != nil {
				tb.Errorf("refuse: %v", err)
			}
			return
		}
		frames := AppendPrologue(nil)
		for _, id := range req.TokenIDs {
			item := tokens(id)
			if err := s.WriteFrames(AppendItem(frames, r.Control.Codec, &item), nil); err != nil {
				tb.Errorf("write: %v", err)
			}
			frames = nil
		}
		if err := s.EndFrames(AppendSentinel(AppendFinal(frames, r.Control.Codec)), nil); err != nil {
			tb.Errorf("end: %v", err)
		}
		s.Wait()
		if kinds := ev.kinds(); len(kinds) > 0 {
			tb.Errorf("a normal end was reported: %v", kinds)
		}
	}}
}

func TestEndToEnd(t *testing.T) {
	_, target := startServer(t, ServerConfig{}, echoWorker(t, &Dialer{}))
	responses := startResponses(t, ResponseServerConfig{})
	client := &Client{MaxConnections: 4}
	t.Cleanup(client.Close)
	var wg sync.WaitGroup
	for n := range 64 {
		codec := protocol.Codec(n % 2)
		wg.Go(func() {
			id := fmt.Sprintf("request-%d", n)
			in, info := responses.Register(t.Context(), id, codec)
			defer in.Kill()
			body := protocol.AppendRequest(nil, codec, &protocol.PreprocessedRequest{TokenIDs: []uint32{uint32(n), 7, 1 << 31}})
			if err := client.Send(t.Context(), target, Headers{RequestID: id}, generateControl(id, codec, info), body); err != nil {
				t.Errorf("send: %v", err)
				return
			}
			items, err := readAll(t.Context(), in)
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
			want := []protocol.Item{tokens(uint32(n)), tokens(7), tokens(1 << 31)}
			if diff := cmp.Diff(want, items); diff != "" {
				t.Errorf("%s: %s", id, diff)
			}
		})
	}
	wg.Wait()
}

// TestUndecodableBody: a body that cannot be read is answered in the prologue, and the frontend gets the kind and the texts.
func TestUndecodableBody(t *testing.T) {
	_, target := startServer(t, ServerConfig{}, echoWorker(t, &Dialer{}))
	responses := startResponses(t, ResponseServerConfig{})
	client := &Client{}
	t.Cleanup(client.Close)
	in, info := responses.Register(t.Context(), "r", protocol.JSON)
	if err := client.Send(t.Context(), target, Headers{}, generateControl("r", protocol.JSON, info), []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	_, err := in.Next(t.Context())
	var refusal *protocol.Error
	if !errors.As(err, &refusal) || refusal.Kind != protocol.ErrorInvalidArgument {
		t.Fatalf("got %v", err)
	}
	if _, again := in.Next(t.Context()); !errors.Is(again, err) {
		t.Errorf("the second call says %v", again)
	}
}
