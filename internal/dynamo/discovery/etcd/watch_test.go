package etcd

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"remora/internal/dynamo/discovery"
)

func expect(t *testing.T, events <-chan discovery.Event, want ...string) {
	t.Helper()
	for _, w := range want {
		got := "closed"
		select {
		case e, open := <-events:
			if open {
				got = fmt.Sprintf("%d %s %s", e.Kind, e.Key, e.Value)
			}
		case <-time.After(time.Minute): // a bound on a broken test, never reached otherwise
			got = "nothing"
		}
		if got != w {
			t.Fatalf("got %q, want %q", got, w)
		}
	}
}

// TestWatch: a snapshot, changes, an outage with changes in it, a history that is compacted away, unreadable values, the end.
// Not in a bubble: the etcd client waits on a channel of its package as long as it watches.
func TestWatch(t *testing.T) {
	f := new(fake)
	f.forget()
	f.start()
	defer f.stop()
	s, _ := opened(t, f)
	events, err := s.Watch(t.Context(), discovery.Instances)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, events, `0 n/c/e/1a2b {"i":1}`)
	put := func(key, value string) { f.set(func(f *fake) { _ = f.write("v1/instances/"+key, []byte(value), 0) }) }
	remove := func(key string) { f.set(func(f *fake) { _ = f.write("v1/instances/"+key, nil, 0) }) }
	put("a", `{"a":1}`)
	put("b", `not JSON`)
	f.set(func(f *fake) { _ = f.write("v1/instances_of_others/x", []byte(`{}`), 0) })
	put("c", `{"c":1}`)
	expect(t, events, `0 a {"a":1}`, `0 c {"c":1}`)
	remove("c")
	remove("b")
	expect(t, events, `1 c `)

	f.stop()
	put("d", `{"d":1}`)
	f.start()
	expect(t, events, `0 d {"d":1}`)

	f.stop()
	remove("a")
	put("d", `{"d":2}`)
	f.set(func(f *fake) { f.compact = f.revision + 1 })
	f.start()
	expect(t, events, `0 d {"d":2}`, `1 a `)

	if err = s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for range events {
	}
	if _, err = s.Watch(t.Context(), discovery.Instances); err == nil {
		t.Error("a closed store watches")
	}
}

// TestWatchMerges: what a reader has not taken is one event a key, in the order of the first change.
func TestWatchMerges(t *testing.T) {
	w := &watch{
		prefix: "p/", log: slog.New(slog.DiscardHandler), shown: make(map[string][]byte), pending: make(map[string]discovery.Event),
	}
	put := func(key, value string) { w.put(&mvccpb.KeyValue{Key: []byte("p/" + key), Value: []byte(value)}) }
	for range 100 {
		put("a", `{"n":1}`)
		put("b", `{"n":1}`)
		put("a", `{"n":2}`)
		w.removed("b")
		w.removed("c")
	}
	if len(w.order) != 2 || len(w.pending) != 2 || string(w.pending["a"].Value) != `{"n":2}` || w.pending["b"].Kind != discovery.Removed {
		t.Errorf("%v %v", w.order, w.pending)
	}
}
