package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// requestTimeout bounds one HTTP request; a test that waits longer for an answer has failed.
const requestTimeout = 60 * time.Second

// Client talks to an OpenAI-compatible server.
type Client struct {
	URL  string // set once: http://host:port
	http *http.Client
}

// NewClient returns a client of the server on a loopback port. Each request has a connection of its own, so that
// cancelling one is seen by the server as a client that went away.
func NewClient(port int) *Client {
	return &Client{
		URL:  fmt.Sprintf("http://127.0.0.1:%d", port),
		http: &http.Client{Timeout: requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// Request is a body for either endpoint: with Messages it is a chat, with Prompt a completion.
type Request struct {
	Model       string    `json:"model"`
	Messages    []Message `json:"messages,omitempty"`
	Prompt      any       `json:"prompt,omitempty"` // text, or token ids
	MaxTokens   int       `json:"max_tokens,omitempty"`
	Temperature float64   `json:"temperature"`
	Stream      bool      `json:"stream,omitempty"`
	Stop        []string  `json:"stop,omitempty"`
	// Logprobs is a bool in chats and a count in completions.
	Logprobs      any            `json:"logprobs,omitempty"`
	TopLogprobs   int            `json:"top_logprobs,omitempty"`
	StreamOptions *StreamOptions `json:"stream_options,omitempty"`
	NvExt         *NvExt         `json:"nvext,omitempty"`
}

// NvExt is Dynamo's own part of a request: where it shall run, and what the answer shall tell; see TellRouting.
type NvExt struct {
	Instance    uint64   `json:"backend_instance_id,omitempty"`
	Rank        *uint32  `json:"dp_rank,omitempty"`
	ExtraFields []string `json:"extra_fields,omitempty"`
}

// TellRouting has the frontend say where it sent a request, and why.
func TellRouting() *NvExt { return &NvExt{ExtraFields: []string{"worker_id", "timing"}} }

// Message is one turn of a chat.
type Message struct {
	Role    string `json:"role"`
	Content any    `json:"content"` // a string, or a []Part
}

// Part is a part of a message: a text, or media by URL.
type Part struct {
	Type     string   `json:"type"` // text, image_url, video_url or audio_url
	Text     string   `json:"text,omitempty"`
	ImageURL *PartURL `json:"image_url,omitempty"`
	VideoURL *PartURL `json:"video_url,omitempty"`
	UUID     string   `json:"uuid,omitempty"` // the client's own name for an image
}

// PartURL is where media are.
type PartURL struct {
	URL string `json:"url"`
}

// StreamOptions asks for the usage at the end of a stream.
type StreamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

func (r Request) path() string {
	if len(r.Messages) > 0 {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// Answer is what a request came to. A status other than 200 leaves everything but Body empty.
type Answer struct {
	Status   int
	Body     string // raw
	Text     string
	Finish   string
	Usage    Usage
	Logprobs []json.RawMessage // one for each choice that carried some
	Chunks   int               // of a stream, those that carried text
	Error    string            // the error event of a stream that broke
	Routing  Routing           // set if the request asked for it
}

// Routing is where a request was sent. The numbers of a worker that none was needed of are zero.
type Routing struct {
	WorkerID struct {
		Prefill     uint64 `json:"prefill_worker_id"`
		PrefillRank uint32 `json:"prefill_dp_rank"`
		Decode      uint64 `json:"decode_worker_id"`
		DecodeRank  uint32 `json:"decode_dp_rank"`
	} `json:"worker_id"`
	Timing struct {
		KVHitRate float64 `json:"kv_hit_rate"` // of the prompt's blocks, those that the router believed to be there
	} `json:"timing"`
}

// Usage counts tokens.
type Usage struct {
	Prompt        int `json:"prompt_tokens"`
	Completion    int `json:"completion_tokens"`
	PromptDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// body is an answer or a chunk, chat or completion.
type body struct {
	Choices []struct {
		Text         string `json:"text"`
		Message      struct{ Content string }
		Delta        struct{ Content string }
		FinishReason string          `json:"finish_reason"`
		Logprobs     json.RawMessage `json:"logprobs"`
	} `json:"choices"`
	Usage *Usage          `json:"usage"`
	Error json.RawMessage `json:"error"`
	NvExt *Routing        `json:"nvext"`
}

func (a *Answer) add(b body) {
	for _, c := range b.Choices {
		text := c.Text + c.Message.Content + c.Delta.Content
		a.Text += text
		if text != "" {
			a.Chunks++
		}
		if c.FinishReason != "" {
			a.Finish = c.FinishReason
		}
		if len(c.Logprobs) > 0 && string(c.Logprobs) != "null" {
			a.Logprobs = append(a.Logprobs, c.Logprobs)
		}
	}
	if b.Usage != nil {
		a.Usage = *b.Usage
	}
	if b.NvExt != nil {
		a.Routing = *b.NvExt
	}
	if len(b.Error) > 0 {
		a.Error = string(b.Error)
	}
}

// Ask sends a request and waits for the whole answer, whether streamed or not. Only a transport failure is fatal.
func (c *Client) Ask(t T, r Request) Answer {
	t.Helper()
	answer, err := c.ask(t.Context(), r)
	if err != nil {
		t.Fatalf("%s: %v", r.path(), err)
	}
	return answer
}

func (c *Client) ask(ctx context.Context, r Request) (Answer, error) {
	if r.Stream {
		s, err := c.open(ctx, r)
		if err != nil {
			return Answer{}, err
		}
		defer s.Close()
		for s.next() {
		}
		return s.Answer, s.err
	}
	resp, err := c.post(ctx, r)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("read: %w", err)
	}
	answer := Answer{Status: resp.StatusCode, Body: string(text)}
	if resp.StatusCode == http.StatusOK {
		var b body
		if err := json.Unmarshal(text, &b); err != nil {
			return answer, fmt.Errorf("answer %q: %w", text, err)
		}
		answer.add(b)
	}
	return answer, nil
}

func (c *Client) post(ctx context.Context, r Request) (*http.Response, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+r.path(), bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	return c.http.Do(req)
}

// Stream is a streamed answer that is being read. Answer grows as it is.
type Stream struct {
	Answer

	cancel context.CancelFunc
	resp   *http.Response
	lines  *bufio.Scanner
	err    error
}

// Open starts a streamed request and waits for the response's headers, which the stock frontend sends with the first
// item. Close it: closing early is a client that goes away.
func (c *Client) Open(t T, r Request) *Stream {
	t.Helper()
	r.Stream = true
	s, err := c.open(t.Context(), r)
	if err != nil {
		t.Fatalf("%s: %v", r.path(), err)
	}
	t.Cleanup(s.Close)
	return s
}

func (c *Client) open(ctx context.Context, r Request) (*Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	resp, err := c.post(ctx, r) //nolint:bodyclose // Stream.Close does
	if err != nil {
		cancel()
		return nil, err
	}
	s := &Stream{cancel: cancel, resp: resp, lines: bufio.NewScanner(resp.Body)}
	s.lines.Buffer(nil, 16<<20)
	s.Status = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			s.err = fmt.Errorf("read: %w", err)
		}
		s.Body = string(text)
		s.lines = bufio.NewScanner(strings.NewReader(""))
	}
	return s, nil
}

// next reads one event into Answer; false at the end.
func (s *Stream) next() bool {
	for s.lines.Scan() {
		line := s.lines.Text()
		if kind, ok := strings.CutPrefix(line, "event: "); ok && kind == "error" {
			s.Error = "error event"
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			if s.Error != "" && strings.HasPrefix(line, ": ") {
				s.Error = line[2:] // the stock frontend puts an error's text into the event's comment
			}
			continue
		}
		s.Body += line + "\n"
		if data == "[DONE]" {
			return false
		}
		var b body
		if err := json.Unmarshal([]byte(data), &b); err != nil {
			s.err = fmt.Errorf("event %q: %w", data, err)
			return false
		}
		s.add(b)
		return true
	}
	if err := s.lines.Err(); err != nil {
		s.err = fmt.Errorf("read: %w", err)
	}
	return false
}

// ReadChunks reads on until n chunks with text have come in all.
func (s *Stream) ReadChunks(t T, n int) {
	t.Helper()
	for s.Chunks < n {
		if !s.next() {
			t.Fatalf("the stream ended after %d chunks with text, wanted %d: status %d, error %q, %v\n%s", s.Chunks, n, s.Status, s.Error, s.err, s.Body)
		}
	}
}

// ReadAll reads to the end.
func (s *Stream) ReadAll(t T) {
	t.Helper()
	for s.next() {
	}
	if s.err != nil {
		t.Fatalf("after %d chunks: %v", s.Chunks, s.err)
	}
}

// Close goes away: a stream that has not ended is cut. It may be called more than once.
func (s *Stream) Close() {
	s.cancel()
	_ = s.resp.Body.Close()
}

// Abandon sends a streamed request, and goes away as soon as gone is closed, whether or not an answer has begun. It
// returns when the request is over; the error says how it ended when it did so before.
func (c *Client) Abandon(t T, r Request, gone <-chan struct{}) error {
	t.Helper()
	r.Stream = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan struct{})
	var ended error // written before over is closed
	go func() {
		defer close(over)
		s, err := c.open(ctx, r)
		if err != nil {
			ended = err
			return
		}
		defer s.Close()
		for s.next() {
		}
		ended = fmt.Errorf("it ended: status %d, finish %q, error %q, %.300s", s.Status, s.Finish, s.Error, s.Body)
	}()
	select {
	case <-gone:
		cancel()
		<-over
		return nil
	case <-over:
		return ended
	}
}

// Models returns the ids of /v1/models; none while the server cannot be reached.
func (c *Client) Models(t T) []string {
	t.Helper()
	models, _ := c.models(t.Context())
	return models
}

func (c *Client) models(ctx context.Context) ([]string, error) {
	text, err := c.Get(ctx, "/v1/models")
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []struct{ ID string }
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("/v1/models: %w", err)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids, nil
}

// Get fetches a page; a status other than 200 is an error.
func (c *Client) Get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
	if err != nil {
		return "", fmt.Errorf("request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("%s: read: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", path, resp.Status, bytes.TrimSpace(text))
	}
	return string(text), nil
}

// Post posts nothing to a path and wants status 200: a simulator's switches work that way.
func (c *Client) Post(t T, path string) {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), requestTimeout)
	defer end()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+path, nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	response, err := c.http.Do(r)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if response.StatusCode != http.StatusOK {
		t.Fatalf("POST %s: status %d: %s", path, response.StatusCode, text)
	}
}
