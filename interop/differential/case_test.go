package differential

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
	"remora/internal/vllm/vllmtest"
	"remora/interop/harness"
	pb "remora/proto/vllm"
)

// testCase is one request that both sides get.
type testCase struct {
	name  string
	roles string // letters of the roles that it makes sense in; "": all
	// body holds members that change those of the base request; objects are merged, null stays null.
	body    string
	without string // a member that is left out, as "a.b"
	raw     string // instead of the body, in either encoding
	// wire changes the request on its way, after everything else was filled in.
	wire func(s *sent, subject string)
	// script is what the engine does; nil: a good answer of the role.
	script func(p *play) []vllmtest.Step
	// act is what the frontend does once its request was accepted; nil: it reads to the end.
	act func(ctx context.Context, p *play) error
	// silent: one side never answers, so what it does is observed until another request has gone through.
	silent bool
	fate   bool // what becomes of the engine's stream is part of the case
	large  bool // megabytes: it runs alone, or the engines would seem gone for want of processors
	mixed  bool // several kinds of media, whose order is not the same twice with the Rust sidecar
	cut    bool // the client goes in mid-stream: what may still have been on its way to it is no part of the case
}

// play is a case under way at one side.
type play struct {
	role   harness.Role
	side   *side
	id     string
	reply  *reply
	moment chan struct{} // a step of the script closes it: the engine is where the case wants it
	goOn   chan struct{} // act closes it: the engine may go on

	ending chan struct{} // act closes it: the engine may end

	// What a case with cut saw after the client had gone, and before the engine went on.
	hungUp string // whether the worker closed the response connection
	told   string // whether the engine heard of it: by an Abort or a dropped stream
}

// baseBody is the request that every case changes.
const baseBody = `{"model":"tiny","token_ids":[1,2,3,4],"stop_conditions":{"max_tokens":50},"sampling_options":{},"output_options":{},
	"eos_token_ids":[],"annotations":[]}`

// nixl is a hand-off for the base request, with a name of its own: Remora refuses a second use.
func nixl(id string) string {
	return fmt.Sprintf(`{"prefill_result":{"disaggregated_params":{"do_remote_prefill":true,"do_remote_decode":false,
		"remote_block_ids":[[7]],"remote_engine_id":"p","remote_request_id":%q,"remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}}`, id)
}

// handedOver is what the engine of a prefill hands over by default.
func handedOver() *structpb.Struct {
	s, err := structpb.NewStruct(map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": []any{[]any{7}}, "remote_engine_id": "p",
		"remote_request_id": "p-1", "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1,
	})
	if err != nil {
		panic(err) // the map above is at fault
	}
	return s
}

// good is a good answer of the role.
func good(p *play) []vllmtest.Step {
	if p.role == harness.Prefill {
		return []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.FinishWith(pb.FinishInfo_LENGTH, handedOver(), 11)}
	}
	return []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(11, 12), vllmtest.FinishToken(pb.FinishInfo_LENGTH, 13)}
}

// document is the case's body for an id.
func (c *testCase) document(t *testing.T, role harness.Role, id string) protocol.Value {
	t.Helper()
	parts := []string{baseBody}
	if role == harness.Decode {
		parts = append(parts, nixl(id))
	}
	if c.body != "" {
		parts = append(parts, c.body)
	}
	var doc protocol.Value
	for _, part := range parts {
		v, err := protocol.ParseValue(protocol.JSON, []byte(part))
		if err != nil {
			t.Fatalf("body %s: %v", part, err)
		}
		doc = merged(doc, v)
	}
	if c.without != "" {
		doc = cut(doc, strings.Split(c.without, "."))
	}
	return doc
}

// merged lays change over v.
func merged(v, change protocol.Value) protocol.Value {
	if v.Kind != protocol.KindMap || change.Kind != protocol.KindMap || len(change.Map) == 0 {
		return change
	}
	for _, m := range change.Map {
		old, ok := v.Get(m.Key)
		if !ok {
			v = protocol.Map(append(removed(v, m.Key).Map, m)...)
			continue
		}
		v = replaced(v, m.Key, merged(old, m.Value))
	}
	return v
}

func cut(v protocol.Value, path []string) protocol.Value {
	if len(path) == 1 {
		return removed(v, path[0])
	}
	inner, _ := v.Get(path[0])
	return replaced(v, path[0], cut(inner, path[1:]))
}

// run sends the case to both sides at once and compares what they did.
func (c *testCase) run(t *testing.T, p *pair, group string, codec protocol.Codec) {
	t.Helper()
	id := strings.NewReplacer("/", "-", " ", "_").Replace(t.Name())
	var seen [2]observation
	var failed [2]error
	done := make(chan int, 2)
	for i, s := range p.sides {
		doc := c.document(t, p.role, id)
		go func() {
			seen[i], failed[i] = c.play(t.Context(), p, s, id, codec, doc)
			done <- i
		}()
	}
	<-done
	<-done
	for i, err := range failed {
		if err != nil {
			t.Errorf("%s: %v", p.sides[i].kind, err)
		}
	}
	defer p.explain(t, id)
	if !t.Failed() {
		judge(t, strings.Join([]string{string(p.role), group, c.name}, "/"), seen[0], seen[1])
	}
}

