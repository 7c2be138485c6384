package worker

import (
	"context"
	"log/slog"
	"time"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/requestplane"
)

const (
	// queriesAtOnce bounds the answers that are in memory: one may be as large as 28 MiB. Routers ask once when they learn of a
	// rank, and after a loss; the others wait for their turn.
	queriesAtOnce = 4
	// queryPatience is how long a router may take to read its answer; after that it asks again anyway.
	queryPatience = 30 * time.Second
)

// queries answers what routers ask about one rank's cache. It implements requestplane.Handler.
type queries struct {
	publisher *eventplane.Publisher
	dialer    *requestplane.Dialer
	turns     chan struct{} // one element an answer under way; shared by all ranks
	log       *slog.Logger
}

// Admit implements requestplane.Handler. A refusal would keep the router from learning of the rank's cache until it asks again.
func (q *queries) Admit(*requestplane.Request) error { return nil }

// Serve implements requestplane.Handler.
func (q *queries) Serve(ctx context.Context, in *requestplane.Request) {
	if in.Unacked {
		return // the router takes it for refused and asks again
	}
	select {
	case q.turns <- struct{}{}:
		defer func() { <-q.turns }()
	case <-ctx.Done():
		return
	}
	stream, err := q.dialer.Dial(ctx, in.Control.Connection, func(requestplane.Event) {}) // a router that leaves fails the write
	if err != nil {
		q.log.Warn("a router that asked for the KV events can't be dialled back", "address", in.Control.Connection.Address, "error", err)
		return
	}
	defer context.AfterFunc(ctx, stream.Close)()
	patience := time.AfterFunc(queryPatience, stream.Close)
	defer patience.Stop()
	if err := stream.EndFrames(q.answer(in), nil); err != nil {
		q.log.Warn("an answer about the KV events was not delivered", "address", in.Control.Connection.Address, "error", err)
		stream.Close()
	}
	stream.Wait()
}

// answer gives the frames of the whole response.
func (q *queries) answer(in *requestplane.Request) []byte {
	if in.Malformed != nil {
		return requestplane.AppendSentinel(requestplane.AppendErrorPrologue(nil, in.Malformed))
	}
	codec := in.Control.Codec
	data := q.publisher.Answer(codec, in.Body)
	frames := make([]byte, 0, len(data)+256)
	frames = requestplane.AppendPlainItem(requestplane.AppendPrologue(frames), codec, data)
	return requestplane.AppendSentinel(requestplane.AppendFinal(frames, codec))
}
