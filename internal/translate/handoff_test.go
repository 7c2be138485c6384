package translate

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"remora/internal/dynamo/protocol"
)

// nixl is a hand-off as a prefill engine writes it, for a prompt of 33 to 64 tokens.
var nixl = []string{
	`"do_remote_prefill":true`, `"do_remote_decode":false`, `"remote_block_ids":[[111,112]]`, `"remote_engine_id":"6f0c2a3e"`,
	`"remote_request_id":"r-1-0a1b2c3d"`, `"remote_host":"127.0.0.1"`, `"remote_port":5600`, `"tp_size":1`, `"dcp_size":1`,
	`"pp_size":1`, `"remote_num_tokens":33`, `"remote_blocks_expiry_time":null`, `"transfer_mode":"pull"`,
}

// with replaces members of nixl by name; an empty replacement takes the member out, a new name is added.
func with(replacements ...string) string {
	members := append([]string(nil), nixl...)
	for _, r := range replacements {
		key, text, _ := strings.Cut(r, ":")
		found := false
		for i, m := range members {
			if strings.HasPrefix(m, `"`+key+`":`) {
				members[i], found = "", true
				if text != "" {
					members[i] = fmt.Sprintf("%q:%s", key, text)
				}
			}
		}
		if !found {
			members = append(members, fmt.Sprintf("%q:%s", key, text))
		}
	}
	var kept []string
	for _, m := range members {
		if m != "" {
			kept = append(kept, m)
		}
	}
	return "{" + strings.Join(kept, ",") + "}"
}

func decodeRequest(tb testing.TB, params string, promptTokens int) *protocol.PreprocessedRequest {
	tb.Helper()
	r := request(tb, `"prefill_result":{"disaggregated_params":`+params+`}`)
	r.TokenIDs = make([]uint32, promptTokens)
	return r
}

// TestHandoffShapes: what a decode worker must refuse, as the engine reacts to it with a crash, a hang or wrong text. A plain
// row must be refused by strict and shape, and pass where the check is off.
func TestHandoffShapes(t *testing.T) {
	for _, row := range []struct {
		name   string
		params string
		tokens int
		fault  HandoffFault
	}{
		{"no block list", with("remote_block_ids:"), 33, FaultMissingKey},
		{"block list null", with("remote_block_ids:null"), 33, FaultKind},
		{"block list text", with(`remote_block_ids:"x"`), 33, FaultKind},
		{"no group", with("remote_block_ids:[]"), 33, FaultBlocks},
		{"empty group", with("remote_block_ids:[[]]"), 33, FaultBlocks},
		{"empty groups", with("remote_block_ids:[[],[]]"), 33, FaultBlocks},
		{"flat list", with("remote_block_ids:[1,2]"), 33, FaultBlocks},
		{"negative block", with("remote_block_ids:[[1,-2]]"), 33, FaultBlocks},
		{"fractional block", with("remote_block_ids:[[1,2.5]]"), 33, FaultBlocks},
		{"block of text", with(`remote_block_ids:[[1,"2"]]`), 33, FaultBlocks},
		{"block beyond 31 bits", with("remote_block_ids:[[1,2147483648]]"), 33, FaultBlocks},
		{"no port", with("remote_port:"), 33, FaultMissingKey},
		{"port null", with("remote_port:null"), 33, FaultKind},
		{"port 0", with("remote_port:0"), 33, FaultPort},
		{"port negative", with("remote_port:-1"), 33, FaultPort},
		{"port 65536", with("remote_port:65536"), 33, FaultPort},
		{"port fraction", with("remote_port:5600.5"), 33, FaultKind},
		{"port text 0", with(`remote_port:"0"`), 33, FaultPort},
		{"port text signed", with(`remote_port:"+5600"`), 33, FaultPort},
		{"port text blank", with(`remote_port:" 5600"`), 33, FaultPort},
		{"port text float", with(`remote_port:"5600.0"`), 33, FaultPort},
		{"port text hex", with(`remote_port:"0x10"`), 33, FaultPort},
		{"port text huge", with(`remote_port:"65536"`), 33, FaultPort},
		{"no host", with("remote_host:"), 33, FaultMissingKey},
		{"host null", with("remote_host:null"), 33, FaultKind},
		{"host blank", with(`remote_host:" \t"`), 33, FaultBlank},
		{"no engine id", with("remote_engine_id:"), 33, FaultMissingKey},
		{"engine id number", with("remote_engine_id:7"), 33, FaultKind},
		{"engine id empty", with(`remote_engine_id:""`), 33, FaultBlank},
		{"no request id", with("remote_request_id:"), 33, FaultMissingKey},
		{"request id empty", with(`remote_request_id:""`), 33, FaultBlank},
		{"switch as a number", with("do_remote_prefill:1"), 33, FaultKind},
		{"switch as a text", with(`do_remote_prefill:"true"`), 33, FaultKind},
		{"no transfer_mode is pull", with("transfer_mode:", "remote_host:"), 33, FaultMissingKey},
		{"null transfer_mode is pull", with("transfer_mode:null", "remote_host:"), 33, FaultMissingKey},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, level := range []HandoffCheck{HandoffStrict, HandoffShape, HandoffOff} {
				e := engine(protocol.Decode)
				e.HandoffCheck = level
				_, refusal := e.Convert("id", decodeRequest(t, row.params, row.tokens))
				if level == HandoffOff {
					if refusal != nil {
						t.Errorf("off: %v", refusal)
					}
					continue
				}
				if refusal == nil {
					t.Errorf("level %d: accepted", level)
					continue
				}
				if refusal.Handoff != row.fault || refusal.Err.Kind != protocol.ErrorBackendDisconnected {
					t.Errorf("level %d: fault %q (%v), want %q", level, refusal.Handoff, refusal, row.fault)
				}
			}
		})
	}
}

