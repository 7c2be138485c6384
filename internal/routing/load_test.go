package routing

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/eventplane/eventplanetest"
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

// atWork is a request with a prompt of that many tokens, the first of them being first.
func atWork(first uint32, tokens int, rank *uint32) Request {
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(i)
	}
	ids[0] = first
	return Request{Tokens: tokens, Rank: rank, Prompt: &Prompt{Tokens: ids}}
}

func with(r Request, change func(p *Prompt)) Request {
	change(r.Prompt)
	return r
}

func TestLoad(t *testing.T) {
	two, three, four := uint32(2), uint32(3), uint32(4)
	for _, tc := range []struct {
		name     string
		requests []Request
		capacity uint64
		want     []uint64
	}{
		{"none", nil, 0, []uint64{0, 0}},
		{"one", []Request{atWork(1, 40, &two)}, 0, []uint64{3, 0}},
		{"each rank its own", []Request{atWork(1, 40, &two), atWork(1, 32, &three)}, 0, []uint64{3, 2}},
		{
			"a common prompt counts once, ends do not",
			[]Request{atWork(1, 40, &two), atWork(1, 40, &two), atWork(1, 20, &two)},
			0,
			[]uint64{2 + 1 + 1 + 1, 0},
		},
		{"another beginning makes all else different", []Request{atWork(1, 32, &two), atWork(2, 32, &two)}, 0, []uint64{4, 0}},
		{"so does an adapter, and a salt", []Request{
			atWork(1, 32, &two), with(atWork(1, 32, &two), func(p *Prompt) { p.Adapter = "a" }),
			with(atWork(1, 32, &two), func(p *Prompt) { p.Salt = "a" }),
		}, 0, []uint64{6, 0}},
		{"the engine chooses", []Request{atWork(1, 64, nil)}, 0, []uint64{2, 2}},
		{"more than there is", []Request{atWork(1, 640, &two)}, 30, []uint64{30, 0}},
		{"media", []Request{{32, &two, &Prompt{}}, {32, &two, &Prompt{}}}, 0, []uint64{4, 0}},
		{"of a rank that is elsewhere", []Request{atWork(1, 32, &four)}, 0, []uint64{0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLoad(&Config{Requests: slices.Values(tc.requests), FirstRank: 2, Ranks: 2, BlockSize: 16, Capacity: tc.capacity}, nil)
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
		var all []Request
		change := func(f func()) { mu.Lock(); defer mu.Unlock(); f() }
		requests := func(yield func(Request) bool) {
			mu.Lock()
			defer mu.Unlock()
			slices.Values(all)(yield)
		}
		l := newLoad(
			&Config{Requests: requests, FirstRank: 2, Ranks: 1, BlockSize: 16},
			eventplane.NewLoadPublisher(eventplane.LoadConfig{WorkerID: 9, Socket: b}),
		)
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.run(ctx) }()
		for _, step := range []struct {
			want string
			then func()
		}{
			{"2:0", func() { all = append(all, atWork(1, 40, &rank)) }},
			{"2:3", func() {}},
			{"", func() { all = append(all, atWork(2, 40, &rank)) }},
			{"2:6", func() {}},
			{"", func() {}},
			{"2:6", func() { all = all[1:] }}, // the fifth look after the first
			{"2:3", func() {}},
		} {
			synctest.Wait()
			if got := b.take(); got != step.want {
				t.Errorf("told %q, want %q", got, step.want)
			}
			change(step.then)
			time.Sleep(loadInterval)
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
