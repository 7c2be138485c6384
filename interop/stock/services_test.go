package stock

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"remora/interop/harness"
)

const (
	discoveryUp = "remora_discovery_up"
	leasesLost  = "remora_discovery_lease_losses_total"
	planeUp     = "remora_request_plane_up"
	reconnects  = "remora_request_plane_reconnects_total"
)

// onServices is a deployment with its services.
type onServices struct {
	*deployment

	etcd *harness.Etcd
	nats *harness.NATS // nil: over TCP
}

// withServices makes a deployment on etcd, and on NATS where that is wanted, without workers.
func withServices(t *testing.T, overNATS bool) *onServices {
	t.Helper()
	s := &onServices{deployment: &deployment{Cluster: harness.NewCluster(t)}, etcd: harness.StartEtcd(t)}
	s.UseEtcd(s.etcd)
	if overNATS {
		s.nats = harness.StartNATS(t)
		s.UseNATS(s.nats)
	}
	return s
}

// planes runs a test over both request planes.
func planes(t *testing.T, test func(t *testing.T, overNATS bool)) {
	t.Helper()
	t.Run("TCP", func(t *testing.T) { test(t, false) })
	t.Run("NATS", func(t *testing.T) { test(t, true) })
}

func (s *onServices) front(t *testing.T) {
	t.Helper()
	s.Frontend = s.Cluster.Frontend(t)
	s.WaitServing(t, model)
}

// waitMetric waits for a worker's metric.
func waitMetric(t *testing.T, s *harness.Sidecar, name string, want float64) {
	t.Helper()
	harness.Poll(t, s.Name+"'s "+name, 30*time.Second, func() error {
		if got := s.Status.Metrics(t)[name]; got != want {
			return fmt.Errorf("%s = %v, want %v", name, got, want)
		}
		return nil
	})
}

// registered waits until a worker's instance is in etcd, which comes last, and gives all keys.
func (s *onServices) registered(t *testing.T) map[string]harness.Key {
	t.Helper()
	harness.Poll(t, "the instance record", 30*time.Second, func() error { // Rust's status server is ahead of it
		if len(s.etcd.Keys(t, "v1/instances/dynamo/backend/generate/")) == 0 {
			return errors.New("not there")
		}
		return nil
	})
	return s.etcd.Keys(t, "v1/")
}

// waitKeys waits until etcd holds exactly these keys of workers.
func (s *onServices) waitKeys(t *testing.T, want map[string]harness.Key) {
	t.Helper()
	harness.Poll(t, fmt.Sprintf("%d keys", len(want)), 30*time.Second, func() error {
		if got := s.etcd.Keys(t, "v1/"); !maps.Equal(got, want) {
			return fmt.Errorf("etcd has %v\nwant %v", got, want)
		}
		return nil
	})
}

// TestServicesAnswer wants aggregated workers of both kinds to answer alike, and Remora's to be as good as ever.
func TestServicesAnswer(t *testing.T) {
	planes(t, func(t *testing.T, overNATS bool) {
		s := withServices(t, overNATS)
		s.add(t, harness.Remora, harness.Aggregated, harness.StartSim(t))
		s.front(t)
		answers(t, s.Frontend)
	})
}

// TestServicesPair wants hand-offs to work over etcd and NATS, in front of every pair of kinds, and a client that leaves to
// leave nothing behind: the kill comes by TCP.
func TestServicesPair(t *testing.T) {
	planes(t, func(t *testing.T, overNATS bool) {
		for _, k := range kinds[1:3] { // both Remora's, and one of each
			t.Run(k.name, func(t *testing.T) {
				s := withServices(t, overNATS)
				s.add(t, k.prefill, harness.Prefill, harness.StartSim(t))
				s.add(t, k.decode, harness.Decode, harness.StartSim(t))
				s.front(t)
				pulled := s.sims[1].Metrics(t)[harness.KVPulled]
				good(t, s.Frontend, prompt(story[:700]))
				if now := s.sims[1].Metrics(t)[harness.KVPulled]; now <= pulled {
					t.Error("the decode engine pulled nothing")
				}
				t.Run("client leaves in mid-stream", func(t *testing.T) { leaveMidStream(t, s.deployment) })
				t.Run("client leaves before the first token", func(t *testing.T) { leaveFrozen(t, s.deployment, 1) })
			})
		}
	})
}

