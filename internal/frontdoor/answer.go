package frontdoor

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// answer is how one request is answered. Its methods return an error where the client cannot be written to any more.
type answer interface {
	begin() error // the worker accepted the request
	add(d delta) error
	end(u usage) error
	fail(e *httpError) // instead of end
}

// writer sends bytes to one client, each write bounded in time.
type writer struct {
	http.ResponseWriter

	control *http.ResponseController
	limit   time.Duration
}

// errClient wraps what went wrong in writing to the client. Nothing can be said to it any more.
var errClient = errors.New("write to the client")

// write sends and flushes. A client that takes longer than the limit to make room is as good as gone.
func (w *writer) write(data []byte) error {
	err := w.control.SetWriteDeadline(time.Now().Add(w.limit))
	if err == nil {
		_, err = w.Write(data) //nolint:gosec // JSON and event streams; nobody takes them for a page
	}
	if err == nil {
		err = w.control.Flush()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errClient, err)
	}
	return nil
}

// json answers with one JSON body.
func (w *writer) json(status int, v any) error {
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data))) // HTTP/1.0 clients keep their connections by it
	w.WriteHeader(status)
	return w.write(data)
}

// fail answers with an error. A client that cannot be told is gone, which is no news by then.
func (w *writer) fail(e *httpError) { _ = w.json(e.status, e.json()) }

// wholeAnswer collects an answer and sends it in one piece.
type wholeAnswer struct {
	w       *writer
	head    head
	dialect dialect
	text    strings.Builder
	all     delta
}

// maxWholeText bounds what is collected for an answer that is not streamed, in bytes. No honest worker comes near it.
const maxWholeText = 16 << 20

func (*wholeAnswer) begin() error { return nil }

func (a *wholeAnswer) add(d delta) error {
	if a.text.Len()+len(d.text) > maxWholeText {
		return statusError(http.StatusInternalServerError, "The answer is too long to be sent in one piece")
	}
	a.text.WriteString(d.text)
	a.all.tokens = append(a.all.tokens, d.tokens...)
	if d.finish != "" {
		a.all.finish = d.finish
	}
	return nil
}

func (a *wholeAnswer) end(u usage) error {
	a.all.text = a.text.String()
	counts := u.json()
	return a.w.json(http.StatusOK, a.dialect.whole(a.head, a.all, &counts))
}

func (a *wholeAnswer) fail(e *httpError) { a.w.fail(e) }

// streamAnswer sends server-sent events as the deltas come.
type streamAnswer struct {
	w            *writer
	head         head
	dialect      dialect
	includeUsage bool
	begun        bool // the headers are out
	first        bool // a chunk is out
}

func (a *streamAnswer) begin() error {
	a.w.Header().Set("Content-Type", "text/event-stream")
	a.w.Header().Set("Cache-Control", "no-cache")
	a.w.WriteHeader(http.StatusOK)
	a.begun = true
	return a.w.write(nil)
}

func (a *streamAnswer) add(d delta) error {
	if d.empty() {
		return nil
	}
	var u **usageJSON
	if a.includeUsage {
		u = new(*usageJSON) // a null
	}
	chunk := a.dialect.chunk(a.head, d, !a.first, u)
	a.first = true
	return a.event(chunk)
}

func (a *streamAnswer) end(u usage) error {
	if a.includeUsage {
		counts := u.json()
		if err := a.event(a.dialect.usageChunk(a.head, &counts)); err != nil {
			return err
		}
	}
	return a.done()
}

func (a *streamAnswer) fail(e *httpError) {
	if !a.begun {
		a.w.fail(e)
		return
	}
	event := e.json()
	event.Error.Code = e.status
	if a.event(event) == nil {
		_ = a.done() // as in writer.fail
	}
}

func (a *streamAnswer) event(v any) error {
	data := []byte("data: ")
	text, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	return a.w.write(append(append(data, text...), "\n\n"...))
}

func (a *streamAnswer) done() error { return a.w.write([]byte("data: [DONE]\n\n")) }
