package status

import "testing"

// TestNamesInLabels: what the Rust sidecar was seen to make of names.
func TestNamesInLabels(t *testing.T) {
	for name, want := range map[string]string{
		"dynamo": "dynamo", "TeamA": "TeamA", "my-ns": "my_ns", "Back.End": "Back_End", "n\u00fc": "n_", "a:b": "a_b", "A--B": "A__B", "x-": "x_", "a..b": "a__b",
		"1c": "_1c", "-1": "_1", "_1": "_1", "__1": "_1", "--1": "_1", "_y": "_y", "-x": "_x", ":a": "_a",
		"__x": "x", "--x": "x", "_-x": "x", "..a.": "a_", "__a__": "a__", "__a-": "a_", "___x": "__x", "---x": "__x", "__-a": "__a", "____x": "___x",
	} {
		if got := labelled(name); got != want {
			t.Errorf("labelled(%q) = %q, want %q", name, got, want)
		}
	}
}

// TestLabelsOfNames: the three names of the address are labelled so.
func TestLabelsOfNames(t *testing.T) {
	m := NewMetrics()
	m.Bind(Identity{Namespace: "my-ns", Component: "back.end", Endpoint: "9", WorkerID: 1})
	_, samples := exposed(t, m)
	want := `dynamo_component_inflight_requests{dynamo_component="back_end",dynamo_endpoint="_9",dynamo_namespace="my_ns",worker_id="1"}`
	if _, ok := samples[want]; !ok {
		t.Errorf("no %s", want)
	}
}