// TestHandoffCount: only the strict check counts, and only where the count is known.
func TestHandoffCount(t *testing.T) {
	unknown := engine(protocol.Decode)
	unknown.BlockSize = 0
	shape := engine(protocol.Decode)
	shape.HandoffCheck = HandoffShape
	strict := engine(protocol.Decode)
	for _, row := range []struct {
		name   string
		engine *Engine
		params string
		tokens int
		fits   bool
	}{
		{"33 tokens", strict, with(), 33, true},
		{"64 tokens", strict, with(), 64, true},
		{"32 tokens fill one block", strict, with(), 32, false},
		{"65 tokens fill three", strict, with(), 65, false},
		{"one token", strict, with("remote_block_ids:[[0]]"), 1, true},
		{"floats of a codec", strict, with("remote_block_ids:[[1.0,2.0]]", "remote_port:5600.0"), 33, true},
		{"port as text", strict, with(`remote_port:"5600"`), 33, true},
		{"two groups are not counted", strict, with("remote_block_ids:[[1],[2,3,4]]"), 33, true},
		{"a group without blocks", strict, with("remote_block_ids:[[],[2,3]]"), 33, true},
		{"context parallelism is not counted", strict, with("dcp_size:2", "remote_block_ids:[[1]]"), 33, true},
		{"shape does not count", shape, with(), 500, true},
		{"unknown block size", unknown, with(), 500, true},
		{"minimal keys", strict, with("tp_size:", "dcp_size:", "pp_size:", "remote_num_tokens:", "remote_blocks_expiry_time:", "transfer_mode:", "do_remote_decode:"), 33, true},
		{"further keys", strict, with(`whatever:{"a":[1]}`), 33, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			call, refusal := row.engine.Convert("id", decodeRequest(t, row.params, row.tokens))
			if (refusal == nil) != row.fits {
				t.Fatalf("refusal %v, want fits %v", refusal, row.fits)
			}
			if refusal != nil && refusal.Handoff != FaultBlockCount {
				t.Errorf("fault %q", refusal.Handoff)
			}
			if call != nil && !call.HandoffUsed {
				t.Error("HandoffUsed is not set")
			}
		})
	}
}

// TestHandoffPassesOpaque: what is no NIXL pull is somebody else's to check.
func TestHandoffPassesOpaque(t *testing.T) {
	for _, params := range []string{
		`{}`,
		`{"anything":[{"nested":null}]}`,
		`{"do_remote_prefill":true}`,
		`{"do_remote_prefill":true,"transfer_id":"t","remote_bootstrap_addr":"http://h:1","remote_engine_id":"e"}`,
		`{"do_remote_prefill":false,"remote_port":0}`,
		with("do_remote_prefill:", "remote_host:"),
		with(`transfer_mode:"push"`, "remote_block_ids:[]"),
	} {
		if _, refusal := engine(protocol.Decode).Convert("id", decodeRequest(t, params, 33)); refusal != nil {
			t.Errorf("%s: %v", params, refusal)
		}
	}
}

