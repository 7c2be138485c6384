package sim

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinylib/msgp/msgp"
	"google.golang.org/protobuf/encoding/protojson"

	"remora/internal/sim/kvpub"
	pb "remora/proto/vllm"
)

// airwaves is a network of event sockets in memory: all that was published, by endpoint, and who answers replay requests.
type airwaves struct {
	mu      sync.Mutex
	sent    map[string][][][]byte // guarded by mu
	answers map[string]answerer   // guarded by mu
	refuse  string                // endpoint that cannot be opened
}

type answerer func(request [][]byte, reply func(frames ...[]byte) error)

var errInUse = errors.New("address already in use")

func newAirwaves() *airwaves {
	return &airwaves{sent: map[string][][][]byte{}, answers: map[string]answerer{}}
}

type mast struct {
	*airwaves

	endpoint string
}

func (m mast) Publish(frames ...[]byte) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent[m.endpoint] = append(m.sent[m.endpoint], frames)
	return 0
}

func (m mast) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.answers, m.endpoint)
}

func (a *airwaves) Pub(endpoint string, _ int) (kvpub.Pub, string, error) {
	if endpoint == a.refuse {
		return nil, "", errInUse
	}
	return mast{a, endpoint}, endpoint, nil
}

func (a *airwaves) Router(endpoint string, answer func(request [][]byte, reply func(frames ...[]byte) error)) (kvpub.Router, string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[endpoint] = answer
	return mast{a, endpoint}, endpoint, nil
}

// heard takes what was published at an endpoint since the last call.
func (a *airwaves) heard(endpoint string) [][][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	frames := a.sent[endpoint]
	a.sent[endpoint] = nil
	return frames
}

// numbers takes the sequence numbers of what was published at an endpoint.
func (a *airwaves) numbers(endpoint string) []uint64 {
	var all []uint64
	for _, frames := range a.heard(endpoint) {
		all = append(all, binary.BigEndian.Uint64(frames[1]))
	}
	return all
}

// replay asks and returns the frames of the answers, the payloads by their number of bytes.
func (a *airwaves) replay(endpoint string, request ...[]byte) []string {
	a.mu.Lock()
	answer := a.answers[endpoint]
	a.mu.Unlock()
	var all []string
	answer(request, func(frames ...[]byte) error {
		all = append(all, fmt.Sprintf("%q %v", frames[:len(frames)-1], len(frames[len(frames)-1]) > 0))
		return nil
	})
	return all
}

// publishing turns KV events on.
func publishing(a *airwaves) func(*Config) {
	return func(c *Config) {
		c.EventsNetwork = a
		c.KVEvents = kvpub.Config{Enable: true, Endpoint: "tcp://*:5757", ReplayEndpoint: "tcp://*:5857", Topic: "kv"}
	}
}

const (
	pubAt    = "tcp://127.0.0.1:5757"
	replayAt = "tcp://127.0.0.1:5857"
)

func be(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// TestEventsOfRanks: each rank publishes at its own port under its own number, beginning with 0, and names equal blocks its
// own way unless there is a hash seed.
//
// Rules: events-config, events-hash, rank-pools.
func TestEventsOfRanks(t *testing.T) {
	for _, seed := range []uint64{0, 9} {
		synctest.Test(t, func(t *testing.T) {
			a := newAirwaves()
			e := start(t, network{}, "e", func(c *Config) {
				publishing(a)(c)
				c.DataParallelSize, c.DataParallelStartRank, c.HashSeed = 4, 2, seed
			})
			var hashes []any
			for _, rank := range []string{"2", "3"} {
				e.on(t, rank, request("r", words(9, 1), 1))
				frames := a.heard("tcp://127.0.0.1:" + map[string]string{"2": "5759", "3": "5760"}[rank])
				if len(frames) != 1 || string(frames[0][0]) != "kv" || binary.BigEndian.Uint64(frames[0][1]) != 0 || len(frames[0]) != 3 {
					t.Fatalf("rank %s: %q", rank, frames)
				}
				batch := decodeBatch(t, frames[0][2])
				if got := fmt.Sprint(batch[2]); got != rank {
					t.Errorf("rank %s says %s", rank, got)
				}
				if at, ok := batch[0].(float64); !ok || math.Abs(at-float64(time.Now().Unix())) > 1 {
					t.Errorf("at %v", batch[0])
				}
				hashes = append(hashes, batch[1].([]any)[0].(map[string]any)["block_hashes"])
			}
			if reflect.DeepEqual(hashes[0], hashes[1]) != (seed != 0) {
				t.Errorf("seed %d: %v", seed, hashes)
			}
		})
	}
}

func decodeBatch(t *testing.T, payload []byte) []any {
	t.Helper()
	v, rest, err := msgp.ReadIntfBytes(payload)
	batch, ok := v.([]any)
	if err != nil || !ok || len(batch) != 3 || len(rest) > 0 {
		t.Fatalf("%x: %v %v", payload, v, err)
	}
	return batch
}

// TestEventSources: one source for each rank, in the words of the configuration, with the rank added to the ports or not.
//
// Rules: events-sources, event-endpoint.
func TestEventSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) {
			publishing(newAirwaves())(c)
			c.DataParallelSize, c.DataParallelStartRank = 3, 1
		})
		list := func() (all []string) {
			got, err := e.ctrl.GetKvEventSources(t.Context(), &pb.GetKvEventSourcesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range got.GetSources() {
				all = append(all, fmt.Sprintf("%d %s %s", s.GetDataParallelRank(), s.GetEndpoint(), s.GetReplayEndpoint()))
			}
			return all
		}
		if got := list(); !slices.Equal(got, []string{"1 tcp://*:5758 tcp://*:5858", "2 tcp://*:5759 tcp://*:5859"}) {
			t.Error(got)
		}
		e.turn(t, EventsOneEndpoint, "true")
		if got := list(); !slices.Equal(got, []string{"1 tcp://*:5758 tcp://*:5858", "2 tcp://*:5758 tcp://*:5858"}) {
			t.Error(got)
		}
		if got := e.EventSources(); len(got) != 2 || got[1] != (EventSource{2, "tcp://127.0.0.1:5759", "tcp://127.0.0.1:5859"}) {
			t.Error(got)
		}
	})
}

