package eventplane_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/eventplane/eventplanetest"
	"remora/internal/dynamo/protocol"
)

// wire carries messages to a router; some get lost. They arrive at deliver, after the call that published them.
type wire struct {
	tape

	router *eventplanetest.Router
	lossy  func() bool // nil: nothing is lost
}

// tape keeps copies of what is published.
type tape struct{ messages [][][]byte }

func (s *tape) Publish(frames ...[]byte) int {
	message := make([][]byte, 0, len(frames))
	for _, f := range frames {
		message = append(message, slices.Clone(f))
	}
	s.messages = append(s.messages, message)
	return 0
}

func (w *wire) deliver(t interface{ Fatal(args ...any) }) {
	for _, frames := range w.messages {
		if w.lossy != nil && w.lossy() {
			continue
		}
		if err := w.router.Message(frames); err != nil {
			t.Fatal(err)
		}
	}
	w.messages = nil
}

// engine is the truth: which blocks the engine holds, by their path. A path is the letters of its blocks.
type engine struct {
	copies map[string]int // a block may be there several times
}

func hashOf(path string) uint64 {
	var h eventplane.Hasher
	var b [256]uint32
	for i, c := range []byte(path) {
		b[i] = uint32(c)
	}
	return h.Tokens(7, b[:len(path)], nil)
}

func tokensOf(path string) []uint64 {
	var out []uint64
	for _, c := range path {
		out = append(out, uint64(c))
	}
	return out
}

func blocksOf(path string, from int) []eventplane.Block {
	var out []eventplane.Block
	for i := from; i < len(path); i++ {
		out = append(out, eventplane.Block{Hash: hashOf(path[:i+1]), TokensHash: uint64(path[i])})
	}
	return out
}

// prefix is how much of a path the engine could reuse.
func (e *engine) prefix(path string) int {
	for i := range path {
		if e.copies[path[:i+1]] == 0 {
			return i
		}
	}
	return len(path)
}

func newPublisher(socket eventplane.Socket) *eventplane.Publisher {
	return eventplane.NewPublisher(eventplane.Config{WorkerID: 1 << 60, Rank: 3, PublisherID: 9, Socket: socket})
}

func newRouter(p **eventplane.Publisher) *eventplanetest.Router {
	return &eventplanetest.Router{WorkerID: 1 << 60, Rank: 3, Ask: func(start *uint64) (eventplanetest.Answer, error) {
		question := protocol.Map(
			protocol.Member{Key: "worker_id", Value: protocol.Int(1 << 60)}, protocol.Member{Key: "dp_rank", Value: protocol.Int(3)},
			protocol.Member{Key: "start_event_id"}, protocol.Member{Key: "end_event_id"},
			protocol.Member{Key: "supports_tree_dump_failed", Value: protocol.Bool(true)},
			protocol.Member{Key: "kind", Value: protocol.String("recovery")},
		)
		if start != nil {
			question.Map[2].Value = protocol.Int(int64(*start))
		}
		return eventplanetest.DecodeAnswer((*p).Answer(protocol.MsgPack, protocol.AppendValue(nil, protocol.MsgPack, question)))
	}}
}

