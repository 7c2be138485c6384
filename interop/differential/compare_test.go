package differential

import (
	"slices"
	"testing"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

func seenDocument(t *testing.T, text string) observation {
	t.Helper()
	v, err := protocol.ParseValue(protocol.JSON, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := observation{"frames": "prologue item final sentinel"}
	o.value("x", v)
	return o
}

// TestGapsInDocuments: what the comparison must not miss, and what it must not see.
func TestGapsInDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		rust, remora string
		paths        []string
	}{
		"the same":              {`{"a":1,"b":[true,null,"x"]}`, `{"b":[true,null,"x"],"a":1}`, nil},
		"absent and null":       {`{"a":null}`, `{}`, []string{"x", "x.a"}},
		"whole and float":       {`{"a":1}`, `{"a":1.0}`, []string{"x.a"}},
		"number and text":       {`{"a":1}`, `{"a":"1"}`, []string{"x.a"}},
		"a word that is quoted": {`{"a":"null"}`, `{"a":null}`, []string{"x.a"}},
		"empty list and map":    {`{"a":[]}`, `{"a":{}}`, []string{"x.a"}},
		"a longer list":         {`{"a":[1]}`, `{"a":[1,2]}`, []string{"x.a[1]"}},
		"another order":         {`{"a":[1,2]}`, `{"a":[2,1]}`, []string{"x.a[0]", "x.a[1]"}},
		"deep":                  {`{"a":[{"b":{"c":0.1}}]}`, `{"a":[{"b":{"c":0.2}}]}`, []string{"x.a[0].b.c"}},
	} {
		t.Run(name, func(t *testing.T) {
			var paths []string
			for _, g := range gaps(seenDocument(t, c.rust), seenDocument(t, c.remora)) {
				paths = append(paths, g.path)
			}
			if !slices.Equal(paths, c.paths) {
				t.Errorf("gaps at %q, want %q", paths, c.paths)
			}
		})
	}
}

// TestGapsInMessages: an optional field that is set to its zero value is not one that is not set, and what the schema does not
// know counts, too.
func TestGapsInMessages(t *testing.T) {
	seen := func(m *pb.GenerateRequest) observation {
		o := observation{"frames": "prologue item final sentinel"}
		o.message("m", m.ProtoReflect())
		return o
	}
	unknown := &pb.GenerateRequest{}
	unknown.ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 0x01, 0x78})
	for name, c := range map[string]struct {
		other *pb.GenerateRequest
		path  string
	}{
		"zero":          {&pb.GenerateRequest{Temperature: new(float32(0))}, "m.temperature"},
		"an empty part": {&pb.GenerateRequest{Decoding: &pb.DecodingParameters{}}, "m.decoding"},
		"unknown":       {unknown, "m.(unknown)"},
	} {
		t.Run(name, func(t *testing.T) {
			found := gaps(seen(&pb.GenerateRequest{}), seen(c.other))
			if !slices.ContainsFunc(found, func(g gap) bool { return g.path == c.path && g.rust == absent }) {
				t.Errorf("found %v, want one at %s", found, c.path)
			}
		})
	}
}

// TestGapsOfOutcomes: where one side answers and the other does not, that is the one thing to say; two errors are compared.
func TestGapsOfOutcomes(t *testing.T) {
	answer := observation{"frames": "prologue item final sentinel", "item[0].a": "1"}
	refusal := observation{"frames": "refusal sentinel", "error.error_type.Backend": `"Unknown"`, "error.message": `"a"`}
	failure := observation{"frames": "prologue error final sentinel", "error.error_type": `"Unknown"`, "error.message": `"b"`}
	silence := observation{"frames": "none: nobody called home"}
	for name, c := range map[string]struct {
		rust, remora observation
		want         []gap
	}{
		"answer and refusal":  {answer, refusal, []gap{{"outcome", "answer", "error Backend.Unknown"}}},
		"silence and failure": {silence, failure, []gap{{"outcome", "silence", "error Unknown"}}},
		"two errors": {refusal, failure, []gap{
			{"error.error_type", absent, `"Unknown"`}, {"error.error_type.Backend", `"Unknown"`, absent}, {"error.message", `"a"`, `"b"`},
			{"frames", "refusal sentinel", "prologue error final sentinel"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := gaps(c.rust, c.remora); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
