package requestplane

import (
	"strings"
	"testing"

	"remora/internal/dynamo/protocol"
)

// controlWith is a good control header with one text replaced.
func controlWith(tb testing.TB, old, replacement string) []byte {
	tb.Helper()
	good := string(encodeControl(generateControl("r", protocol.MsgPack, ConnectionInfo{
		Transport: transportTCP, Address: "127.0.0.1:9", Subject: "s", Context: "r", StreamType: streamResponse,
	})))
	if !strings.Contains(good, old) {
		tb.Fatalf("%s is not in %s", old, good)
	}
	return []byte(strings.Replace(good, old, replacement, 1))
}

func TestControlHeaders(t *testing.T) {
	for _, c := range []struct {
		old, replacement   string
		malformed, refusal string // parts of the texts; both empty: accepted
	}{
		{``, ``, "", ""},
		{`single_in`, `many_in`, "", ""},
		{`many_out`, `single_out`, "", ""},
		{`"request_type":"single_in",`, ``, "", ""},
		{`{"id"`, `{"frontend_send_ts_ns":7,"request_stream_connection_info":null,"metadata":null,"id"`, "", ""},
		{`{"id"`, `{"metadata":{"k":"v"},"id"`, "", ""},
		{`127.0.0.1:9`, `[::1]:9`, "", ""},

		{`"id":"r",`, ``, "no id", ""},
		{`"id":"r"`, `"id":null`, "no id", ""},
		{`"id":"r"`, `"id":7`, "id is not a string", ""},
		{`"id":"r"`, `"id":"other"`, "id differs", ""},
		{`"msgpack"`, `"xml"`, `unknown payload_codec "xml"`, ""},
		{`"msgpack"`, `1`, "payload_codec is not a string", ""},
		{`single_in`, `all_in`, "unknown request_type", ""},
		{`many_out`, `none_out`, "unknown response_type", ""},
		{`\"response\"`, `\"request\"`, "unknown stream_type", ""},
		{`{"id"`, `{"metadata":{"k":1},"id"`, `metadata "k" is not a string`, ""},
		{`{"id"`, `{"metadata":[],"id"`, "metadata is no object", ""},

		{`{"id"`, `{id`, "", "control header: "},
		{`{"id"`, `[{"id"`, "", "control header: "},
		{`"connection_info"`, `"other"`, "", "without connection_info"},
		{`tcp_server`, `quic`, "", `unknown transport "quic"`},
		{`"transport":"tcp_server",`, ``, "", `unknown transport ""`},
		{`\"subject\":\"s\",`, ``, "", "no subject"},
		{`127.0.0.1:9`, `localhost:9`, "", "not a literal"},
		{`127.0.0.1:9`, `127.0.0.1:0`, "", "not a literal"},
		{`127.0.0.1:9`, ``, "", "not a literal"},
		{`{\"address\"`, `{address`, "", "info: "},
		{`"info":"`, `"info":7,"x":"`, "", "info is not a string"},
		{`{"id"`, `{"pad":"` + strings.Repeat("x", maxControl) + `","id"`, "", "control header of"},
	} {
		control, malformed, refusal := parseControl(controlWith(t, c.old, c.replacement))
		check := func(what string, err error, want string) {
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s -> %s: %s %v, want %q", c.old, c.replacement, what, err, want)
			}
		}
		check("malformed", malformed, c.malformed)
		check("refusal", refusal, c.refusal)
		if c.refusal == "" && (control.Connection.Address == "" || control.Connection.Subject != "s") {
			t.Errorf("%s -> %s: nobody to answer: %+v", c.old, c.replacement, control.Connection)
		}
	}
	if c, malformed, _ := parseControl(controlWith(t, `"payload_codec":"msgpack",`, "")); malformed != nil || c.Codec != protocol.JSON {
		t.Errorf("an absent codec: %v, %v", c.Codec, malformed)
	}
}

func TestHeaderObjects(t *testing.T) {
	got, err := parseHeaders([]byte(`{"traceparent":"tp","x-other":"y","tracestate":"ts","x-frontend-send-ts-ns":"12","request-id":"r"}`))
	if want := (Headers{"r", "tp", "ts", 12}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if again, err := parseHeaders(encodeHeaders("p", &got)); err != nil || again != got {
		t.Errorf("became %+v, %v", again, err)
	}
	if got, err := parseHeaders([]byte(`{"x-frontend-send-ts-ns":"soon"}`)); err != nil || got.FrontendSendNS != 0 {
		t.Errorf("a time that is none: %+v, %v", got, err)
	}
	if got, err := parseHeaders([]byte(`{"request-id":1,"traceparent":"tp","new":{"a":[]}}`)); err != nil || got != (Headers{TraceParent: "tp"}) {
		t.Errorf("members that are no texts: %+v, %v", got, err)
	}
	for _, bad := range []string{``, `[]`, `{"a"}`} {
		if _, err := parseHeaders([]byte(bad)); err == nil {
			t.Errorf("%s: accepted", bad)
		}
	}
}
