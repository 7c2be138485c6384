package discovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func fixture(tb testing.TB, name string) []byte {
	tb.Helper()
	value, err := os.ReadFile(filepath.Join("testdata", "records", name))
	if err != nil {
		tb.Fatal(err)
	}
	return bytes.TrimSpace(value)
}

// recode decodes a record and encodes it again.
func recode(kind string, value []byte) ([]byte, error) {
	switch kind {
	case "instances", "instance.json":
		r, err := DecodeInstance(value)
		if err != nil {
			return nil, err
		}
		return r.Encode()
	case "mdc", "model.json":
		r, err := DecodeModel(value)
		if err != nil {
			return nil, err
		}
		return r.Encode()
	case "event_channels":
		r, err := DecodeEventChannel(value)
		if err != nil {
			return nil, err
		}
		return r.Encode()
	case "event_sources":
		r, err := DecodeEventSource(value)
		if err != nil {
			return nil, err
		}
		return r.Encode()
	default:
		return nil, errors.New("no such kind: " + kind)
	}
}

// What the stock sidecar writes must come out of our own structs to the byte.
func TestRecordsOfTheStockSidecarRoundTrip(t *testing.T) {
	files, err := filepath.Glob("testdata/records/*.json")
	if err != nil || len(files) != 13 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			name := filepath.Base(file)
			value := fixture(t, name)
			got, recodeErr := recode(strings.Split(name, "-")[1], value)
			if recodeErr != nil {
				t.Fatal(recodeErr)
			}
			if name == "minimal-instance.json" || name == "minimal-model.json" { // written by hand, keys in another order
				var a, b any
				if json.Unmarshal(value, &a) != nil || json.Unmarshal(got, &b) != nil || !cmp.Equal(a, b) {
					t.Error(cmp.Diff(a, b))
				}
				return
			}
			if !bytes.Equal(got, value) {
				t.Error(cmp.Diff(string(value), string(got)))
			}
		})
	}
}

func TestKVSourceOfTheStockSidecarRoundTrips(t *testing.T) {
	source, err := DecodeEventSource(fixture(t, "decode-event_sources-kv-events.json"))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := DecodeKVSource(source.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	if kv.Worker.WorkerID != 5424122196375380484 || kv.RecoveryTarget.Endpoint != "worker_kv_query_source_cb9676dc0d68" {
		t.Errorf("%+v", kv)
	}
	again, err := kv.Encode()
	if err != nil || !bytes.Equal(again, source.Metadata) {
		t.Error(err, cmp.Diff(string(source.Metadata), string(again)))
	}
}

func TestDecodedInstance(t *testing.T) {
	got, err := DecodeInstance(fixture(t, "decode-instances-generate.json"))
	want := Instance{
		Component: "backend", Endpoint: "generate", Namespace: "dynamo", InstanceID: 5424122196375380484,
		Transport:  Transport{TCP: Address{"dynamo", "backend", "generate"}.TCP("127.0.0.1:42769", 5424122196375380484)},
		DeviceType: DeviceCUDA, RequestPlaneCodec: CodecMsgPack,
	}
	if err != nil || got != want {
		t.Error(err, cmp.Diff(want, got))
	}
}

func TestUnreadableRecords(t *testing.T) {
	for name, c := range map[string]struct{ kind, value string }{
		"not JSON":              {"instances", `{"type":"Endpoint"`},
		"not an object":         {"instances", `[]`},
		"other type":            {"instances", `{"type":"Model"}`},
		"no type":               {"instances", `{"namespace":"n"}`},
		"no namespace":          {"instances", `{"type":"Endpoint","component":"c","endpoint":"e","instance_id":1,"transport":{"tcp":"x"}}`},
		"no transport":          {"instances", `{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":1}`},
		"unknown transport":     {"instances", `{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":1,"transport":{"http":"x"}}`},
		"two transports":        {"instances", `{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":1,"transport":{"tcp":"x","nats_tcp":"y"}}`},
		"negative id":           {"instances", `{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":-1,"transport":{"tcp":"x"}}`},
		"id beyond 64 bits":     {"instances", `{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":18446744073709551616,"transport":{"tcp":"x"}}`},
		"id as float":           {"instances", `{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":1.5,"transport":{"tcp":"x"}}`},
		"unknown device":        {"instances", `{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":1,"transport":{"tcp":"x"},"device_type":"tpu"}`},
		"unknown codec":         {"instances", `{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":1,"transport":{"tcp":"x"},"request_plane_codec":"xml"}`},
		"model without card":    {"mdc", `{"type":"Model","namespace":"n","component":"c","endpoint":"e","instance_id":1}`},
		"card is a list":        {"mdc", `{"type":"Model","namespace":"n","component":"c","endpoint":"e","instance_id":1,"card_json":[]}`},
		"card is null":          {"mdc", `{"type":"Model","namespace":"n","component":"c","endpoint":"e","instance_id":1,"card_json":null}`},
		"unknown scope":         {"event_channels", `{"type":"EventChannel","scope":{"kind":"planet"},"topic":"t","instance_id":1,"transport":{"kind":"Zmq","config":{"endpoint":"x"}}}`},
		"scope lacks endpoint":  {"event_channels", `{"type":"EventChannel","scope":{"kind":"endpoint"},"topic":"t","instance_id":1,"transport":{"kind":"Zmq","config":{"endpoint":"x"}}}`},
		"scope lacks component": {"event_channels", `{"type":"EventChannel","scope":{"kind":"component","namespace":"n"},"topic":"t","instance_id":1,"transport":{"kind":"Zmq","config":{"endpoint":"x"}}}`},
		"unknown way":           {"event_channels", `{"type":"EventChannel","scope":{"kind":"namespace","name":"n"},"topic":"t","instance_id":1,"transport":{"kind":"Pigeon","config":{}}}`},
		"way without address":   {"event_channels", `{"type":"EventChannel","scope":{"kind":"namespace","name":"n"},"topic":"t","instance_id":1,"transport":{"kind":"Zmq","config":{}}}`},
		"way without config":    {"event_channels", `{"type":"EventChannel","scope":{"kind":"namespace","name":"n"},"topic":"t","instance_id":1,"transport":{"kind":"Zmq"}}`},
	} {
		if again, err := recode(c.kind, []byte(c.value)); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %s, %v", name, again, err)
		}
	}
}

