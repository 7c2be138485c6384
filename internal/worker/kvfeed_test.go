package worker

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/kvevents"
	"remora/internal/kvrelay"
	"remora/internal/memnet"
	"remora/internal/translate"
)

// diary is a store that notes what is done, in order.
type diary struct {
	discovery.Store

	entries []string
	values  map[string]string
}

func (d *diary) Create(ctx context.Context, bucket discovery.Bucket, key string, value []byte) error {
	d.entries = append(d.entries, "+"+string(bucket))
	d.values[string(bucket)+"/"+key] = string(value)
	return d.Store.Create(ctx, bucket, key, value)
}

func (d *diary) Delete(ctx context.Context, bucket discovery.Bucket, key string) error {
	d.entries = append(d.entries, "-"+string(bucket))
	return d.Store.Delete(ctx, bucket, key)
}

// feedWorker is a worker without an engine, as far as feeds need one. Its sockets are in memory.
func feedWorker(t *testing.T) (*worker, *diary, map[string]*memnet.Listener) {
	t.Helper()
	store := &diary{Store: new(discovery.Memory).Open(), values: map[string]string{}}
	sockets := map[string]*memnet.Listener{}
	w := &worker{
		id:      7542304613624184315,
		metrics: status.NewMetrics(),
		store:   store,
		log:     slog.New(slog.DiscardHandler),
		service: &service{translate: &translate.Engine{BlockSize: 16}},
		cfg: Config{
			Role: protocol.Prefill, Address: discovery.Address{Namespace: "dynamo", Component: "prefill", Endpoint: "generate"},
			Codec: protocol.MsgPack, DeviceType: discovery.DeviceCUDA, Host: "127.0.0.1",
			Listen: func(string, string) (net.Listener, error) {
				at := "127.0.0.1:" + strconv.Itoa(44469+len(sockets))
				sockets[at] = memnet.Listen(64 << 10)
				return addressed{sockets[at], at}, nil
			},
		},
	}
	return w, store, sockets
}