// TestEtcdRecordsLikeRust compares all keys and values of workers of both kinds, field by field, in the same etcd.
func TestEtcdRecordsLikeRust(t *testing.T) {
	planes(t, func(t *testing.T, overNATS bool) {
		s := withServices(t, overNATS)
		engine := harness.StartSim(t)
		seen := map[harness.Kind]map[string]any{}
		for _, kind := range []harness.Kind{harness.Rust, harness.Remora} {
			worker := s.Cluster.Sidecar(t, kind, harness.Aggregated, engine)
			seen[kind] = s.records(t)
			worker.Signal(syscall.SIGTERM)
			worker.WaitExit(t, harness.Grace)
			if left := s.etcd.Keys(t, ""); len(left) > 0 {
				t.Errorf("%s left %v", kind, left)
			}
		}
		for key, want := range seen[harness.Rust] {
			if comparedElsewhere(key) {
				continue
			}
			got, ok := seen[harness.Remora][key]
			if !ok {
				t.Errorf("Remora has no %s", key)
				continue
			}
			same(t, key, want, got)
		}
		for key := range seen[harness.Remora] {
			if _, ok := seen[harness.Rust][key]; !ok && !comparedElsewhere(key) {
				t.Errorf("Rust has no %s", key)
			}
		}
	})
}

// comparedElsewhere: records of the event plane, whose names are random; these tests are about the worker's own.
func comparedElsewhere(key string) bool {
	return strings.HasPrefix(key, "v1/event_") || strings.Contains(key, "/worker_kv_query_source_")
}

// records gives what a single worker has in etcd, without its id and ports, and checks that id and lease are one.
func (s *onServices) records(t *testing.T) map[string]any {
	t.Helper()
	records := map[string]any{}
	for key, at := range s.registered(t) {
		id := strconv.FormatInt(at.Lease, 16)
		if at.Lease == 0 || !strings.HasPrefix(key, "v1/event_") && !strings.HasSuffix(key, "/"+id) {
			t.Errorf("key %s has lease %s", key, id)
		}
		text := strings.ReplaceAll(strings.ReplaceAll(at.Value, id, "<id>"), strconv.FormatInt(at.Lease, 10), "0")
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		records[strings.ReplaceAll(key, id, "<id>")] = value
	}
	return records
}

// same compares values, leaving out where a listener is.
func same(t *testing.T, where string, want, got any) {
	t.Helper()
	object, ok := want.(map[string]any)
	if !ok {
		if text, isText := want.(string); isText && strings.Contains(text, "127.0.0.1:") || reflect.DeepEqual(want, got) {
			return
		}
		t.Errorf("%s: Rust %v, Remora %v", where, want, got)
		return
	}
	other, _ := got.(map[string]any)
	for key, value := range object {
		same(t, where+"."+key, value, other[key])
	}
	for key := range other {
		if _, ok := object[key]; !ok {
			t.Errorf("%s.%s: only Remora has it", where, key)
		}
	}
}

// TestEtcdRestarts wants a worker to go on while etcd is away, a running answer to end well, and the worker to have the same
// records afterwards.
func TestEtcdRestarts(t *testing.T) {
	s := withServices(t, false)
	worker := s.add(t, harness.Remora, harness.Aggregated, harness.StartSim(t))
	s.front(t)
	before := s.registered(t)
	running := s.Open(t, harness.Request{Model: model, Prompt: "go on", MaxTokens: 400})
	running.ReadChunks(t, 3)
	s.etcd.Kill()
	waitMetric(t, worker, discoveryUp, 0)
	running.ReadAll(t)
	if running.Finish != "length" {
		t.Errorf("the running answer: %+v", running.Answer)
	}
	s.etcd.Restart(t)
	waitMetric(t, worker, discoveryUp, 1)
	good(t, s.Frontend, prompt("back"))
	s.waitKeys(t, before)
	if n := worker.Status.Metrics(t)[leasesLost]; n != 0 {
		t.Errorf("%v leases lost", n)
	}
}

