package frontdoor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"remora/internal/dynamo/protocol"
)

// The limits of a job. They only end what would never end by itself.
const (
	sendLimit    = 15 * time.Second // connect, send and acknowledge
	prefillLimit = 10 * time.Minute // a whole prefill, whose client may be long gone
	tailLimit    = 10 * time.Second // from the finish reason to the regular end of the stream
)

var (
	errNoWorker  = fmt.Errorf("%w: none is registered", ErrUnavailable)
	errNoHandoff = errors.New("the prefill worker's first item has no disaggregated_params")
	errNoFinish  = fmt.Errorf("%w: the stream ended without a finish reason", ErrUnavailable)
	errNoEnd     = fmt.Errorf("%w: the stream did not end after its finish reason", ErrTimeout)
)

// job is one request on its way through the workers. It belongs to its handler's goroutine.
type job struct {
	base     context.Context // ends when the server cuts what still runs
	plane    Plane
	registry *registry
	model    Model
	log      *slog.Logger

	id         string
	served     *served
	generation *generation
	request    *protocol.PreprocessedRequest
	out        answer
	begun      bool // the worker's good prologue was there
}

// run does the request. client ends when the client leaves, and with base.
func (j *job) run(client context.Context) {
	if err := j.generate(client); err != nil {
		j.fail(client, err)
	}
}

// fail tells the client, if there still is one.
func (j *job) fail(client context.Context, err error) {
	switch {
	case j.base.Err() != nil && !errors.Is(err, errClient):
		j.out.fail(statusError(http.StatusServiceUnavailable, "The server is shutting down"))
	case client.Err() != nil, errors.Is(err, errClient):
		j.log.Debug("client left", "request", j.id)
		// To return would end the answer as if it were whole, and one who has only stopped sending would read that.
		panic(http.ErrAbortHandler) // net/http closes the connection
	default:
		j.log.Warn("request failed", "request", j.id, "error", err)
		var ready *httpError
		if !errors.As(err, &ready) {
			ready = workerError(err, j.begun && j.generation.stream)
		}
		j.out.fail(ready)
	}
}

func (j *job) generate(client context.Context) error {
	if len(j.served.prefill) == 0 {
		return j.front(client, func() *protocol.PreprocessedRequest { return j.request })
	}
	first, worker, err := j.prefill()
	if err != nil {
		return err
	}
	if first.FinishReason != protocol.FinishNone && first.FinishReason != protocol.FinishLength {
		first.DisaggregatedParams = protocol.Null()
		return j.final(first)
	}
	if first.DisaggregatedParams.IsNull() {
		return errNoHandoff
	}
	return j.front(client, func() *protocol.PreprocessedRequest { return decodeOf(j.request, worker.ID, first) })
}

// prefill runs the first phase to its end and returns its first item and who made it. It does not know of the client: what
// the prefill worker holds is given up by a decode that fetches it, and by nothing else, so the phase always ends regularly.
func (j *job) prefill() (*protocol.EngineOutput, Instance, error) {
	ctx, cancel := context.WithTimeout(j.base, prefillLimit)
	defer cancel()
	stream, worker, err := j.send(order(j.served.prefill, &j.served.turn.prefill), func(w Instance) *protocol.PreprocessedRequest {
		return prefillOf(j.request, w.ID)
	})
	if err != nil {
		return nil, worker, fmt.Errorf("prefill: %w", err)
	}
	defer stream.Kill()
	if err := stream.Ready(ctx); err != nil {
		return nil, worker, fmt.Errorf("prefill: %w", err)
	}
	var first *protocol.EngineOutput
	for {
		item, err := stream.Next(ctx)
		switch {
		case errors.Is(err, io.EOF) && first == nil:
			return nil, worker, fmt.Errorf("prefill: %w", errNoHandoff)
		case errors.Is(err, io.EOF):
			return first, worker, nil
		case err != nil:
			return nil, worker, fmt.Errorf("prefill: %w", err)
		case item.Error != nil && first != nil:
			return nil, worker, fmt.Errorf("prefill: %w: %w", ErrUnavailable, errors.New(item.Error.Error()))
		case item.Error != nil:
			return nil, worker, fmt.Errorf("prefill: %w", item.Error)
		case item.Data != nil && first == nil:
			if _, err := finishOf(item.Data); err != nil {
				return nil, worker, err
			}
			first = item.Data
		}
	}
}

