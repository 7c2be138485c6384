package translate

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"remora/internal/dynamo/protocol"
)

func TestStampRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Stamp{
			Finished: rapid.Int64().Draw(t, "finished"), Lease: time.Duration(rapid.Uint32().Draw(t, "lease")) * time.Millisecond,
			BlockSize: rapid.Uint32().Draw(t, "block"), Prompt: Prompt{rapid.Uint32().Draw(t, "tokens"), rapid.Uint64().Draw(t, "hash")},
		}
		out, err := ParseStamp(in.String())
		if err != nil || out != in {
			t.Fatalf("%q gave %+v, %v", in.String(), out, err)
		}
	})
}

func TestStampAge(t *testing.T) {
	const second = int64(time.Second)
	stamp := Stamp{Finished: 1000 * second, Lease: 30 * time.Second}
	for _, row := range []struct {
		name  string
		stamp Stamp
		sent  int64
		since time.Duration
		known bool
		stale bool
	}{
		{"fresh", stamp, 1001 * second, 0, true, false},
		{"just below lease - lease/6 - 2 s", stamp, 1023 * second, 0, true, false},
		{"above it", stamp, 1023*second + 1, 0, true, true},
		{"waited here", stamp, 1020 * second, 4 * time.Second, true, true},
		{"short lease: never below its half", Stamp{Finished: 1000 * second, Lease: 4 * time.Second}, 1002 * second, 0, true, false},
		{"short lease, beyond its half", Stamp{Finished: 1000 * second, Lease: 4 * time.Second}, 1002*second + 1, 0, true, true},
		{"negative", stamp, 999 * second, 0, false, false},
		{"absurd", stamp, 1000*second + 25*3600*second, 0, false, false},
		{"just not absurd", Stamp{Finished: 1000 * second, Lease: 48 * time.Hour}, 1000*second + 24*3600*second - 1, time.Hour, true, false},
		{"absurd to the nanosecond", Stamp{Finished: 1000 * second, Lease: 48 * time.Hour}, 1000*second + 24*3600*second, 0, false, false},
		{"no time of the prefill", Stamp{Lease: 30 * time.Second}, 5 * second, 0, false, false},
		{"a prefill before time began", Stamp{Finished: -second, Lease: 30 * time.Second}, 5 * second, 0, false, false},
		{"a decode before time began", Stamp{Finished: 1, Lease: 30 * time.Second}, -second, 0, false, false},
		{"both ends of time", Stamp{Finished: math.MinInt64, Lease: 30 * time.Second}, math.MaxInt64, math.MaxInt64, false, false},
		{"no lease", Stamp{Finished: 1000 * second}, 1001 * second, 0, false, false},
		{"no stamp", Stamp{}, 1001 * second, 0, false, false},
		{"no time of the decode", stamp, 0, 0, false, false},
	} {
		age, known := row.stamp.Age(row.sent, row.since)
		if known != row.known || known && row.stamp.Stale(age) != row.stale {
			t.Errorf("%s: age %v, known %v, stale %v", row.name, age, known, row.stamp.Stale(age))
		}
	}
}

// TestStampIsAdded to an object, once, and leaves the one that it was given as it is.
func TestStampIsAdded(t *testing.T) {
	s := Stamp{Finished: 1, Lease: time.Second}
	bare := protocol.Map(protocol.Member{Key: "a", Value: protocol.Int(1)})
	once := s.Add(bare)
	s.Finished = 2
	twice := s.Add(once)
	text, _ := twice.Get(stampKey)
	if len(bare.Map) != 1 || len(once.Map) != 2 || len(twice.Map) != 2 || text.Str != s.String() {
		t.Errorf("%v, %v, %v", bare, once, twice)
	}
	if got := s.Add(protocol.Int(1)); got.Kind != protocol.KindInt {
		t.Errorf("a number became %v", got)
	}
}