// TestRoutersKnowTheTruth lets an engine store and remove blocks in any order and as many copies as it likes. After each step a
// router that heard everything, one that lost messages and asked, and one that comes only now believe exactly what is true.
func TestRoutersKnowTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p *eventplane.Publisher
		heard, lossy := newRouter(&p), newRouter(&p)
		good, bad := &wire{router: heard}, &wire{router: lossy}
		bad.lossy = func() bool { return rapid.IntRange(0, 2).Draw(t, "loss") == 0 }
		p = newPublisher(sockets{good, bad})
		for _, r := range []*eventplanetest.Router{heard, lossy} {
			if err := r.Join(); err != nil {
				t.Fatal(err)
			}
		}
		e := &engine{copies: map[string]int{}}
		paths := rapid.StringMatching(`[ab]{1,6}`)
		n := rapid.IntRange(1, 40).Draw(t, "steps")
		for range n {
			switch rapid.SampledFrom([]string{"store", "store", "store", "remove", "remove", "clear"}).Draw(t, "op") {
			case "store":
				path := paths.Draw(t, "path")
				from := rapid.IntRange(0, e.prefix(path)).Draw(t, "from")
				if from == len(path) {
					from--
				}
				for i := from; i < len(path); i++ {
					e.copies[path[:i+1]]++
				}
				ev := eventplane.Event{Kind: eventplane.Stored, Blocks: blocksOf(path, from)}
				if from > 0 {
					ev.Parent, ev.HasParent = hashOf(path[:from]), true
				}
				p.Publish(ev)
			case "remove":
				var hashes []uint64
				for _, path := range slices.Sorted(maps.Keys(e.copies)) {
					if rapid.IntRange(0, 3).Draw(t, "drop") == 0 {
						hashes = append(hashes, hashOf(path))
						if e.copies[path]--; e.copies[path] == 0 {
							delete(e.copies, path)
						}
					}
				}
				if len(hashes) > 0 {
					p.Publish(eventplane.Event{Kind: eventplane.Removed, Hashes: hashes})
				}
			case "clear":
				clear(e.copies)
				p.Publish(eventplane.Event{Kind: eventplane.Cleared})
			}
			good.deliver(t)
			bad.deliver(t)
			late := newRouter(&p)
			if err := late.Join(); err != nil {
				t.Fatal(err)
			}
			for _, path := range append(slices.Collect(maps.Keys(e.copies)), "aaaaaa", "bbbbbb", "ababab") {
				want := e.prefix(path)
				for name, r := range map[string]*eventplanetest.Router{"heard": heard, "late": late} {
					if got := r.Match(tokensOf(path)...); got != want {
						t.Fatalf("router %s believes %d of %s, true is %d", name, got, path, want)
					}
				}
				if lossy.Last() == heard.Last() {
					if got := lossy.Match(tokensOf(path)...); got != want {
						t.Fatalf("the lossy router believes %d of %s, true is %d", got, path, want)
					}
				}
			}
			if late.Last() != heard.Last() {
				t.Fatalf("ids: late %d, heard %d", late.Last(), heard.Last())
			}
			if heard.Gaps > 0 || heard.Orphans > 0 || late.Orphans > 0 {
				t.Fatalf("%d gaps, %d and %d orphans", heard.Gaps, heard.Orphans, late.Orphans)
			}
			if stored := p.Counts().Blocks[eventplane.Device]; stored != len(e.copies) {
				t.Fatalf("%d blocks stored, true are %d", stored, len(e.copies))
			}
		}
	})
}

// sockets publishes to several.
type sockets []*wire

func (s sockets) Publish(frames ...[]byte) (dropped int) {
	for _, w := range s {
		dropped += w.Publish(frames...)
	}
	return dropped
}

// TestSteps says for single situations what is sent. A step is one event of the engine: +path stores the path's last block
// (+path/n its last n blocks), -path removes it, ! clears, ? loses events. What is sent is written the same way.
func TestSteps(t *testing.T) {
	for _, tc := range []struct{ name, steps, sent string }{
		{"a chain", "+abc/3 +abcd -abcd", "+abc/3 +abcd -abcd"},
		{"a second copy is no news", "+ab/2 +ab/2 -ab -ab", "+ab/2 -ab"},
		{"what is new of a chain", "+ab/2 +abcd/4", "+ab/2 +abcd/2"},
		{"unknown blocks are not removed", "-ab", ""},
		{"a block that waits for its parent", "+ab +a", "+a +ab"},
		{"a chain that waits", "+abcd/3 +a", "+a +abcd/3"},
		{"waiting blocks that go", "+abc/2 -abc +a", "-abc +a +ab"},
		{"the middle goes and comes back", "+abcde/5 -abc +abc", "+abcde/5 -abc +abc +abcde/2"},
		{"the middle comes back with its head gone", "+abc/3 -a -ab +ab +a", "+abc/3 -a -ab +a +abc/2"},
		{"branches come back", "+abc/3 +abd -ab +ab", "+abc/3 +abd -ab +ab +abd +abc"},
		{"cleared forgets copies and waiting blocks", "+a +a +xy ! +a -a +x", "+a ! +a -a +x"},
		{"cleared while empty", "!", "!"},
		{"after a loss the next removal counts", "+a +a ? -a", "+a -a"},
		{"after a loss the count begins anew", "+a +a ? +a -a", "+a -a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			names := map[uint64]string{}
			for step := range strings.FieldsSeq(tc.steps) {
				path, _, _ := strings.Cut(step[1:], "/")
				for i := range path {
					names[hashOf(path[:i+1])] = path[:i+1]
				}
			}
			sent := &scribe{names: names}
			p := newPublisher(sent)
			for step := range strings.FieldsSeq(tc.steps) {
				path, count, _ := strings.Cut(step[1:], "/")
				n := 1
				if count != "" {
					n = int(count[0] - '0')
				}
				switch step[0] {
				case '+':
					e := eventplane.Event{Kind: eventplane.Stored, Blocks: blocksOf(path, len(path)-n)}
					if n < len(path) {
						e.Parent, e.HasParent = hashOf(path[:len(path)-n]), true
					}
					p.Publish(e)
				case '-':
					p.Publish(eventplane.Event{Kind: eventplane.Removed, Hashes: []uint64{hashOf(path)}})
				case '!':
					p.Publish(eventplane.Event{Kind: eventplane.Cleared})
				case '?':
					p.Lost()
				}
			}
			if got := strings.Join(sent.steps, " "); got != tc.sent {
				t.Errorf("sent %q, want %q", got, tc.sent)
			}
		})
	}
}

