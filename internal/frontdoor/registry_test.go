package frontdoor

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
)

func TestReadCard(t *testing.T) {
	base := `"display_name":"m","model_input":"Tokens","model_type":"Chat | Completions"`
	for _, tc := range []struct {
		card, err string
		role      protocol.Role
		context   uint32
	}{
		{card: `{` + base + `}`, role: protocol.Aggregated},
		{card: `{` + base + `,"worker_type":null}`, role: protocol.Aggregated},
		{card: `{"display_name":"m","model_input":"Tokens","model_type":"Prefill"}`, role: protocol.Prefill},
		{card: `{` + base + `,"worker_type":"decode","needs":[["prefill"]]}`, role: protocol.Decode},
		{card: `{` + base + `,"architectural_max_context_length":9}`, context: 9},
		{card: `{` + base + `,"architectural_max_context_length":9,"runtime_config":{"context_length":7}}`, context: 7},
		{card: `{` + base + `,"worker_type":"router"}`, err: `unknown worker type "router"`},
		{card: `{` + base + `,"needs":[["router"]]}`, err: `unknown worker type "router"`},
		{card: `{"model_input":"Tokens"}`, err: "without display_name"},
		{card: `{"display_name":"m","model_input":"Text"}`, err: `"Text" as input`},
		{card: `{"display_name":1}`, err: "read the card"},
	} {
		c, err := readCard([]byte(tc.card))
		switch {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want %q", tc.card, err, tc.err)
			}
		case err != nil || c.role != tc.role || c.maxModel != tc.context:
			t.Errorf("%s: %+v, %v", tc.card, c, err)
		}
	}
}

// A model is ready when every registered role has a live instance; records are given as namespace/role/id, with "-" for a
// model record without an instance, "+" for an instance without a model record.
func TestReadiness(t *testing.T) {
	for _, tc := range []struct {
		records string
		front   []uint64 // nil: not ready
		prefill []uint64
	}{
		{"", nil, nil},
		{"a/aggregated/1", []uint64{1}, nil},
		{"a/aggregated/1 a/aggregated/2", []uint64{1, 2}, nil},
		{"a/aggregated/1 a/aggregated/2-", []uint64{1}, nil},
		{"a/aggregated/1-", nil, nil},
		{"a/aggregated/1+", nil, nil},
		{"a/aggregated/1- a/aggregated/2+", nil, nil},
		{"a/prefill/1", nil, nil},
		{"a/decode/1", nil, nil},
		{"a/prefill/1 a/decode/2", []uint64{2}, []uint64{1}},
		{"a/prefill/1- a/decode/2", nil, nil},
		{"a/prefill/1 a/decode/2-", nil, nil},
		{"a/prefill/1 a/decode/2 a/decode/3", []uint64{2, 3}, []uint64{1}},
		{"a/prefill/1 b/decode/2", nil, nil},
		{"a/prefill/1 b/aggregated/2", []uint64{2}, nil},
		{"b/aggregated/1 a/aggregated/2", []uint64{2}, nil},
		{"a/prefill/1 a/decode/2 a/aggregated/3-", nil, nil},
		{"a/encode/1", nil, nil},
	} {
		r := newRegistry(nil, openDoor(t, nil).server.config.Log)
		for record := range strings.FieldsSeq(tc.records) {
			var namespace, word string
			var id uint64
			parts := strings.Split(record, "/")
			namespace, word = parts[0], parts[1]
			if _, err := fmt.Sscanf(parts[2], "%d", &id); err != nil {
				t.Fatal(err)
			}
			role, err := parseRole(word)
			if err != nil {
				t.Fatal(err)
			}
			a := address(role)
			a.Namespace = namespace
			if !strings.HasSuffix(record, "+") {
				value, err := discovery.Model{
					Namespace: namespace, Component: a.Component, Endpoint: a.Endpoint, InstanceID: id, Card: []byte(cardOf(role)),
				}.Encode()
				if err != nil {
					t.Fatal(err)
				}
				r.model(discovery.Event{Key: a.Key(id), Value: value})
			}
			if !strings.HasSuffix(record, "-") {
				value, err := discovery.Instance{
					Namespace: namespace, Component: a.Component, Endpoint: a.Endpoint, InstanceID: id,
					Transport: discovery.Transport{TCP: a.TCP("127.0.0.1:1", id)},
				}.Encode()
				if err != nil {
					t.Fatal(err)
				}
				r.instance(discovery.Event{Key: a.Key(id), Value: value})
			}
		}
		table := r.build()
		var front, prefill []uint64
		if s := table.served["tiny"]; s != nil && s.ready {
			for _, w := range s.front {
				front = append(front, w.ID)
			}
			for _, w := range s.prefill {
				prefill = append(prefill, w.ID)
			}
		}
		if !slices.Equal(front, tc.front) || !slices.Equal(prefill, tc.prefill) || (len(table.ready()) > 0) != (front != nil) {
			t.Errorf("%q: front %v, prefill %v, ready %v", tc.records, front, prefill, table.ready())
		}
	}
}

