package differential

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"remora/internal/dynamo/protocol"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// observation is what one side did, flat: a path, and what stands there. A path that is missing is a field that was absent.
type observation map[string]string

// value enters a document, leaf by leaf. The kind of a leaf is part of it: 1, 1.0, "1" and null are four things.
func (o observation) value(path string, v protocol.Value) {
	switch v.Kind {
	case protocol.KindNull:
		o[path] = "null"
	case protocol.KindBool:
		o[path] = strconv.FormatBool(v.Bool)
	case protocol.KindInt:
		o[path] = strconv.FormatInt(v.Int, 10)
	case protocol.KindUint:
		o[path] = strconv.FormatUint(v.Uint, 10)
	case protocol.KindFloat:
		o[path] = "float " + strconv.FormatFloat(v.Float, 'g', -1, 64)
	case protocol.KindString:
		o[path] = strconv.Quote(v.Str)
	case protocol.KindBytes:
		o[path] = fmt.Sprintf("bytes %x", v.Bytes)
	case protocol.KindList:
		if len(v.List) == 0 {
			o[path] = "[]"
		}
		for i := range v.List {
			o.value(fmt.Sprintf("%s[%d]", path, i), v.List[i])
		}
	case protocol.KindMap:
		if len(v.Map) == 0 {
			o[path] = "{}"
		}
		for _, m := range v.Map {
			o.value(path+"."+m.Key, m.Value)
		}
	default:
		o[path] = fmt.Sprintf("a value of kind %d", v.Kind)
	}
}

// message enters every populated field of a protobuf message under its name; fields that our text of the schema does not know
// are entered as bytes.
func (o observation) message(path string, m protoreflect.Message) {
	empty := true
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		empty = false
		o.field(path+"."+string(field.Name()), field, v)
		return true
	})
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		o[path+".(unknown)"] = fmt.Sprintf("%x", []byte(unknown))
	} else if empty {
		o[path] = "{}"
	}
}

func (o observation) field(path string, field protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case field.IsMap():
		v.Map().Range(func(k protoreflect.MapKey, element protoreflect.Value) bool {
			o.scalar(path+"."+k.String(), field.MapValue(), element)
			return true
		})
	case field.IsList():
		list := v.List()
		for i := range list.Len() {
			o.scalar(fmt.Sprintf("%s[%d]", path, i), field, list.Get(i))
		}
	default:
		o.scalar(path, field, v)
	}
}

func (o observation) scalar(path string, field protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch field.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		o.message(path, v.Message())
	case protoreflect.StringKind:
		o[path] = strconv.Quote(v.String())
	case protoreflect.EnumKind:
		o[path] = fmt.Sprintf("enum %d", v.Enum())
	case protoreflect.BytesKind:
		o[path] = fmt.Sprintf("bytes %x", v.Bytes())
	default:
		o[path] = fmt.Sprint(v.Interface())
	}
}

// requests enters what the engine received under an id, in order, and the metadata that came with each. With mixed the items of
// media are entered kind by kind, since only their order within a kind means something.
func (o observation) requests(engine *vllmtest.Engine, id string, mixed bool) {
	n := 0
	for _, event := range engine.Events() {
		if event.Kind != vllmtest.Received || event.ID != id {
			continue
		}
		request := event.Request
		if mixed {
			request = proto.CloneOf(request)
			slices.SortStableFunc(request.GetMedia(), func(a, b *pb.MediaItem) int { return int(a.GetModality() - b.GetModality()) })
		}
		o.message(fmt.Sprintf("engine[%d]", n), request.ProtoReflect())
		if event.Rank != "" {
			o[fmt.Sprintf("engine[%d] rank", n)] = event.Rank
		}
		n++
	}
	o["engine requests"] = strconv.Itoa(n)
}

// fate enters what became of the engine's side of a request: whether the client dropped the stream, and how often it sent an
// Abort. Their order in time is not entered; see follows.
func (o observation) fate(engine *vllmtest.Engine, id string) {
	words := map[vllmtest.Kind]int{}
	for _, event := range engine.Events() {
		if event.ID == id && (event.Kind == vllmtest.Dropped || event.Kind == vllmtest.Aborted) {
			words[event.Kind]++
		}
	}
	o["engine stream dropped"] = strconv.Itoa(words[vllmtest.Dropped])
	o["engine aborts"] = strconv.Itoa(words[vllmtest.Aborted])
}