// TestEtcdForgets takes a worker's lease away, and then all of etcd's data: the same worker comes back, under the same id, and
// a frontend that saw it go serves with it again.
func TestEtcdForgets(t *testing.T) {
	planes(t, func(t *testing.T, overNATS bool) {
		s := withServices(t, overNATS)
		worker := s.add(t, harness.Remora, harness.Aggregated, harness.StartSim(t))
		s.front(t)
		before := s.registered(t)
		for _, at := range before {
			s.etcd.Revoke(t, at.Lease)
			break
		}
		s.WaitGone(t, model, 10*time.Second)
		waitMetric(t, worker, leasesLost, 1)
		s.WaitServing(t, model)
		s.waitKeys(t, before)

		s.etcd.Kill()
		s.etcd.StartAnew(t)
		waitMetric(t, worker, leasesLost, 2)
		s.waitKeys(t, before)
		later := s.Cluster.Frontend(t) // the first one does not outlive its lease
		later.WaitServing(t, model)
	})
}

// TestEtcdWorkerKilled wants the records of a worker that is killed to end with its lease, and not before a while.
func TestEtcdWorkerKilled(t *testing.T) {
	s := withServices(t, true)
	s.Setenv("ETCD_LEASE_TTL=3")
	worker := s.add(t, harness.Remora, harness.Aggregated, harness.StartSim(t))
	before := s.registered(t)
	worker.Stop(harness.AtOnce)
	if now := s.etcd.Keys(t, "v1/"); len(now) != len(before) {
		t.Errorf("the records went with the process: %v", now)
	}
	s.waitKeys(t, map[string]harness.Key{})
}

// TestEtcdLate starts a worker before etcd and NATS: it waits for them, says so, and serves.
func TestEtcdLate(t *testing.T) {
	s := withServices(t, true)
	s.etcd.Kill()
	s.nats.Kill()
	engine := harness.StartSim(t)
	worker := s.Cluster.StartSidecar(t, harness.Remora, harness.Aggregated, engine.GRPCPort())
	worker.WaitLog(t, "etcd can't be reached yet", 30*time.Second)
	if _, err := worker.Status.Get(t.Context(), "/live"); err != nil {
		t.Errorf("the status server: %v", err)
	}
	s.etcd.Restart(t)
	worker.WaitLog(t, "the NATS server can't be reached yet", 30*time.Second)
	s.nats.Restart(t)
	worker.WaitReady(t)
	s.front(t)
}

// TestNATSRestarts wants a running answer to go on while NATS is away, its client to be able to leave, and new requests to be
// served when it is back.
func TestNATSRestarts(t *testing.T) {
	s := withServices(t, true)
	worker := s.add(t, harness.Remora, harness.Aggregated, harness.StartSim(t))
	s.front(t)
	running := s.Open(t, harness.Request{Model: model, Prompt: "go on", MaxTokens: 200})
	running.ReadChunks(t, 3)
	leaving := s.Open(t, endless("leave"))
	leaving.ReadChunks(t, 3)
	s.nats.Kill()
	waitMetric(t, worker, planeUp, 0)
	running.ReadAll(t)
	if running.Finish != "length" {
		t.Errorf("the running answer: %+v", running.Answer)
	}
	leaving.Close()
	harness.WaitSettled(t, s.engines, worker)
	s.nats.Restart(t)
	waitMetric(t, worker, planeUp, 1)
	if n := worker.Status.Metrics(t)[reconnects]; n != 1 {
		t.Errorf("%v reconnects", n)
	}
	s.WaitServing(t, model)
}

// TestNATSRefusals wants what a worker says when it is full or stops to have the status that it has over TCP.
func TestNATSRefusals(t *testing.T) {
	s := withServices(t, true)
	s.Setenv("DYN_ENGINE_REQUEST_LIMIT=1", "DYN_DYNAMO_REQUEST_QUEUE_LIMIT=0")
	worker := s.add(t, harness.Remora, harness.Aggregated, harness.StartSim(t))
	s.front(t)
	running := s.Open(t, endless("fill"))
	running.ReadChunks(t, 1)
	if a := s.Ask(t, prompt("one too many")); a.Status != 529 {
		t.Errorf("a full worker: %d %s", a.Status, a.Body)
	}
	worker.Signal(syscall.SIGTERM)
	s.WaitGone(t, model, 10*time.Second)
	running.Close()
	if code := worker.WaitExit(t, harness.Grace); code != 0 {
		t.Errorf("status %d", code)
	}
	if left := s.etcd.Keys(t, ""); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}