// TestStampInHandoff: what a stamp changes for a decode, and that no engine sees it.
func TestStampInHandoff(t *testing.T) {
	prompt := make([]uint32, 33)
	mark := func(change func(*Stamp)) string {
		s := Stamp{Finished: 1, Lease: 30 * time.Second, BlockSize: 32, Prompt: promptOf(prompt, nil)}
		change(&s)
		return `_remora:"` + s.String() + `"`
	}
	for _, row := range []struct {
		name  string
		check HandoffCheck
		stamp string
		fault HandoffFault
		read  bool
	}{
		{"good", HandoffStrict, mark(func(*Stamp) {}), FaultNone, true},
		{"other prompt", HandoffStrict, mark(func(s *Stamp) { s.Prompt.Hash++ }), FaultTokens, false},
		{"other length", HandoffShape, mark(func(s *Stamp) { s.Prompt.Tokens++ }), FaultTokens, false},
		{"not looked at", HandoffOff, mark(func(s *Stamp) { s.Prompt.Hash++ }), FaultNone, true},
		{"the prefill engine's block size counts", HandoffStrict, mark(func(s *Stamp) { s.BlockSize = 16 }), FaultBlockCount, false},
		{"garbage is as good as none", HandoffStrict, `_remora:"2;x"`, FaultNone, false},
		{"a later version is as good as none", HandoffStrict, `_remora:"2` + strings.TrimPrefix(Stamp{Finished: 1, Lease: time.Second}.String(), "1") + `"`, FaultNone, false},
		{"another kind is as good as none", HandoffStrict, `_remora:7`, FaultNone, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := &Engine{Role: protocol.Decode, ServedName: "tiny", BlockSize: 32, HandoffCheck: row.check}
			call, refusal := e.Convert("r", decodeRequest(t, with(row.stamp), len(prompt)))
			if row.fault != FaultNone {
				if refusal == nil || refusal.Handoff != row.fault || refusal.Err.Kind != protocol.ErrorBackendDisconnected {
					t.Fatalf("refusal %v, want fault %s of a kind that may migrate", refusal, row.fault)
				}
				return
			}
			if refusal != nil {
				t.Fatal(refusal)
			}
			if (call.Stamp != Stamp{}) != row.read || call.HandoffKey == "" || call.Prompt != promptOf(prompt, nil) {
				t.Errorf("stamp %+v, key %q, prompt %+v", call.Stamp, call.HandoffKey, call.Prompt)
			}
			if _, there := call.Request.GetKv().GetKvTransferParams().GetFields()[stampKey]; there {
				t.Error("the engine gets to see the stamp")
			}
		})
	}
}

// TestHandoffKey: a hand-off is told from others by both its names together.
func TestHandoffKey(t *testing.T) {
	seen := map[string]string{}
	for _, row := range []string{
		`{"remote_engine_id":"p","remote_request_id":"r"}`, `{"remote_engine_id":"q","remote_request_id":"r"}`,
		`{"remote_engine_id":"p","remote_request_id":"s"}`, `{"remote_engine_id":"pr","remote_request_id":""}`,
		`{"remote_engine_id":"","remote_request_id":"pr"}`,
	} {
		key := handoffKey(value(t, row))
		if other, there := seen[key]; there || key == "" {
			t.Errorf("%s has the key %q of %s", row, key, other)
		}
		seen[key] = row
	}
	for _, row := range []string{`{}`, `{"remote_engine_id":"p"}`, `{"remote_request_id":"r"}`, `{"remote_engine_id":1,"remote_request_id":"r"}`, `[]`} {
		if key := handoffKey(value(t, row)); key != "" {
			t.Errorf("%s has the key %q", row, key)
		}
	}
}

// TestUnclaimed: a decode that is refused for a reason of its own leaves a hand-off that must be released (M10).
func TestUnclaimed(t *testing.T) {
	e := &Engine{Role: protocol.Decode, ServedName: "tiny", BlockSize: 32}
	good := decodeRequest(t, with(), 33)
	n := uint8(2)
	good.SamplingOptions.N = &n
	if _, refusal := e.Convert("r", good); refusal == nil || refusal.Unclaimed == nil {
		t.Errorf("n = 2: %+v", refusal)
	}
	bad := decodeRequest(t, with(`remote_port:0`), 33)
	bad.SamplingOptions.N = &n
	if _, refusal := e.Convert("r", bad); refusal == nil || refusal.Unclaimed != nil {
		t.Errorf("n = 2 and a bad hand-off: %+v", refusal)
	}
	if _, refusal := e.Convert("r", decodeRequest(t, with(`remote_port:0`), 33)); refusal == nil || refusal.Unclaimed != nil {
		t.Errorf("bad hand-off: %+v", refusal)
	}
}

func FuzzParseStamp(f *testing.F) {
	f.Add(Stamp{Finished: 1790000000000000000, Lease: 30 * time.Second, BlockSize: 16, Prompt: Prompt{33, 0xabc}}.String())
	f.Add("1;;;;;")
	f.Add("1;-5;30000;16;33;zz")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseStamp(text)
		if err != nil {
			return
		}
		if again, err := ParseStamp(s.String()); err != nil || again != s {
			t.Errorf("%q: %+v, then %+v, %v", text, s, again, err)
		}
		if strings.Contains(s.String(), "\n") {
			t.Errorf("%q has a line break", s.String())
		}
	})
}
