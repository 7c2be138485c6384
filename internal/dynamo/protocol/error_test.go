package protocol

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// writable are the kinds that this package names.
var writable = []ErrorKind{
	ErrorInvalidArgument, ErrorBackendInvalidArgument, ErrorBackendUnknown, ErrorBackendCancelled, ErrorBackendEngineShutdown,
	ErrorBackendStreamIncomplete, ErrorBackendCannotConnect, ErrorBackendDisconnected, ErrorBackendTimeout, ErrorWorkerOverloaded,
	ErrorResourceExhausted, ErrorUnknown,
}

func TestErrorsThereAndBack(t *testing.T) {
	for _, kind := range writable {
		if _, _, ok := kind.Class(); !ok {
			t.Errorf("%+v has no class", kind)
		}
		for _, public := range []string{"", "for everybody"} {
			want := &Error{kind, "for operators", public}
			for _, codec := range []Codec{JSON, MsgPack} {
				item, _, err := ParseItem(codec, AppendItem(nil, codec, &Item{Error: want}))
				if diff := cmp.Diff(Item{Error: want}, item); err != nil || diff != "" {
					t.Errorf("%v item: %v %s", codec, err, diff)
				}
			}
			got, err := ParsePrologue(AppendPrologue(nil, want))
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("prologue: %v %s", err, diff)
			}
		}
	}
}

func TestErrorCatalogIsUnambiguous(t *testing.T) {
	for _, row := range errorCatalog {
		if got := kindOfReason(row.reason); got != row.kind {
			t.Errorf("reason %s reads as %+v, not %+v", row.reason, got, row.kind)
		}
	}
}

func TestPrologueBytes(t *testing.T) {
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{nil, `{"error":null}`},
		{
			&Error{ErrorInvalidArgument, "no", "sorry"},
			`{"error":"Generate Error: InvalidRequest: no","typed_error":{"error_type":"InvalidArgument","class":"InvalidRequest",` +
				`"reason":"request.invalid_argument","message":"no","diagnostic":"no","public":{"type":"message","message":"sorry"}}}`,
		},
		{ // without a catalogue row the reader derives class and reason; a wrong pair would make it an internal error
			&Error{ErrorKind{false, "Novelty"}, "no", ""},
			`{"error":"Generate Error: Novelty: no","typed_error":{"error_type":"Novelty","message":"no","diagnostic":"no"}}`,
		},
	} {
		if got := string(AppendPrologue(nil, c.err)); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestForeignErrors(t *testing.T) {
	for _, c := range []struct {
		annotated string
		want      Error
	}{
		{`{"event":"error"}`, Error{Kind: ErrorUnknown}},
		{`{"event":"error","comment":["a","b"]}`, Error{Kind: ErrorUnknown, Message: "a; b"}},
		{`{"error":{"error_type":"Disconnected","message":"m"}}`, Error{Kind: ErrorKind{false, "Disconnected"}, Message: "m"}},
		{`{"event":"error","error":{"reason":"capacity.worker_overloaded","class":"CapacityExhausted","diagnostic":"d"}}`,
			Error{Kind: ErrorWorkerOverloaded, Message: "d"}},
		{`{"event":"error","error":{"reason":"new.reason","message":"m"}}`, Error{Kind: ErrorUnknown, Message: "m"}},
		{`{"event":"error","error":{"error_type":{"Backend":"NewWord"},"message":"m","caused_by":{"x":[1]},"public":null}}`,
			Error{Kind: ErrorKind{true, "NewWord"}, Message: "m"}},
		{`{"event":"error","data":{"token_ids":[1]},"error":{"public":{"type":"context_length","limit":1,"actual":2}}}`,
			Error{Kind: ErrorUnknown}},
	} {
		for codec, body := range inBoth(t, `{"data":`+c.annotated+`,"complete_final":false}`) {
			item, _, err := ParseItem(codec, body)
			if diff := cmp.Diff(Item{Error: &c.want}, item); err != nil || diff != "" {
				t.Errorf("%v %s: %v %s", codec, c.annotated, err, diff)
			}
		}
	}
}

func TestForeignPrologues(t *testing.T) {
	for _, c := range []struct {
		header string
		want   *Error
		bad    string
	}{
		{`{"error":null,"typed_error":null,"x":1}`, nil, ""},
		{`{"error":"text"}`, &Error{Kind: ErrorKind{false, "CannotConnect"}, Message: "text"}, ""},
		{`{"typed_error":{"error_type":{"Backend":"Unknown"},"message":"m"}}`, &Error{Kind: ErrorBackendUnknown, Message: "m"}, ""},
		{`{}`, nil, "error: missing"},
		{`"kill"`, nil, "want a map"},
		{``, nil, "ends too early"},
		{`{"error":1}`, nil, "error: want a string"},
	} {
		got, err := ParsePrologue([]byte(c.header))
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%s: got %v, want %s", c.header, err, c.bad)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", c.header, err, diff)
		}
	}
}
