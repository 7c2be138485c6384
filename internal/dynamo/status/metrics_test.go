package status

import (
	"bufio"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var worker = Identity{Namespace: "dynamo", Component: "backend", Endpoint: "generate", WorkerID: 0x4b465a663d442204, ModelID: "/models/tiny-1", Model: "tiny"}

// exposed is what /metrics says: the types by name, and each sample line with its value.
func exposed(t *testing.T, m *Metrics) (types map[string]string, samples map[string]string) {
	t.Helper()
	s := newServer(t, Config{Metrics: m.Handler()})
	r := ask(s, "GET", "/metrics")
	types, samples = map[string]string{}, map[string]string{}
	for line := range strings.Lines(r.body) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			types[name] = kind
		} else if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			samples[line[:i]] = line[i+1:]
		}
	}
	if r.code != 200 || !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") {
		t.Errorf("%d %v", r.code, r.header)
	}
	return types, samples
}

// fixture reads the recording of the Rust sidecar: lines "name type", then samples.
func fixture(t *testing.T) (types map[string]string, samples []string) {
	t.Helper()
	f, err := os.Open("testdata/sidecar-metrics-names.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	types = map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		name, kind, _ := strings.Cut(line, " ")
		if !strings.Contains(line, "{") && slices.Contains([]string{"counter", "gauge", "histogram"}, kind) {
			types[name] = kind
		} else {
			samples = append(samples, line[:strings.LastIndexByte(line, ' ')])
		}
	}
	return types, samples
}

// isOurs tells metrics that the Rust sidecar does not have.
func isOurs(name string) bool {
	return strings.HasPrefix(name, "remora_") || strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
}

func TestNamesTypesAndLabelsAreThoseOfTheRustSidecar(t *testing.T) {
	m := NewMetrics()
	recorded := worker
	recorded.Model = recorded.ModelID // the recorded engine served its model under the folder's name
	m.Bind(recorded)
	m.KVEvents("stored", 1, 1)
	gotTypes, gotSamples := exposed(t, m)
	wantTypes, wantSamples := fixture(t)
	maps.DeleteFunc(gotTypes, func(name, _ string) bool { return isOurs(name) })
	if diff := cmp.Diff(wantTypes, gotTypes); diff != "" {
		t.Errorf("names and types (-rust +ours):\n%s", diff)
	}
	if len(wantSamples) < 25 {
		t.Fatalf("only %d samples in the fixture", len(wantSamples))
	}
	for _, sample := range wantSamples {
		sample = strings.ReplaceAll(sample, "<id:x>", "4b465a663d442204")
		if _, ok := gotSamples[sample]; !ok {
			t.Errorf("no sample %s", sample)
		}
	}
	// And no sample of a Rust metric with other labels.
	labels := regexp.MustCompile(`([a-z_]+)="[^"]*"`)
	shape := func(sample string) string {
		name, rest, _ := strings.Cut(sample, "{")
		return name + strings.Join(labels.FindAllString(labels.ReplaceAllString(rest, `$1=""`), -1), ",")
	}
	known := map[string]bool{}
	for _, sample := range wantSamples {
		known[shape(sample)] = true
	}
	for sample := range gotSamples {
		if name, _, _ := strings.Cut(sample, "{"); !isOurs(name) && !strings.HasSuffix(name, "_bucket") && !known[shape(sample)] {
			t.Errorf("sample %s has labels that the Rust sidecar does not have", sample)
		}
	}
}

