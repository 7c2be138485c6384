package routing

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
)

const (
	// queriesAtOnce bounds the answers that are in memory: one may be as large as 28 MiB. Routers ask once when they learn of a
	// rank, and after a loss; the others wait for their turn.
	queriesAtOnce = 4
	// queriesInside bounds the questions about one rank that wait for their turn, and the connections of those that have their
	// answer and do not hang up. More are refused, as overload: the router asks again.
	queriesInside = 256
	// maxQuery bounds what of a question is kept while it waits; a sound one has about a hundred bytes.
	maxQuery = 4 << 10
	// queryPatience is how long a router may take to read its answer; after that it asks again anyway.
	queryPatience = 30 * time.Second
)

// queries answers what routers ask about one rank's cache. It implements requestplane.Handler.
type queries struct {
	publisher *eventplane.Publisher
	dialer    *requestplane.Dialer
	turns     chan struct{} // one element an answer under way; shared by all ranks
	log       *slog.Logger

	inside atomic.Int64 // admitted and not over
}

// Admit implements requestplane.Handler. A refusal keeps the router from learning of the rank's cache until it asks again.
func (q *queries) Admit(in *requestplane.Request) error {
	if q.inside.Add(1) > queriesInside {
		q.inside.Add(-1)
		return requestplane.Overloaded()
	}
	if n := len(in.Body); n > maxQuery {
		in.DropBody()
		in.Malformed = &protocol.Error{
			Kind: protocol.ErrorInvalidArgument, Message: fmt.Sprintf("question about KV events of %d bytes", n), Public: "The question is too long",
		}
		return nil
	}
	body := bytes.Clone(in.Body)
	in.DropBody() // it may lie in the memory of a long prompt
	in.Body = body
	return nil
}

// Serve implements requestplane.Handler.
func (q *queries) Serve(ctx context.Context, in *requestplane.Request) {
	defer q.inside.Add(-1)
	if in.Unacked {
		return // the router takes it for refused and asks again
	}
	there, leave := context.WithCancel(ctx)
	defer leave()
	stream, err := q.dialer.Dial(ctx, in.Control.Connection, func(ev requestplane.Event) {
		if ev.Leaving() {
			leave()
		}
	})
	if err != nil {
		q.log.Warn("a router that asked for the KV events can't be dialled back", "address", in.Control.Connection.Address, "error", err)
		return
	}
	defer context.AfterFunc(there, stream.Close)()
	q.tell(there, in, stream)
	stream.Wait() // a router that does not hang up keeps its connection for a while, and nobody's turn
}

// tell waits for its turn and writes the answer, unless the router leaves.
func (q *queries) tell(there context.Context, in *requestplane.Request, stream *requestplane.ResponseStream) {
	select {
	case q.turns <- struct{}{}:
		defer func() { <-q.turns }()
	case <-there.Done():
		return
	}
	patience := time.AfterFunc(queryPatience, stream.Close)
	defer patience.Stop()
	if err := stream.EndFrames(q.answer(in), nil); err != nil {
		q.log.Warn("an answer about the KV events was not delivered", "address", in.Control.Connection.Address, "error", err)
		stream.Close()
	}
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
