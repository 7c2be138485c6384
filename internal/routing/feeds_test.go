package routing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/kvevents"
	"remora/internal/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary is a store that notes what is done.
type diary struct {
	discovery.Store

	entries []string          // in order
	values  map[string]string // what there is now
}

func (d *diary) Create(ctx context.Context, bucket discovery.Bucket, key string, value []byte) error {
	d.entries = append(d.entries, "+"+string(bucket))
	d.values[string(bucket)+"/"+key] = string(value)
	return d.Store.Create(ctx, bucket, key, value)
}

func (d *diary) Delete(ctx context.Context, bucket discovery.Bucket, key string) error {
	d.entries = append(d.entries, "-"+string(bucket))
	delete(d.values, string(bucket)+"/"+key)
	return d.Store.Delete(ctx, bucket, key)
}

// testConfig is a prefill worker with a store that notes what is done. Its sockets are in memory.
func testConfig(t *testing.T) (Config, *diary) {
	t.Helper()
	store := &diary{Store: new(discovery.Memory).Open(), values: map[string]string{}}
	plane := requestplane.NewServer(requestplane.ServerConfig{})
	t.Cleanup(plane.Close)
	metrics := status.NewMetrics()
	metrics.Bind(status.Identity{Namespace: "n", Component: "c", Endpoint: "e", WorkerID: 1})
	port := 44469
	return Config{
		Instance: discovery.Instance{
			Namespace: "dynamo", Component: "prefill", Endpoint: "generate", InstanceID: 7542304613624184315,
			DeviceType: discovery.DeviceCUDA, RequestPlaneCodec: discovery.CodecMsgPack,
		},
		Store: store,
		Attach: func(a discovery.Address, id uint64, h requestplane.Handler) (discovery.Transport, error) {
			plane.Handle(a.Path(id), h)
			return discovery.Transport{TCP: a.TCP("127.0.0.1:36761", id)}, nil
		},
		Listen: func() (net.Listener, string, error) {
			at := fmt.Sprintf("127.0.0.1:%d", port)
			port++
			return memnet.Listen(64 << 10), at, nil
		},
		Metrics: metrics, Log: slog.New(slog.DiscardHandler), BlockSize: 16,
		Requests: func(func(Request) bool) {},
	}, store
}

// TestFeedRecords compares with what the stock prefill sidecar has in discovery, the publisher's id aside.
func TestFeedRecords(t *testing.T) {
	cfg, store := testConfig(t)
	f, err := newFeeds(cfg, []kvevents.Source{{Rank: 0}})
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
	f.Close()
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
	cfg, store := testConfig(t)
	f, err := newFeeds(cfg, []kvevents.Source{{Rank: 4}, {Rank: 5}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
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
		if err != nil || source.Worker.DPRank != one.rank || source.Worker.WorkerID != cfg.Instance.InstanceID || source.PublisherID != one.id {
			t.Errorf("rank %d: %+v, %v", one.rank, source, err)
		}
	}
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
		cfg, store := testConfig(t)
		cfg.Store = mute{store}
		sources := make([]kvevents.Source, 8)
		for i := range sources {
			sources[i].Rank = uint32(i)
		}
		f, err := newFeeds(cfg, sources)
		if err != nil {
			t.Fatal(err)
		}
		if err = f.publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		f.Close()
		if took := time.Since(began); took != withdrawTimeout {
			t.Errorf("it took %v", took)
		}
		if err := store.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestAnotherEnginesEvents: what an engine held is void when another one takes its place, and ids go on.
func TestAnotherEnginesEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, store := testConfig(t)
		sources := []kvevents.Source{{Rank: 0}}
		f, err := Open(t.Context(), cfg, "one", sources)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range [][]kvevents.Source{nil, {{Rank: 1}}, {{Rank: 0}, {Rank: 1}}} {
			if err := f.Follow("one", other); !errors.Is(err, ErrOtherRanks) {
				t.Errorf("sources %v: %v", other, err)
			}
		}
		follow := func(engine string) {
			if err := f.Follow(engine, sources); err != nil {
				t.Error(err)
			}
		}
		p := f.all[0].publisher
		p.Publish(eventplane.Event{Kind: eventplane.Stored, Blocks: []eventplane.Block{{Hash: 1, TokensHash: 1}}})
		follow("one")
		if c := p.Counts(); c.LastEvent != 1 || c.Blocks[0] != 1 {
			t.Errorf("the same engine: %+v", c)
		}
		follow("two")
		if c := p.Counts(); c.LastEvent != 2 || c.Cleared != 1 || c.Blocks[0] != 0 {
			t.Errorf("another engine: %+v", c)
		}
		follow("")
		follow("")
		if c := p.Counts(); c.LastEvent != 4 {
			t.Errorf("engines that have no id may be others: %+v", c)
		}
		if r := f.ranks(); len(r) != 1 || r[0].routers.Cleared != 3 || r[0].routers.LastEvent != 4 {
			t.Errorf("%+v", r)
		}
		f.Close()
		if err := store.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// full is a store that takes so many records.
type full struct {
	discovery.Store

	room int
}

func (f *full) Create(ctx context.Context, bucket discovery.Bucket, key string, value []byte) error {
	if f.room--; f.room < 0 {
		return errors.New("full")
	}
	return f.Store.Create(ctx, bucket, key, value)
}

// TestOpen publishes three records a rank and one of the load, and leaves none behind, however far it came.
func TestOpen(t *testing.T) {
	const all = 2*3 + 1
	for room := range all + 1 {
		t.Run(strconv.Itoa(room), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, store := testConfig(t)
				cfg.Store = &full{store, room}
				f, err := Open(t.Context(), cfg, "one", []kvevents.Source{{Rank: 0}, {Rank: 1}})
				if (err == nil) != (room == all) {
					t.Errorf("room for %d: %v", room, err)
				}
				if err == nil {
					f.Close()
				}
				if len(store.values) > 0 {
					t.Errorf("left behind: %v", store.values)
				}
				if err := store.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