// TestHandoffConversion: what the engine gets of a hand-off.
func TestHandoffConversion(t *testing.T) {
	for _, row := range []struct{ name, params, want string }{
		{"as it is", `{"n":null,"b":true,"i":-3,"f":0.5,"s":"x","l":[[1],[]],"m":{"k":{}}}`, `{"n":null,"b":true,"i":-3,"f":0.5,"s":"x","l":[[1],[]],"m":{"k":{}}}`},
		{"port", `{"remote_port":5600}`, `{"remote_port":"5600"}`},
		{"port of a float codec", `{"remote_port":5600.0}`, `{"remote_port":"5600"}`},
		{"port 0", `{"remote_port":0}`, `{"remote_port":"0"}`},
		{"port text", `{"remote_port":"5600"}`, `{"remote_port":"5600"}`},
		{"port null", `{"remote_port":null}`, `{"remote_port":null}`},
		{"port fraction", `{"remote_port":1.5}`, `{"remote_port":1.5}`},
		{"port negative", `{"remote_port":-1}`, `{"remote_port":-1}`},
		{"port beyond exactness", `{"remote_port":1e300}`, `{"remote_port":1e300}`},
		{"nested port", `{"a":{"remote_port":5600}}`, `{"a":{"remote_port":5600}}`},
		{"the stamp stays between sidecars", `{"_remora":"1;2;3","a":1}`, `{"a":1}`},
		{"nested stamp is not ours", `{"a":{"_remora":1}}`, `{"a":{"_remora":1}}`},
		{"largest integers", `{"a":[9007199254740991,-9007199254740991]}`, `{"a":[9007199254740991,-9007199254740991]}`},
		{"forty levels", strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40), strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40)},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := decodeRequest(t, row.params, 3)
			before := r.PrefillResult.DisaggregatedParams
			call, refusal := engine(protocol.Decode).Convert("id", r)
			if refusal != nil {
				t.Fatal(refusal)
			}
			if got := call.Request.GetKv().GetKvTransferParams(); !proto.Equal(object(t, row.want), got) {
				t.Errorf("got %v", got)
			}
			if !reflect.DeepEqual(value(t, row.params), before) {
				t.Errorf("the request was changed to %s", before.AppendJSON(nil))
			}
			if _, err := proto.Marshal(call.Request); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHandoffIgnoresOwnParameters: a decode takes the hand-off, whatever kv_transfer_params the client sent.
func TestHandoffIgnoresOwnParameters(t *testing.T) {
	call := convert(t, engine(protocol.Decode), `"prefill_result":{"disaggregated_params":{"a":1}},`+extra(`"kv_transfer_params":7`))
	if diff := cmp.Diff(object(t, `{"a":1}`), call.Request.GetKv().GetKvTransferParams(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// TestHandoffRefusedAsInvalid: these no repeated prefill can mend.
func TestHandoffRefusedAsInvalid(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70)
	for _, row := range []struct {
		name    string
		members string
		fault   HandoffFault
		words   string
	}{
		{"no prefill_result", ``, FaultAbsent, "prefill_result"},
		{"null parameters", `"prefill_result":{"disaggregated_params":null}`, FaultNotObject, "object"},
		{"parameters of text", `"prefill_result":{"disaggregated_params":"x"}`, FaultNotObject, "object"},
		{"2^53", `"prefill_result":{"disaggregated_params":{"a":{"room":9007199254740992}}}`, FaultInteger, ".a.room is 9007199254740992"},
		{"-2^53", `"prefill_result":{"disaggregated_params":{"l":[0,-9007199254740992]}}`, FaultInteger, ".l[1] is -9007199254740992"},
		{"uint64", `"prefill_result":{"disaggregated_params":{"room":18446744073709551615}}`, FaultInteger, ".room is 18446744073709551615"},
		{"too deep", `"prefill_result":{"disaggregated_params":` + deep + `}`, FaultValue, "nested too deeply"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, refusal := engine(protocol.Decode).Convert("id", request(t, row.members))
			if refusal == nil {
				t.Fatal("accepted")
			}
			if refusal.Handoff != row.fault || refusal.Err.Kind != protocol.ErrorBackendInvalidArgument || !strings.Contains(refusal.Err.Error(), row.words) {
				t.Errorf("fault %q, %v", refusal.Handoff, refusal)
			}
			if strings.Contains(refusal.Err.Public, row.words) {
				t.Errorf("clients see %q", refusal.Err.Public)
			}
		})
	}
	for name, v := range map[string]protocol.Value{"NaN": protocol.Float(nan()), "bytes": {Kind: protocol.KindBytes, Bytes: []byte{1}}} {
		r := request(t, "")
		r.PrefillResult = &protocol.PrefillResult{DisaggregatedParams: protocol.Map(protocol.Member{Key: "k", Value: v})}
		if _, refusal := engine(protocol.Decode).Convert("id", r); refusal == nil || refusal.Handoff != FaultValue {
			t.Errorf("%s: %v", name, refusal)
		}
	}
}

// TestTruthy: the engine takes any of these for "pull", so a shape behind any of them must be looked at.
func TestTruthy(t *testing.T) {
	for text, want := range map[string]bool{
		`null`: false, `false`: false, `true`: true, `0`: false, `-1`: true, `18446744073709551615`: true, `0.0`: false, `0.5`: true,
		`""`: false, `"false"`: true, `[]`: false, `[0]`: true, `{}`: false, `{"a":null}`: true,
	} {
		if truthy(value(t, text)) != want {
			t.Errorf("%s: want %v", text, want)
		}
	}
	for _, b := range [][]byte{nil, {0}} {
		if truthy(protocol.Value{Kind: protocol.KindBytes, Bytes: b}) != (len(b) > 0) {
			t.Errorf("bytes %v", b)
		}
	}
}