// scribe writes down what is sent.
type scribe struct {
	names map[uint64]string
	steps []string
	last  uint64
}

func (s *scribe) Publish(frames ...[]byte) int {
	m, err := eventplanetest.DecodeMessage(frames)
	if err != nil {
		panic(err)
	}
	events, err := eventplanetest.DecodeEvents(m.Payload)
	if err != nil {
		panic(err)
	}
	for _, e := range events {
		if s.last++; e.ID != s.last {
			s.steps = append(s.steps, fmt.Sprintf("id %d", e.ID))
		}
		switch e.Kind {
		case eventplane.Stored:
			step := "+" + s.names[e.Blocks[len(e.Blocks)-1].Hash]
			if len(e.Blocks) > 1 {
				step += fmt.Sprintf("/%d", len(e.Blocks))
			}
			if want := len(step) - 1 - strings.Count(step, "/")*2 - len(e.Blocks); (want > 0) != e.HasParent {
				step += " with a wrong parent"
			}
			s.steps = append(s.steps, step)
		case eventplane.Removed:
			for _, hash := range e.Hashes {
				s.steps = append(s.steps, "-"+s.names[hash])
			}
		case eventplane.Cleared:
			s.steps = append(s.steps, "!")
		}
	}
	return 0
}

// FuzzPublish throws events of any shape at a publisher, circles and repetitions included: it must neither hang nor fall out of
// step with a router that hears everything, and a dump must be one that a router takes without losing a block.
func FuzzPublish(f *testing.F) {
	f.Add([]byte{0, 0, 1, 2, 3, 0, 1, 4})
	f.Add([]byte{0, 1, 1, 1, 1, 0, 2, 1, 2, 0, 1, 2, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		var p *eventplane.Publisher
		heard := newRouter(&p)
		w := &wire{router: heard}
		p = newPublisher(w)
		if err := heard.Join(); err != nil {
			t.Fatal(err)
		}
		next := func() byte {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return b
		}
		for len(in) > 0 {
			op := next()
			e := eventplane.Event{Tier: eventplane.Tier(op >> 4 & 3)}
			switch op & 7 {
			case 0, 1, 2, 3:
				e.HasParent, e.Parent = op&1 == 1, uint64(next()&15)
				for range next() & 7 {
					b := next()
					e.Blocks = append(e.Blocks, eventplane.Block{Hash: uint64(b & 15), TokensHash: uint64(b & 31)})
				}
			case 4, 5:
				e.Kind = eventplane.Removed
				for range next() & 7 {
					e.Hashes = append(e.Hashes, uint64(next()&15))
				}
			case 6:
				e.Kind = eventplane.Cleared
			case 7:
				p.Lost()
				continue
			}
			p.Publish(e)
			w.deliver(t)
		}
		late := newRouter(&p)
		if err := late.Join(); err != nil {
			t.Fatal(err)
		}
		if late.Orphans > 0 || heard.Gaps > 0 {
			t.Fatalf("%d events of the dump were lost, %d gaps", late.Orphans, heard.Gaps)
		}
	})
}