// explain shows what the two logged about the request of a case that failed.
func (p *pair) explain(t *testing.T, id string) {
	t.Helper()
	if !t.Failed() {
		return
	}
	for _, s := range p.sides {
		for line := range strings.Lines(s.sidecar.Log()) {
			if strings.Contains(line, id) {
				t.Logf("%s: %.300s", s.kind, line)
			}
		}
	}
}

// play is the case at one side.
func (c *testCase) play(ctx context.Context, p *pair, s *side, id string, codec protocol.Codec, doc protocol.Value) (observation, error) {
	subject := id + "@" + string(s.kind)
	r := &play{
		role: p.role, side: s, id: id, reply: p.frontend.await(subject), moment: make(chan struct{}), goOn: make(chan struct{}), ending: make(chan struct{}),
	}
	script := c.script
	if script == nil {
		script = good
	}
	metadata := make(chan map[string][]string, 1)
	s.engine.Script(id, append([]vllmtest.Step{vllmtest.Do(func(call *vllmtest.Call) {
		select {
		case metadata <- call.Metadata:
		default: // another stream under this id
		}
	})}, script(r)...)...)
	request := sent{
		id: id, path: s.path,
		headers: fmt.Sprintf(`{"request-id":%q,"x-endpoint-path":%q,"x-frontend-send-ts-ns":"1790000000000000000"}`, id, s.path),
		control: control(id, subject, p.frontend.address(), codec),
		body:    protocol.AppendValue(nil, codec, doc),
	}
	if c.raw != "" {
		request.body = []byte(c.raw)
	}
	if c.wire != nil {
		c.wire(&request, subject)
	}
	o := observation{}
	ack, err := post(ctx, s.address, request)
	if err != nil {
		return nil, err
	}
	o["ack"] = ack
	if err = c.follow(ctx, p, r, ack); err != nil {
		return nil, err
	}
	if c.cut {
		o["hung up at once"], o["engine told at once"] = r.hungUp, r.told
	} else {
		o.response(codec, r.reply)
	}
	o.requests(s.engine, id, c.mixed)
	select {
	case md := <-metadata:
		o.metadata(md)
	default:
	}
	if c.fate {
		o.fate(s.engine, id)
	}
	return o, nil
}

// follow sees the request to its end.
func (c *testCase) follow(ctx context.Context, p *pair, r *play, ack string) error {
	switch {
	case ack != "":
		return nil
	case c.silent:
		return r.silence(ctx, p)
	case c.act != nil:
		return c.act(ctx, r)
	default:
		return r.reply.over(ctx)
	}
}

// silence waits until the response is over. When a request that was sent later has been answered, and nobody has called home
// for a lull after that, nobody will.
func (p *play) silence(ctx context.Context, both *pair) error {
	id := p.id + "-probe"
	doc, err := protocol.ParseValue(protocol.JSON, []byte(baseBody))
	if err != nil {
		return err
	}
	if p.role == harness.Decode {
		handoff, err := protocol.ParseValue(protocol.JSON, []byte(nixl(id)))
		if err != nil {
			return err
		}
		doc = merged(doc, handoff)
	}
	if _, err := new(testCase).play(ctx, both, p.side, id, protocol.JSON, doc); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	p.settle(ctx, p.reply.called)
	if p.reply.called() {
		return p.reply.over(ctx)
	}
	return nil
}

// control is the control header of a good request.
func control(id, subject, address string, codec protocol.Codec) string {
	text := func(key, value string) protocol.Member {
		return protocol.Member{Key: key, Value: protocol.String(value)}
	}
	info := protocol.Map(text("address", address), text("subject", subject), text("context", id), text("stream_type", "response"))
	return string(protocol.Map(
		text("id", id), text("request_type", "single_in"), text("response_type", "many_out"), text("payload_codec", codec.String()),
		protocol.Member{Key: "connection_info", Value: protocol.Map(
			text("transport", "tcp_server"), text("info", string(info.AppendJSON(nil))))},
	).AppendJSON(nil))
}

// transport are the metadata that grpc itself sends.
var transport = map[string]bool{":authority": true, "content-type": true, "user-agent": true, "te": true, "grpc-accept-encoding": true}

func (o observation) metadata(md map[string][]string) {
	for key, values := range maps.All(md) {
		if !transport[key] {
			o["engine metadata "+key] = strings.Join(values, ", ")
		}
	}
}