// final answers with a prefill's own item: the first token ended the answer.
func (j *job) final(first *protocol.EngineOutput) error {
	if err := j.begin(); err != nil {
		return err
	}
	text := newAssembler(j.generation, j.request, j.model)
	d, _, herr := text.add(first)
	if herr != nil {
		return herr
	}
	if err := j.out.add(d); err != nil {
		return err
	}
	return j.out.end(text.usage)
}

// front runs the phase whose items the client gets. It sends the request even if the client has left already: a decode that
// was never sent would leave the hand-off with the prefill worker. Then it is killed at once.
func (j *job) front(client context.Context, request func() *protocol.PreprocessedRequest) error {
	workers := j.served.front
	if now := j.registry.table.Load().served[j.served.name]; now != nil {
		workers = now.front // a prefill may have taken long
	}
	stream, _, err := j.send(order(workers, &j.served.turn.front), func(Instance) *protocol.PreprocessedRequest { return request() })
	if err != nil {
		return err
	}
	defer stream.Kill()
	if err := stream.Ready(client); err != nil {
		return err
	}
	if err := j.begin(); err != nil {
		return err
	}
	return j.relay(client, stream)
}

func (j *job) begin() error {
	j.begun = true
	return j.out.begin()
}

// relay passes the items on until the answer ends.
func (j *job) relay(client context.Context, stream Stream) error {
	text := newAssembler(j.generation, j.request, j.model)
	for {
		item, err := stream.Next(client)
		switch {
		case errors.Is(err, io.EOF):
			return errNoFinish
		case err != nil:
			return err
		case item.Error != nil:
			return item.Error
		case item.Data == nil:
			continue
		}
		d, cut, herr := text.add(item.Data)
		if herr != nil {
			return herr
		}
		if err := j.out.add(d); err != nil {
			return err
		}
		switch {
		case cut:
			stream.Kill()
			return j.out.end(text.usage)
		case d.finish != "":
			if err := tail(client, stream); err != nil {
				return err
			}
			return j.out.end(text.usage)
		}
	}
}

// tail waits for the regular end of a stream that has said its finish reason. Without it the answer may be incomplete, which
// the stock frontend tells the client as well.
func tail(client context.Context, stream Stream) error {
	ctx, cancel := context.WithTimeout(client, tailLimit)
	defer cancel()
	for {
		item, err := stream.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && client.Err() == nil && ctx.Err() != nil:
			return errNoEnd
		case err != nil:
			return err
		case item.Error != nil:
			return item.Error
		}
	}
}

// send gives the request to the first worker in order that can be reached.
func (j *job) send(workers []Instance, request func(Instance) *protocol.PreprocessedRequest) (Stream, Instance, error) {
	err := errNoWorker
	for _, worker := range workers {
		var stream Stream
		stream, err = j.sendTo(worker, request(worker))
		if err == nil {
			return stream, worker, nil
		}
		if !errors.Is(err, ErrNotReached) {
			break
		}
		j.log.Warn("worker was not reached", "request", j.id, "instance", fmt.Sprintf("%x", worker.ID), "error", err)
	}
	return nil, Instance{}, err
}

func (j *job) sendTo(worker Instance, request *protocol.PreprocessedRequest) (Stream, error) {
	ctx, cancel := context.WithTimeout(j.base, sendLimit)
	defer cancel()
	return j.plane.Send(ctx, worker, j.id, request)
}