func TestBuckets(t *testing.T) {
	m := NewMetrics()
	m.Bind(worker)
	_, samples := exposed(t, m)
	for name, want := range map[string]string{
		"dynamo_component_request_duration_seconds":          "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 20 30 60 120 300 600 +Inf",
		"dynamo_work_handler_network_transit_seconds":        "0.0001 0.0005 0.001 0.005 0.01 0.05 0.1 0.5 1 +Inf",
		"dynamo_work_handler_permit_wait_seconds":            "0.0001 0.001 0.01 0.05 0.1 0.5 1 5 10 30 60 +Inf",
		"dynamo_work_handler_time_to_first_response_seconds": "0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 +Inf",
	} {
		var got []string
		for sample := range samples {
			if strings.HasPrefix(sample, name+"_bucket{") {
				_, rest, _ := strings.Cut(sample, `le="`)
				got = append(got, strings.TrimSuffix(rest, `"}`))
			}
		}
		wanted := strings.Fields(want)
		slices.Sort(got)
		slices.Sort(wanted)
		if !slices.Equal(got, wanted) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

const endpointLabels = `{dynamo_component="backend",dynamo_endpoint="generate",dynamo_namespace="dynamo",worker_id="4b465a663d442204"}`

func TestEveryCountArrives(t *testing.T) {
	m := NewMetrics()
	m.RequestStarted(100)
	m.RequestStarted(50)
	m.RequestStarted(0)
	m.RequestFailed(ErrorGenerate)
	m.RequestCancelled()
	m.RequestRejected(false)
	m.RequestRejected(true)
	m.NetworkTransit(-time.Second)
	m.NetworkTransit(2 * time.Second)
	m.FirstResponse(time.Second)
	m.ResponseBytes(7)
	m.EngineRequests(3)
	m.EngineRequests(-1)
	m.Queued(2)
	m.PermitWait(time.Second)
	m.PoolActive(4)
	m.SetCapacity(10000, 40000)
	m.SetModelLoadTime(1500 * time.Millisecond)
	m.SetCleanupTime(time.Second)
	m.SetDrainTime(2 * time.Second)
	m.RequestEnded(TerminalCancelled, 2*time.Second)
	m.RequestEnded(TerminalRefused, 0)
	m.DrainEnded(DrainNeverSubmitted, 30*time.Second)
	m.AbortSent()
	m.HandoffRefused("kind")
	m.Orphaned()
	m.SetEngineUp(true)
	m.EngineLost(LossSilent)
	m.Draining(3)
	m.Draining(-1)
	m.StampUnchecked()
	m.HandoffReleased(true)
	m.SetDiscoveryUp(false)
	m.DiscoveryLeaseLost()
	m.SetPlaneUp(false)
	m.PlaneReconnected()
	m.KVEventsUnusable("medium", 3)
	m.KVEvents("stored", 2, 1)
	m.KVEventsDropped(5)
	m.Bind(worker) // what was counted before is not lost
	_, samples := exposed(t, m)
	modelLabels := strings.Replace(endpointLabels, `,worker_id`, `,model="/models/tiny-1",model_name="tiny",worker_id`, 1)
	errorLabels := strings.Replace(endpointLabels, `,worker_id`, `,error_type="generate",worker_id`, 1)
	for sample, want := range map[string]string{
		"dynamo_component_requests_total" + endpointLabels:                 "3",
		"dynamo_component_request_bytes_total" + endpointLabels:            "150",
		"dynamo_component_response_bytes_total" + endpointLabels:           "7",
		"dynamo_component_cancellation_total" + endpointLabels:             "1",
		"dynamo_component_errors_total" + errorLabels:                      "1",
		"dynamo_component_inflight_requests" + endpointLabels:              "1",
		"dynamo_component_request_duration_seconds_sum" + endpointLabels:   "2",
		"dynamo_component_request_duration_seconds_count" + endpointLabels: "2",
		"dynamo_component_model_load_time_seconds" + modelLabels:           "1.5",
		"dynamo_component_cleanup_time_seconds" + modelLabels:              "1",
		"dynamo_component_drain_time_seconds" + modelLabels:                "2",
		`dynamo_component_kv_publisher_engines_dropped_events_total{dynamo_component="backend",dynamo_namespace="dynamo",worker_id="4b465a663d442204"}`: "5",
		"dynamo_engine_request":                                   "2",
		"dynamo_request_queue":                                    "2",
		"dynamo_rejection_request_total":                          "2",
		"dynamo_work_handler_enqueue_rejected_total":              "1",
		"dynamo_work_handler_network_transit_seconds_sum":         "2",
		"dynamo_work_handler_network_transit_seconds_count":       "2",
		"dynamo_work_handler_permit_wait_seconds_sum":             "1",
		"dynamo_work_handler_time_to_first_response_seconds_sum":  "1",
		"dynamo_work_handler_pool_active_tasks":                   "4",
		"dynamo_work_handler_pool_capacity":                       "10000",
		"dynamo_work_handler_queue_capacity":                      "40000",
		"dynamo_work_handler_queue_depth":                         "2",
		`remora_requests_terminal_total{terminal="cancelled"}`:    "1",
		`remora_requests_terminal_total{terminal="refused"}`:      "1",
		`remora_requests_terminal_total{terminal="finished"}`:     "0",
		`remora_requests_terminal_total{terminal="error"}`:        "0",
		`remora_drains_total{outcome="never_submitted"}`:          "1",
		`remora_drains_total{outcome="released"}`:                 "0",
		"remora_drain_seconds_sum":                                "30",
		"remora_aborts_sent_total":                                "1",
		`remora_handoffs_refused_total{reason="kind"}`:            "1",
		"remora_draining_requests":                                "2",
		"remora_orphans_total":                                    "1",
		"remora_engine_up":                                        "1",
		`remora_engine_losses_total{state="silent"}`:              "1",
		`remora_engine_losses_total{state="gone"}`:                "0",
		"remora_handoffs_unstamped_total":                         "1",
		`remora_handoff_releases_total{result="done"}`:            "1",
		"remora_discovery_up":                                     "0",
		"remora_discovery_lease_losses_total":                     "1",
		"remora_request_plane_up":                                 "0",
		"remora_request_plane_reconnects_total":                   "1",
		`remora_kv_engine_events_unusable_total{reason="medium"}`: "3",
		`dynamo_component_kv_publisher_zmq_events_total{dynamo_component="backend",dynamo_namespace="dynamo",event_type="stored",stage="accepted",worker_id="4b465a663d442204"}`: "1",
	} {
		if got := samples[sample]; got != want {
			t.Errorf("%s is %q, want %s", sample, got, want)
		}
	}
	m.SetEngineUp(false)
	if _, samples = exposed(t, m); samples["remora_engine_up"] != "0" {
		t.Error("the engine is still up")
	}
}

func TestEnumsHaveTheirWords(t *testing.T) {
	m := NewMetrics()
	m.Bind(worker)
	for e := ErrorDeserialization; e <= ErrorPublishFinal; e++ {
		m.RequestFailed(e)
	}
	for x := TerminalFinished; x <= TerminalRefused; x++ {
		m.RequestEnded(x, 0)
	}
	for o := DrainReleased; o <= DrainCut; o++ {
		m.DrainEnded(o, 0)
	}
	for _, reason := range handoffRefusals {
		m.HandoffRefused(reason)
	}
	m.HandoffReleased(true)
	m.HandoffReleased(false)
	for l := LossNotServing; l <= LossSilent; l++ {
		m.EngineLost(l)
	}
	_, samples := exposed(t, m)
	count := map[string]int{}
	for sample, value := range samples {
		name, _, _ := strings.Cut(sample, "{")
		if value == "1" {
			count[name]++
		}
	}
	for name, want := range map[string]int{
		"dynamo_component_errors_total": 7, "remora_requests_terminal_total": 4, "remora_drains_total": 8,
		"remora_handoffs_refused_total": len(handoffRefusals), "remora_handoff_releases_total": 2,
		"remora_engine_losses_total": 3,
	} {
		if count[name] != want {
			t.Errorf("%s has %d series at 1, want %d", name, count[name], want)
		}
	}
}

func TestBeforeBindOnlyTheProcessShows(t *testing.T) {
	types, _ := exposed(t, NewMetrics())
	for name := range types {
		if strings.HasPrefix(name, "dynamo_component_") {
			t.Errorf("%s is shown without an identity", name)
		}
	}
	if types["remora_engine_up"] != "gauge" || types["dynamo_work_handler_queue_depth"] != "gauge" {
		t.Error(types)
	}
}

func TestBindAgainReplacesTheIdentity(t *testing.T) {
	m := NewMetrics()
	m.Bind(worker)
	m.RequestStarted(1)
	again := worker
	again.WorkerID, again.ModelID, again.Model = 0xF, "/models/other", "other"
	m.Bind(again)
	_, samples := exposed(t, m)
	for sample := range samples {
		if strings.Contains(sample, "4b465a663d442204") || strings.Contains(sample, "tiny") {
			t.Errorf("the old identity is still there: %s", sample)
		}
	}
	if got := samples[strings.Replace(endpointLabels, "4b465a663d442204", "f", 1)]; got != "" {
		t.Error(got)
	}
	if got := samples["dynamo_component_requests_total"+strings.Replace(endpointLabels, "4b465a663d442204", "f", 1)]; got != "1" {
		t.Errorf("requests after the second Bind: %q", got)
	}
}

func TestUptime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMetrics()
		m.Bind(worker)
		time.Sleep(90 * time.Second)
		if _, samples := exposed(t, m); samples[`dynamo_component_uptime_seconds{worker_id="4b465a663d442204"}`] != "90" {
			t.Error(samples)
		}
	})
}

func TestMetricsUnderConcurrentUse(t *testing.T) {
	m := NewMetrics()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				m.RequestStarted(1)
				m.ResponseBytes(1)
				m.RequestEnded(TerminalFinished, time.Millisecond)
			}
		})
	}
	for range 10 {
		m.Bind(worker)
		exposed(t, m)
	}
	wg.Wait()
	if _, samples := exposed(t, m); samples["dynamo_component_requests_total"+endpointLabels] != "800" {
		t.Error(samples["dynamo_component_requests_total"+endpointLabels])
	}
}

func BenchmarkHotPath(b *testing.B) {
	m := NewMetrics()
	m.Bind(worker)
	b.ReportAllocs()
	for b.Loop() {
		m.ResponseBytes(100)
	}
}