// response enters the frames. An error has paths of its own, wherever it stands: in the prologue or in an item.
func (o observation) response(codec protocol.Codec, r *reply) {
	frames, dialled, end := r.taken()
	if !dialled {
		o["frames"] = "none: nobody called home"
		return
	}
	var kinds []string
	items := 0
	for i, f := range frames {
		kind := o.frame(codec, f, i == 0, items)
		if kind == "item" {
			items++
		}
		kinds = append(kinds, kind)
	}
	o["frames"] = strings.Join(kinds, " ")
	switch {
	case errors.Is(end, io.EOF):
		o["connection"] = "closed"
	case end != nil:
		o["connection"] = "broken"
	default:
		o["connection"] = "open"
	}
}

func (o observation) frame(codec protocol.Codec, f frame, first bool, items int) (kind string) {
	switch {
	case len(f.header) > 0 && len(f.body) > 0:
		return "header and body in one"
	case string(f.header) == `"sentinel"`:
		return "sentinel"
	case len(f.header) > 0:
		return o.prologue(f.header, first)
	}
	doc, err := protocol.ParseValue(codec, f.body)
	if err != nil {
		return fmt.Sprintf("undecodable (%v)", err)
	}
	if final, _ := doc.Get("complete_final"); final.Bool {
		o.value("final", doc)
		return "final"
	}
	annotated, _ := doc.Get("data")
	if failure, ok := annotated.Get("error"); ok {
		o.value("error", failure)
		o.value("error item", replaced(doc, "data", removed(annotated, "error")))
		return "error"
	}
	o.value(fmt.Sprintf("item[%d]", items), doc)
	return "item"
}

func (o observation) prologue(header []byte, first bool) (kind string) {
	doc, err := protocol.ParseValue(protocol.JSON, header)
	if err != nil || !first {
		return fmt.Sprintf("header %.60q", header)
	}
	failure, typed := doc.Get("typed_error")
	if typed {
		o.value("error", failure)
	}
	o.value("prologue", removed(doc, "typed_error"))
	if text, _ := doc.Get("error"); typed || !text.IsNull() {
		return "refusal"
	}
	return "prologue"
}

func removed(v protocol.Value, key string) protocol.Value {
	return protocol.Map(slices.DeleteFunc(slices.Clone(v.Map), func(m protocol.Member) bool { return m.Key == key })...)
}

func replaced(v protocol.Value, key string, with protocol.Value) protocol.Value {
	return protocol.Map(append(removed(v, key).Map, protocol.Member{Key: key, Value: with})...)
}

// outcome is what a request came to, in a word or two.
func (o observation) outcome() string {
	frames := o["frames"]
	switch {
	case o["ack"] != "":
		return "not accepted"
	case frames == "":
		return "left"
	case strings.HasPrefix(frames, "none"):
		return "silence"
	case strings.Contains(frames, "refusal"), strings.Contains(frames, "error"):
		return "error " + o.kind()
	case strings.HasSuffix(frames, "final sentinel"):
		return "answer"
	default:
		return "cut off"
	}
}

// kind is the kind of the error, as the frontends' writers give it.
func (o observation) kind() string {
	if word, ok := o["error.error_type.Backend"]; ok {
		return "Backend." + strings.Trim(word, `"`)
	}
	return strings.Trim(o["error.error_type"], `"`)
}

// gap is a path at which the two sides differ. A side that has nothing there has "(absent)".
type gap struct{ path, rust, remora string }

const absent = "(absent)"

func (g gap) String() string { return fmt.Sprintf("%s: Rust %s, Remora %s", g.path, g.rust, g.remora) }

// gaps compares two observations. Where an answer stands against something else, the one gap is the outcome.
func gaps(rust, remora observation) (out []gap) {
	one, other := rust.outcome(), remora.outcome()
	if one != other && (one == "answer" || other == "answer" || one == "silence" || one == "not accepted") {
		return []gap{{"outcome", one, other}}
	}
	at := func(o observation, path string) string {
		if text, ok := o[path]; ok {
			return text
		}
		return absent
	}
	for path, text := range rust {
		if other := at(remora, path); other != text {
			out = append(out, gap{path, text, other})
		}
	}
	for path, text := range remora {
		if _, ok := rust[path]; !ok {
			out = append(out, gap{path, absent, text})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].path < out[j].path })
	return out
}