// TestRecordedSource is what a real engine told of its own.
//
// Rules: events-sources.
func TestRecordedSource(t *testing.T) {
	var rec struct {
		GetKvEventSources struct{ Hex string }
	}
	load(t, "control-info.json", &rec)
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) {
			publishing(newAirwaves())(c)
			c.KVEvents.Topic = ""
		})
		got, err := e.ctrl.GetKvEventSources(t.Context(), &pb.GetKvEventSourcesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := hex.DecodeString(rec.GetKvEventSources.Hex)
		if err != nil {
			t.Fatal(err)
		}
		want := &pb.GetKvEventSourcesResponse{}
		if err := unmarshal(raw, want); err != nil {
			t.Fatal(err)
		}
		if protojson.Format(got) != protojson.Format(want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	})
}

// TestReplay: from a number on, as far back as the buffer goes, then the end marker, with a topic or, as in older releases,
// without one. What is no request is not answered.
//
// Rules: events-replay, replay-end.
func TestReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAirwaves()
		e := start(t, network{}, "e", func(c *Config) {
			publishing(a)(c)
			c.KVEvents.BufferSteps = 3
		})
		line := func(topic string, n uint64) string {
			return fmt.Sprintf("%q %v", [][]byte{{}, []byte(topic), be(n)}, n != math.MaxUint64)
		}
		end := line("", math.MaxUint64)
		if got := a.replay(replayAt, nil, be(0)); !slices.Equal(got, []string{end}) {
			t.Error(got)
		}
		for i := range 5 {
			e.tokens(t, request("r", words(9, uint32(i)), 1))
		}
		for _, tt := range []struct {
			start []byte
			want  []string
		}{
			{be(0), []string{line("kv", 2), line("kv", 3), line("kv", 4), end}},
			{be(3), []string{line("kv", 3), line("kv", 4), end}},
			{be(5), []string{end}},
			{be(math.MaxUint64), []string{end}},
			{[]byte{4}, []string{line("kv", 4), end}},
			{append(make([]byte, 9), 4), []string{line("kv", 4), end}},
			{append([]byte{1}, make([]byte, 9)...), []string{end}},
		} {
			if got := a.replay(replayAt, nil, tt.start); !slices.Equal(got, tt.want) {
				t.Errorf("from %x: %v, want %v", tt.start, got, tt.want)
			}
		}
		e.turn(t, ReplayWithoutTopic, "true")
		if got := a.replay(replayAt, nil, be(4)); !slices.Equal(got, []string{fmt.Sprintf("%q true", [][]byte{{}, be(4)}), fmt.Sprintf("%q false", [][]byte{{}, be(math.MaxUint64)})}) {
			t.Error(got)
		}
		if got := a.replay(replayAt, be(4)); got != nil {
			t.Error(got)
		}
	})
}

