package frontdoor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The limits of a request's way in.
const (
	maxBody  = 32 << 20 // bytes, the request plane's own limit
	bodyTime = time.Minute
)

// handler is the HTTP side of a running Server.
type handler struct {
	*Server

	base context.Context // see job
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &writer{ResponseWriter: rw, control: http.NewResponseController(rw), limit: h.config.WriteTime}
	// A deadline would outlive the request on a kept connection.
	defer func() { _ = w.control.SetWriteDeadline(time.Time{}) }()
	method, serve := http.MethodGet, h.unknown
	switch r.URL.Path {
	case "/health":
		serve = h.health
	case "/v1/models":
		serve = h.models
	case "/v1/chat/completions":
		method, serve = http.MethodPost, h.chat
	case "/v1/completions":
		method, serve = http.MethodPost, h.completion
	default:
		if strings.HasPrefix(r.URL.Path, modelPath) {
			serve = h.model
		} else {
			method = r.Method
		}
	}
	if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
		w.Header().Set("Allow", method)
		w.fail(statusError(http.StatusMethodNotAllowed, fmt.Sprintf("%s wants %s", r.URL.Path, method)))
		return
	}
	serve(w, r)
}

func (*handler) unknown(w *writer, r *http.Request) {
	w.fail(statusError(http.StatusNotFound, "There is nothing at "+r.URL.Path))
}

// health says whether a model can be called.
func (h *handler) health(w *writer, _ *http.Request) {
	type answer struct {
		Status string   `json:"status"`
		Models []string `json:"models"`
	}
	models := h.Models()
	if len(models) == 0 {
		_ = w.json(http.StatusServiceUnavailable, answer{"unhealthy", []string{}})
		return
	}
	_ = w.json(http.StatusOK, answer{"healthy", models})
}

// modelEntry is one model as /v1/models tells it.
type modelEntry struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"` // seconds; nobody knows, so it is the time of the question
	OwnedBy string `json:"owned_by"`
}

func newModelEntry(name string) modelEntry {
	return modelEntry{name, "model", time.Now().Unix(), "remora"}
}

// models lists what can be called.
func (h *handler) models(w *writer, _ *http.Request) {
	list := struct {
		Object string       `json:"object"`
		Data   []modelEntry `json:"data"`
	}{"list", []modelEntry{}}
	for _, name := range h.Models() {
		list.Data = append(list.Data, newModelEntry(name))
	}
	_ = w.json(http.StatusOK, list)
}

// modelPath is followed by a model's name, which may have slashes.
const modelPath = "/v1/models/"

// model tells of one that can be called.
func (h *handler) model(w *writer, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, modelPath)
	if !slices.Contains(h.Models(), name) {
		w.fail(noModel(fmt.Sprintf("The model %q does not exist", name)))
		return
	}
	_ = w.json(http.StatusOK, newModelEntry(name))
}

func (h *handler) chat(w *writer, r *http.Request) {
	h.generate(w, r, routeChat, readChat, func(g *generation) dialect {
		return chatDialect{h.config.Model, g.logprobs, g.topLogprobs}
	})
}

func (h *handler) completion(w *writer, r *http.Request) {
	h.generate(w, r, routeCompletions, readCompletion, func(g *generation) dialect {
		return &completionDialect{model: h.config.Model, logprobs: g.logprobs, topLogprobs: g.topLogprobs}
	})
}

// generate is what both routes share.
func (h *handler) generate(
	w *writer, r *http.Request, route string,
	read func([]byte, Model) (*generation, *httpError), form func(*generation) dialect,
) {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		w.fail(statusError(statusOverloaded, "The server is working on as many requests as it may"))
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		w.fail(err)
		return
	}
	g, err := read(body, h.config.Model)
	if err != nil {
		w.fail(err)
		return
	}
	served, err := h.find(g, route)
	if err != nil {
		w.fail(err)
		return
	}
	j := &job{
		base: h.base, plane: h.config.Plane, registry: h.registry, model: h.config.Model, log: h.config.Log,
		id: newID(), served: served, generation: g, request: preprocess(g, h.config.Model.EOS()),
	}
	shape := form(g)
	top := head{ID: shape.idPrefix() + j.id, Created: time.Now().Unix(), Model: g.model}
	if g.stream {
		j.out = &streamAnswer{w: w, head: top, dialect: shape, includeUsage: g.includeUsage}
	} else {
		j.out = &wholeAnswer{w: w, head: top, dialect: shape}
	}
	w.Header().Set("X-Request-ID", j.id)
	j.run(r.Context())
}

// find gives the workers of the model, if it can be called on the route and the prompt fits it.
func (h *handler) find(g *generation, route string) (*served, *httpError) {
	s := h.registry.table.Load().served[g.model]
	switch {
	case s == nil:
		return nil, noModel(fmt.Sprintf("The model %q does not exist", g.model))
	case !s.ready:
		return nil, statusError(http.StatusServiceUnavailable, fmt.Sprintf("The model %q has no complete set of workers yet", g.model))
	case !s.routes[route]:
		return nil, noModel(fmt.Sprintf("The model %q does not answer on this route", g.model))
	case s.maxModel != 0 && len(g.prompt) >= int(s.maxModel):
		err := badRequest("", "The prompt has %d tokens; the model's context has %d, the answer included", len(g.prompt), s.maxModel)
		err.code = "context_length_exceeded"
		return nil, err
	}
	return s, nil
}

func noModel(message string) *httpError {
	err := statusError(http.StatusNotFound, message)
	err.param, err.code = "model", "model_not_found"
	return err
}

// readBody reads the whole body, bounded in size and time. The deadline is lifted before the request runs: net/http notices
// a client that leaves by reading on. After a failure it stays: net/http reads on for the rest of the body before it answers.
func readBody(w *writer, r *http.Request) ([]byte, *httpError) {
	if err := w.control.SetReadDeadline(time.Now().Add(bodyTime)); err != nil {
		return nil, statusError(http.StatusInternalServerError, plainText(http.StatusInternalServerError))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w.ResponseWriter, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, statusError(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit))
	case err != nil:
		return nil, badRequest("", "the body cannot be read to its end")
	}
	_ = w.control.SetReadDeadline(time.Time{}) // fails only where the connection is gone
	return body, nil
}

// newID draws a request id: a random UUID, as the stock frontend's are.
func newID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails: the process ends where the kernel has no randomness
	raw[6] = raw[6]&0x0f | 0x40
	raw[8] = raw[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", raw[0:4], raw[4:6], raw[6:8], raw[8:10], raw[10:])
}