// TestFeedRecords compares with what the stock prefill sidecar has in discovery, the publisher's id aside.
func TestFeedRecords(t *testing.T) {
	w, store, _ := feedWorker(t)
	plane := tcpPlane{requestplane.NewServer(requestplane.ServerConfig{}), "127.0.0.1:36761"}
	defer plane.Close()
	f, err := w.openFeeds(plane, []kvevents.Source{{Rank: 0}})
	if err != nil {
		t.Fatal(err)
	}
	if len(store.entries) > 0 {
		t.Errorf("published before its time: %v", store.entries)
	}
	if err := f.publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := f.all[0].id
	if id == 0 || id > 1<<53-1 {
		t.Errorf("publisher id %d", id)
	}
	decimal, hexadecimal := strconv.FormatUint(id, 10), strconv.FormatUint(id, 16)
	got := map[string]string{}
	for key, value := range store.values {
		for _, s := range []*string{&key, &value} {
			*s = strings.ReplaceAll(strings.ReplaceAll(*s, hexadecimal, "120a2880136e83"), decimal, "5077718644518531")
		}
		got[key] = value
	}
	want := map[string]string{}
	for key, file := range map[string]string{
		"v1/event_channels/namespace/dynamo/component/prefill/endpoint/generate/topic/kv-events/120a2880136e83": "prefill-event_channels-kv-events.json",
		"v1/event_sources/namespace/dynamo/component/prefill/endpoint/generate/topic/kv-events/120a2880136e83":  "prefill-event_sources-kv-events.json",
		"v1/instances/dynamo/prefill/worker_kv_query_source_120a2880136e83/68aba615d2dbfdfb":                    "prefill-instances-kvquery.json",
	} {
		value, err := os.ReadFile("../dynamo/discovery/testdata/records/" + file)
		if err != nil {
			t.Fatal(err)
		}
		want[key] = strings.TrimSpace(string(value))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	f.close()
	order := "+v1/event_channels +v1/instances +v1/event_sources -v1/event_sources -v1/instances -v1/event_channels"
	if got := strings.Join(store.entries, " "); got != order {
		t.Errorf("order %s, want %s", got, order)
	}
	if err := store.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestTwoRanks have nothing in common but the worker.
func TestTwoRanks(t *testing.T) {
	w, store, _ := feedWorker(t)
	plane := tcpPlane{requestplane.NewServer(requestplane.ServerConfig{}), "127.0.0.1:36761"}
	defer plane.Close()
	f, err := w.openFeeds(plane, []kvevents.Source{{Rank: 4}, {Rank: 5}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(store.values) != 6 || f.all[0].id == f.all[1].id {
		t.Errorf("%d records, ids %d and %d", len(store.values), f.all[0].id, f.all[1].id)
	}
	for _, one := range f.all {
		r, err := discovery.DecodeEventSource([]byte(store.values["v1/event_sources/"+one.records[2].key]))
		if err != nil {
			t.Fatal(err)
		}
		source, err := discovery.DecodeKVSource(r.Metadata)
		if err != nil || source.Worker.DPRank != one.rank || source.Worker.WorkerID != w.id || source.PublisherID != one.id {
			t.Errorf("rank %d: %+v, %v", one.rank, source, err)
		}
	}
}

// TestQueryFrames: the stock sidecar's response to the query of a router that starts, frame by frame.
func TestQueryFrames(t *testing.T) {
	recorded, err := os.ReadFile("testdata/kv-recovery-query.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(recorded)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "hex="); ok {
			want = append(want, text)
		}
	}
	_, question, _ := strings.Cut(want[0], "86a9776f726b65725f6964") // its first key is worker_id
	body, err := hex.DecodeString("86a9776f726b65725f6964" + question)
	if err != nil {
		t.Fatal(err)
	}
	p := eventplane.NewPublisher(eventplane.Config{WorkerID: 7542304613624184315})
	in := &requestplane.Request{Body: body, Control: requestplane.Control{
		ID: "912f77ef-b750-4ee5-bc35-2c02b6bc17ae", Codec: protocol.MsgPack,
		Connection: requestplane.ConnectionInfo{Address: "127.0.0.1:35911", Subject: "6e0b4a9b-8417-470b-9a7d-e41c7d292b6e"},
	}}
	synctest.Test(t, func(t *testing.T) {
		near, far := memnet.Pipe(64 << 10)
		q := &queries{
			publisher: p, turns: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
			dialer: &requestplane.Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }},
		}
		if err := q.Admit(in); err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() { defer close(served); q.Serve(t.Context(), in) }()
		expected := strings.Join(want[2:], "") // without the request, its acknowledgement and the handshake
		got := make([]byte, 4096)
		read := 0
		for !strings.HasSuffix(hex.EncodeToString(got[:read]), hex.EncodeToString([]byte(`"sentinel"`))) {
			n, err := far.Read(got[read:])
			if err != nil {
				t.Fatalf("%v after %q", err, got[:read])
			}
			read += n
		}
		handshake := 24 + int(binary.BigEndian.Uint64(got))
		if frames := hex.EncodeToString(got[handshake:read]); frames != expected {
			t.Errorf("got  %s\nwant %s", frames, expected)
		}
		_ = far.Close()
		<-served
		if len(q.turns) != 0 {
			t.Error("its turn is not over")
		}
	})
}

// TestQueryOfADeafRouter: who does not read holds up the others for half a minute, and no longer.
func TestQueryOfADeafRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := eventplane.Event{Kind: eventplane.Stored}
		for i := range uint64(10_000) {
			e.Blocks = append(e.Blocks, eventplane.Block{Hash: i << 32, TokensHash: i << 32})
		}
		pub := eventplane.NewPublisher(eventplane.Config{WorkerID: 1, Socket: nowhere{}})
		pub.Publish(e)
		near, far := memnet.Pipe(1 << 10)
		q := &queries{
			publisher: pub, turns: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
			dialer: &requestplane.Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }},
		}
		began := time.Now()
		q.Serve(t.Context(), &requestplane.Request{Body: []byte{0x80}, Control: requestplane.Control{
			Codec: protocol.MsgPack, Connection: requestplane.ConnectionInfo{Address: "127.0.0.1:1"},
		}})
		if took := time.Since(began); took != queryPatience {
			t.Errorf("it took %v", took)
		}
		_, _ = io.Copy(io.Discard, far)
		_ = far.Close()
	})
}