// TestLostEvents: so many messages as said reach nobody and can be replayed.
//
// Rules: events-lost.
func TestLostEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAirwaves()
		e := start(t, network{}, "e", publishing(a))
		w := httptest.NewRecorder()
		e.httpHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/sim/fault?name=events-lost&times=2", nil))
		if w.Code != http.StatusOK {
			t.Fatal(w.Body)
		}
		for i := range 4 {
			e.tokens(t, request("r", words(9, uint32(i)), 1))
		}
		if got := a.numbers(pubAt); !slices.Equal(got, []uint64{2, 3}) {
			t.Error(got)
		}
		if got := a.replay(replayAt, nil, be(0)); len(got) != 5 {
			t.Error(got)
		}
		e.turn(t, EventsLost, "true")
		e.tokens(t, request("r", words(9, 8), 1))
		e.turn(t, EventsLost, "false")
		e.tokens(t, request("r", words(9, 9), 1))
		if got := a.numbers(pubAt); !slices.Equal(got, []uint64{5}) {
			t.Error(got)
		}
		for _, bad := range []string{"name=events-lost&times=0", "name=events-lost&times=x", "name=read-fail&times=2", "name=nonsense&times=2"} {
			w := httptest.NewRecorder()
			e.httpHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/sim/fault?"+bad, nil))
			if w.Code != http.StatusBadRequest {
				t.Errorf("%s: %d", bad, w.Code)
			}
		}
	})
}

// TestRestartOfEvents: numbers begin at 0, there is nothing to replay, and the engine has what it had.
func TestRestartOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAirwaves()
		e := start(t, network{}, "e", publishing(a))
		post := func(query string) int {
			w := httptest.NewRecorder()
			e.httpHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/sim/restart"+query, nil))
			return w.Code
		}
		e.tokens(t, request("r", words(9, 1), 1))
		if code := post("?only=kv-events"); code != http.StatusOK {
			t.Error(code)
		}
		if got := a.replay(replayAt, nil, be(0)); len(got) != 1 {
			t.Error(got)
		}
		e.tokens(t, request("r", words(9, 1), 1)) // all hits
		e.tokens(t, request("r", words(9, 2), 1))
		if got := a.numbers(pubAt); !slices.Equal(got, []uint64{0, 0}) {
			t.Error(got)
		}
		if code := post("?only=me"); code != http.StatusBadRequest {
			t.Error(code)
		}
		a.refuse = pubAt
		if code := post("?only=kv-events"); code != http.StatusConflict {
			t.Error(code)
		}
		e.tokens(t, request("r", words(9, 3), 1)) // nobody hears of it
		if code := post(""); code != http.StatusAccepted {
			t.Error(code)
		}
		if err := <-e.done; !errors.Is(err, ErrRestart) {
			t.Error(err)
		}
	})
}

// TestFormsOfEvents: array form and byte hashes are switched while the engine runs.
//
// Rules: events-forms.
func TestFormsOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAirwaves()
		e := start(t, network{}, "e", publishing(a))
		e.turn(t, EventsArrays, "true")
		e.turn(t, EventsBytes, "true")
		e.tokens(t, request("r", words(9, 1), 1))
		event := decodeBatch(t, a.heard(pubAt)[0][2])[1].([]any)[0].([]any)
		if h, ok := event[1].([]any)[1].([]byte); event[0] != "BlockStored" || len(event) != 8 || !ok || len(h) != 32 {
			t.Errorf("%v", event)
		}
	})
}

// TestNoEventsUnlessAskedFor: without them, and with the publisher null, there is no source.
func TestNoEventsUnlessAskedFor(t *testing.T) {
	for name, c := range map[string]kvpub.Config{"off": {}, "off with zmq": {Publisher: "zmq"}, "null": {Enable: true, Publisher: "null"}} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, network{}, "e", func(cfg *Config) { cfg.KVEvents = c })
			e.tokens(t, request("r", words(9, 1), 1))
			got, err := e.ctrl.GetKvEventSources(t.Context(), &pb.GetKvEventSourcesRequest{})
			if err != nil || len(got.GetSources()) != 0 {
				t.Errorf("%s: %v %v", name, got, err)
			}
			if err := e.RestartEvents(t.Context()); !errors.Is(err, ErrFault) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestEventSocketsFail: an endpoint that cannot be opened is the end of Run, and leaves no other socket open.
func TestEventSocketsFail(t *testing.T) {
	a := newAirwaves()
	a.refuse = "tcp://127.0.0.1:5758"
	cfg := Config{Model: "m", DataParallelSize: 2}
	publishing(a)(&cfg)
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); !errors.Is(err, errInUse) || !strings.Contains(err.Error(), "rank 1") || len(a.answers) != 0 {
		t.Error(err, a.answers)
	}
	for name, events := range map[string]kvpub.Config{
		"connects":  {Enable: true, Endpoint: "tcp://127.0.0.1:5557"},
		"transport": {Enable: true, Endpoint: "udp://*:5557"},
	} {
		if _, err := New(Config{Model: "m", KVEvents: events}); !errors.Is(err, ErrConfig) || !errors.Is(err, kvpub.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