func TestNeedsAreMetByOneAlternative(t *testing.T) {
	live := map[protocol.Role][]Instance{protocol.Aggregated: {{ID: 1}}, protocol.Prefill: nil}
	for _, tc := range []struct {
		needs [][]protocol.Role
		met   bool
	}{
		{nil, true},
		{[][]protocol.Role{{protocol.Aggregated}}, true},
		{[][]protocol.Role{{protocol.Prefill}}, false},
		{[][]protocol.Role{{protocol.Prefill, protocol.Decode}, {protocol.Aggregated}}, true},
		{[][]protocol.Role{{protocol.Aggregated, protocol.Encode}}, false},
	} {
		if got := met(tc.needs, live); got != tc.met {
			t.Errorf("%v: %v", tc.needs, got)
		}
	}
}

// What a client sees while workers come and go.
func TestModelsComeAndGo(t *testing.T) {
	d := openDoor(t, nil)
	look := func() (list string, health, post int) {
		return d.send(http.MethodGet, "/v1/models", "").body, d.send(http.MethodGet, "/health", "").status,
			d.send(http.MethodPost, completionPath, promptBody("")).status
	}
	if list, health, post := look(); !strings.Contains(list, `"data":[]`) || health != 503 || post != 404 {
		t.Errorf("nothing there: %s, %d, %d", list, health, post)
	}
	d.putCard(protocol.Aggregated, 1, cardOf(protocol.Aggregated))
	d.await(func() bool { return d.send(http.MethodPost, completionPath, promptBody("")).status == 503 })
	if list, health, _ := look(); !strings.Contains(list, `"data":[]`) || health != 503 {
		t.Errorf("no instance: %s, %d", list, health)
	}
	d.putInstance(protocol.Aggregated, 1)
	d.await(func() bool { return len(d.server.Models()) == 1 })
	if r := d.send(http.MethodGet, "/v1/models", ""); r.get(t, "data.0.id") != "tiny" || r.get(t, "data.0.object") != "model" {
		t.Errorf("%s", r.body)
	}
	if r := d.send(http.MethodGet, "/v1/models/tiny", ""); r.get(t, "id") != "tiny" || r.get(t, "object") != "model" {
		t.Errorf("%s", r.body)
	}
	if r := d.send(http.MethodGet, "/health", ""); r.status != 200 || r.get(t, "models.0") != "tiny" {
		t.Errorf("%d %s", r.status, r.body)
	}
	d.must(d.store.Delete(t.Context(), discovery.Instances, address(protocol.Aggregated).Key(1)))
	d.await(func() bool { return len(d.server.Models()) == 0 })
	d.must(d.store.Delete(t.Context(), discovery.ModelCards, address(protocol.Aggregated).Key(1)))
	d.await(func() bool { _, _, post := look(); return post == 404 })
}

// Records that nobody can use are as good as none, and hurt nothing.
func TestBrokenRecords(t *testing.T) {
	d := openDoor(t, nil)
	d.must(d.store.Create(t.Context(), discovery.ModelCards, "dynamo/backend/generate/7", []byte(`{"type":"Model"}`)))
	d.must(d.store.Create(t.Context(), discovery.Instances, "dynamo/backend/generate/7", []byte(`{}`)))
	d.putCard(protocol.Aggregated, 8, `{"display_name":"other","model_input":"Text"}`)
	d.serve(protocol.Aggregated)
	if models := d.server.Models(); !slices.Equal(models, []string{"tiny"}) {
		t.Errorf("%v", models)
	}
}

func TestRouteThatTheCardDoesNotOffer(t *testing.T) {
	d := openDoor(t, nil)
	d.putCard(protocol.Aggregated, 1, strings.Replace(cardOf(protocol.Aggregated), "Chat | ", "", 1))
	d.putInstance(protocol.Aggregated, 1)
	d.await(func() bool { return len(d.server.Models()) == 1 })
	if r := d.send(http.MethodPost, chatPath, chatBody); r.status != 404 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestRoundRobin(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated, protocol.Aggregated, protocol.Aggregated)
	var got []uint64
	for range 6 {
		answer := d.post(completionPath, promptBody(""))
		c := d.call()
		got = append(got, c.to.ID)
		c.accept()
		c.finish(protocol.FinishStop)
		<-answer
	}
	if !slices.Equal(got, []uint64{1, 2, 3, 1, 2, 3}) {
		t.Errorf("%v", got)
	}
}

func TestTable(t *testing.T) {
	r := newRegistry(nil, slog.New(slog.DiscardHandler))
	for key, c := range map[string]card{
		"1": {name: "lonely", role: protocol.Decode}, // an older worker's card, which says no needs
		"2": {name: "m", role: protocol.Aggregated, maxModel: 9},
		"3": {name: "m", role: protocol.Aggregated, maxModel: 7},
		"4": {name: "m", role: protocol.Aggregated},
	} {
		r.models[key], r.instances[key] = model{"dynamo", c}, Instance{ID: 1}
	}
	adapter, err := discovery.Model{
		Namespace: "dynamo", Component: "backend", Endpoint: "generate", InstanceID: 5, Suffix: "adapter",
		Card: []byte(strings.Replace(cardOf(protocol.Aggregated), `"tiny"`, `"adapter"`, 1)),
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.model(discovery.Event{Key: "5", Value: adapter})
	made := r.build()
	if names := made.ready(); !slices.Equal(names, []string{"m"}) || len(made.served) != 2 || made.served["m"].maxModel != 7 {
		t.Errorf("%v, %+v", names, made.served)
	}
	clear(r.models)
	if r.build(); len(r.turns) > 0 {
		t.Errorf("turns of models that have gone: %v", r.turns)
	}
}