// mute is a store that takes records and never answers that one is gone.
type mute struct{ discovery.Store }

func (mute) Delete(ctx context.Context, _ discovery.Bucket, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestFeedsEndWithoutTheStore: a store that does not answer holds up the end once, not once for each rank.
func TestFeedsEndWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, store, _ := feedWorker(t)
		w.store = mute{store}
		plane := tcpPlane{requestplane.NewServer(requestplane.ServerConfig{}), "127.0.0.1:36761"}
		defer plane.Close()
		sources := make([]kvevents.Source, 8)
		for i := range sources {
			sources[i].Rank = uint32(i)
		}
		f, err := w.openFeeds(plane, sources)
		if err != nil {
			t.Fatal(err)
		}
		if err = f.publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		f.close()
		if took := time.Since(began); took != cleanupTimeout {
			t.Errorf("it took %v", took)
		}
		if err := store.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestQueriesOfLingeringRouters: who has its answer and does not hang up keeps nobody else from asking, who leaves while it
// waits is forgotten, and there is a bound to all of them.
func TestQueriesOfLingeringRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pub := eventplane.NewPublisher(eventplane.Config{WorkerID: 1, Socket: nowhere{}})
		routers := make(chan net.Conn, queriesInside+1)
		q := &queries{
			publisher: pub, turns: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
			dialer: &requestplane.Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) {
				near, far := memnet.Pipe(64 << 10)
				routers <- far
				return near, nil
			}},
		}
		ask := func(body []byte) error {
			in := &requestplane.Request{Body: body, Control: requestplane.Control{
				Codec: protocol.MsgPack, Connection: requestplane.ConnectionInfo{Address: "127.0.0.1:1"},
			}}
			if err := q.Admit(in); err != nil {
				return err
			}
			go q.Serve(t.Context(), in)
			return nil
		}
		answer := func(router net.Conn) string {
			buf := make([]byte, 4<<10)
			n, err := router.Read(buf)
			if err != nil {
				t.Error(err)
			}
			return string(buf[:n])
		}
		began := time.Now()
		for range queriesInside {
			if err := ask([]byte{0x80}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		var refusal *requestplane.Refusal
		if err := ask([]byte{0x80}); !errors.As(err, &refusal) || !refusal.Overloaded {
			t.Errorf("one more than there is room for: %v", err)
		}
		for range queriesInside {
			if got := answer(<-routers); !strings.Contains(got, "sentinel") {
				t.Fatalf("no whole answer: %q", got)
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("the last answer came after %v", time.Since(began))
		}
		time.Sleep(time.Minute) // longer than anybody lingers
		synctest.Wait()
		if n := q.inside.Load(); n != 0 {
			t.Errorf("%d are inside after all have their answer", n)
		}

		q.turns <- struct{}{} // somebody else's
		if err := ask([]byte{0x80}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_ = (<-routers).Close()
		synctest.Wait()
		if n := q.inside.Load(); n != 0 {
			t.Error("a router that left still waits for its turn")
		}
		<-q.turns

		if err := ask(make([]byte, maxQuery+1)); err != nil {
			t.Fatal(err)
		}
		router := <-routers
		synctest.Wait()
		if got := answer(router); !strings.Contains(got, "question about KV events") {
			t.Errorf("a question that is too long: %q", got)
		}
		_ = router.Close()
	})
}

type nowhere struct{}

func (nowhere) Publish(...[]byte) int { return 0 }

// TestAnotherEnginesEvents: what an engine held is void when another one takes its place, and ids go on.
func TestAnotherEnginesEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, store, _ := feedWorker(t)
		plane := tcpPlane{requestplane.NewServer(requestplane.ServerConfig{}), "127.0.0.1:36761"}
		defer plane.Close()
		sources := []kvevents.Source{{Rank: 0}}
		f, err := w.openFeeds(plane, sources)
		if err != nil {
			t.Fatal(err)
		}
		if f.fits(sources[:0]) || f.fits([]kvevents.Source{{Rank: 1}}) || !f.fits(sources) {
			t.Error("other ranks fit")
		}
		f.follow("one", sources)
		p := f.all[0].publisher
		p.Publish(eventplane.Event{Kind: eventplane.Stored, Blocks: []eventplane.Block{{Hash: 1, TokensHash: 1}}})
		f.follow("one", sources)
		if c := p.Counts(); c.LastEvent != 1 || c.Blocks[0] != 1 {
			t.Errorf("the same engine: %+v", c)
		}
		f.follow("two", sources)
		if c := p.Counts(); c.LastEvent != 2 || c.Cleared != 1 || c.Blocks[0] != 0 {
			t.Errorf("another engine: %+v", c)
		}
		f.follow("", sources)
		f.follow("", sources)
		if c := p.Counts(); c.LastEvent != 4 {
			t.Errorf("engines that have no id may be others: %+v", c)
		}
		if r := f.ranks(); len(r) != 1 || r[0].Cleared != 3 || r[0].LastEvent != 4 {
			t.Errorf("%+v", r)
		}
		f.close()
		if err := store.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestEventsAreCounted under the Rust sidecar's names: those that came, those that concern routers, and those that never came.
func TestEventsAreCounted(t *testing.T) {
	metrics := status.NewMetrics()
	metrics.Bind(status.Identity{Namespace: "n", Component: "c", Endpoint: "e", WorkerID: 1})
	p := eventplane.NewPublisher(eventplane.Config{Socket: nowhere{}})
	c := &counted{Relay: kvrelay.New(kvrelay.Config{BlockSize: 2}, p), metrics: metrics}
	c.Batch(&kvevents.Batch{Events: []kvevents.Event{
		{Kind: kvevents.Stored, Hashes: []uint64{1}, Tokens: []uint32{1, 2}, BlockSize: 2},
		{Kind: kvevents.Stored, Hashes: []uint64{2}, Tokens: []uint32{1, 2}, BlockSize: 2, Medium: "a shelf"},
		{Kind: kvevents.Stored, Hashes: []uint64{3}, Tokens: []uint32{1, 2, 3}, BlockSize: 3},
		{Kind: kvevents.Removed, Hashes: []uint64{1}},
	}})
	c.Batch(&kvevents.Batch{Events: []kvevents.Event{{Kind: kvevents.Cleared}}})
	c.Gap(3, "for a test")
	recorder := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`event_type="stored",stage="received",worker_id="1"} 3`, `event_type="stored",stage="accepted",worker_id="1"} 1`,
		`event_type="removed",stage="accepted",worker_id="1"} 1`, `event_type="cleared",stage="received",worker_id="1"} 1`,
		`kv_publisher_engines_dropped_events_total{dynamo_component="c",dynamo_namespace="n",worker_id="1"} 3`,
		`remora_kv_engine_events_unusable_total{reason="medium"} 1`, `remora_kv_engine_events_unusable_total{reason="block_size"} 1`,
	} {
		if !strings.Contains(recorder.Body.String(), want) {
			t.Errorf("%s is missing", want)
		}
	}
	if n := p.Counts(); n.Stored != 1 || n.Removed != 1 || n.Cleared != 1 || n.Lost != 1 {
		t.Errorf("%+v", n)
	}
}