func TestEncodeRefusesWhatReadersRefuse(t *testing.T) {
	good := Instance{Namespace: "n", Component: "c", Endpoint: "e", Transport: Transport{TCP: "x"}}
	if _, err := good.Encode(); err != nil {
		t.Fatal(err)
	}
	bad := good
	bad.DeviceType = "CUDA"
	if _, err := bad.Encode(); !errors.Is(err, ErrRecord) {
		t.Error(err)
	}
	if _, err := (Model{Namespace: "n", Component: "c", Endpoint: "e", Card: json.RawMessage(`{`)}).Encode(); !errors.Is(err, ErrRecord) {
		t.Error(err)
	}
	if _, err := (EventChannel{Scope: Scope{Namespace: "n", Endpoint: "e"}, Transport: EventTransport{ZMQ: "x"}}).Encode(); !errors.Is(err, ErrRecord) {
		t.Error(err)
	}
	if _, err := (EventChannel{Scope: Scope{Namespace: "n"}}).Encode(); !errors.Is(err, ErrRecord) {
		t.Error(err)
	}
}

func TestScopesAndWays(t *testing.T) {
	for _, r := range []EventChannel{
		{Scope{"n", "", ""}, "t", 1, EventTransport{ZMQ: "tcp://a:1"}},
		{Scope{"n", "c", ""}, "t", 2, EventTransport{NATSSubjectPrefix: "a.b"}},
		{Scope{"n", "c", "e"}, "t", 1<<64 - 1, EventTransport{Broker: &ZMQBroker{XSub: []string{"a"}, XPub: []string{"b", "c"}}}},
	} {
		value, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeEventChannel(value)
		if err != nil || !cmp.Equal(got, r) {
			t.Error(string(value), err, cmp.Diff(r, got))
		}
	}
}

func TestCardTravelsUntouched(t *testing.T) {
	const card = `{"display_name":"a<b>&c","n":18446744073709551615,"f":1.50}`
	value, err := Model{Namespace: "n", Component: "c", Endpoint: "e", InstanceID: 7, Card: json.RawMessage(card), Suffix: "lora"}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"type":"Model","namespace":"n","component":"c","endpoint":"e","instance_id":7,"card_json":` + card + `,"model_suffix":"lora"}`; string(value) != want {
		t.Error(string(value))
	}
}

func FuzzRecords(f *testing.F) {
	files, _ := filepath.Glob("testdata/records/*.json")
	for _, file := range files {
		f.Add(fixture(f, filepath.Base(file)))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		for _, kind := range []string{"instances", "mdc", "event_channels", "event_sources"} {
			once, err := recode(kind, value)
			if err != nil {
				continue
			}
			twice, err := recode(kind, once)
			if err != nil || !bytes.Equal(once, twice) {
				t.Errorf("%s: %s became %s, then %s (%v)", kind, value, once, twice, err)
			}
		}
		_, _ = DecodeKVSource(value)
	})
}
