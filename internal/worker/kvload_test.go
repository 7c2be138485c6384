package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/eventplane/eventplanetest"
	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/translate"
	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// board writes down what the frontend is told: "rank:blocks".
type board struct {
	mu    sync.Mutex
	words []string // guarded by mu
}

func (b *board) Publish(frames ...[]byte) int {
	m, err := eventplanetest.DecodeMessage(frames)
	if err != nil {
		panic(err)
	}
	l, err := eventplanetest.DecodeLoad(m.Payload)
	if err != nil || l.WorkerID != 9 || m.Topic != "kv_metrics" {
		panic(fmt.Sprint(l, err))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.words = append(b.words, fmt.Sprintf("%d:%d", l.Rank, *l.Used))
	return 0
}

func (b *board) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() { b.words = nil }()
	return strings.Join(b.words, " ")
}

// atWork is a request that is at the engine with a prompt of that many tokens, the first of them being first.
func atWork(t *testing.T, first uint32, tokens int, rank *uint32) *request {
	t.Helper()
	return submitted(notYet(t, first, tokens, rank))
}

func submitted(r *request) *request {
	r.carryOut(handoff.Action{Kind: handoff.ActSubmit}, occasion{})
	return r
}

// notYet is atWork before the request has been sent.
func notYet(t *testing.T, first uint32, tokens int, rank *uint32) *request {
	t.Helper()
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(i)
	}
	ids[0] = first
	maxTokens := uint32(100)
	body := &protocol.PreprocessedRequest{Model: "tiny", TokenIDs: ids, StopConditions: protocol.StopConditions{MaxTokens: &maxTokens}}
	body.Routing = protocol.Routing{DPRank: rank}
	engine := &translate.Engine{Role: protocol.Aggregated, ServedName: "tiny", ModelID: "tiny", BlockSize: 16, RankStart: 2, RankCount: 2}
	call, refusal := engine.Convert("x", body)
	if refusal != nil {
		t.Fatal(refusal.Err)
	}
	return &request{svc: &service{engine: idle{}}, call: call, ended: make(chan struct{})}
}

// idle is an engine that takes requests and does nothing, and the stream of each.
type idle struct {
	vllm.Stream
	engine
}

func (idle) Open(*pb.GenerateRequest, *uint32, vllm.Sink) vllm.Stream { return idle{} }

func TestLoad(t *testing.T) {
	two, three := uint32(2), uint32(3)
	for _, tc := range []struct {
		name     string
		requests func(t *testing.T) []*request
		capacity uint64
		want     []uint64
	}{
		{"none", func(*testing.T) []*request { return nil }, 0, []uint64{0, 0}},
		{"one", func(t *testing.T) []*request { return []*request{atWork(t, 1, 40, &two)} }, 0, []uint64{3, 0}},
		{"each rank its own", func(t *testing.T) []*request {
			return []*request{atWork(t, 1, 40, &two), atWork(t, 1, 32, &three)}
		}, 0, []uint64{3, 2}},
		{"a common prompt counts once, ends do not", func(t *testing.T) []*request {
			return []*request{atWork(t, 1, 40, &two), atWork(t, 1, 40, &two), atWork(t, 1, 20, &two)}
		}, 0, []uint64{2 + 1 + 1 + 1, 0}},
		{"another beginning makes all else different", func(t *testing.T) []*request {
			return []*request{atWork(t, 1, 32, &two), atWork(t, 2, 32, &two)}
		}, 0, []uint64{4, 0}},
		{"the engine chooses", func(t *testing.T) []*request { return []*request{atWork(t, 1, 64, nil)} }, 0, []uint64{2, 2}},
		{"more than there is", func(t *testing.T) []*request { return []*request{atWork(t, 1, 640, &two)} }, 30, []uint64{30, 0}},
		{"not sent yet, and over", func(t *testing.T) []*request {
			waiting, over := notYet(t, 1, 40, &two), atWork(t, 1, 40, &two)
			close(over.ended)
			return []*request{waiting, over}
		}, 0, []uint64{0, 0}},
		{"media", func(t *testing.T) []*request {
			a, b := notYet(t, 1, 32, &two), notYet(t, 1, 32, &two)
			a.call.Request.Media, b.call.Request.Media = []*pb.MediaItem{{}}, []*pb.MediaItem{{}}
			return []*request{submitted(a), submitted(b)}
		}, 0, []uint64{4, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := tc.requests(t)
			l := newLoad(nil, func() []*request { return all }, 2, 2, 16, tc.capacity)
			for range 2 { // what is remembered must not change the count
				if got := l.look(); !slices.Equal(got, tc.want) {
					t.Errorf("%v, want %v", got, tc.want)
				}
			}
		})
	}
}

// TestLoadIsTold when it changes, now and then when it does not, and at the end that there is none.
func TestLoadIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, rank := new(board), uint32(2)
		var mu sync.Mutex // the detector of races does not know that the bubble's goroutines take turns
		var all []*request
		requests := func() []*request {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		add := func(r *request) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, r)
		}
		l := newLoad(eventplane.NewLoadPublisher(eventplane.LoadConfig{WorkerID: 9, Socket: b}), requests, 2, 1, 16, 0)
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.run(ctx) }()
		for _, step := range []struct {
			want string
			then func()
		}{
			{"2:0", func() { add(atWork(t, 1, 40, &rank)) }},
			{"2:3", func() {}},
			{"", func() { add(atWork(t, 2, 40, &rank)) }},
			{"2:6", func() {}},
			{"", func() {}},
			{"2:6", func() { close(requests()[0].ended) }}, // the fifth look after the first
			{"2:3", func() {}},
		} {
			synctest.Wait()
			if got := b.take(); got != step.want {
				t.Errorf("told %q, want %q", got, step.want)
			}
			step.then()
			<-after(loadInterval)
		}
		synctest.Wait()
		b.take()
		end()
		<-done
		if got := b.take(); got != "2:0" {
			t.Errorf("at the end: %q", got)
		}
	})
}
