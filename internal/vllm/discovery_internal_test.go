package vllm

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

func TestDiscovered(t *testing.T) {
	// What vLLM 0.32.0 answered for a small model, recorded.
	got, err := discovered(vllmtest.DefaultModel(), vllmtest.DefaultServer())
	want := Discovery{
		ModelID: "/models/tiny", ServedName: "tiny",
		EngineVersion: "0.32.0", Version: Version{0, 32, 0}, InstanceID: "1796041382615192848",
		ContextLength: 512, BlockSize: 32, BlocksPerRank: 65, MaxRunning: 4, MaxBatched: 2048,
		Ranks:       LocalRanks{Start: 0, Count: 1, Global: 1},
		Parallelism: &Parallelism{Tensor: 1, Pipeline: 1, Data: 1, DecodeContext: 1, World: 1, DataLocal: 1},
		RL:          &RL{},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}

	refusals := []struct {
		name   string
		change func(m *pb.ModelInfo, s *pb.ServerInfo)
		want   string
	}{
		{"api version", func(_ *pb.ModelInfo, s *pb.ServerInfo) { s.ApiVersion = "sglang" }, `api_version is "sglang"`},
		{"no api version", func(_ *pb.ModelInfo, s *pb.ServerInfo) { s.ApiVersion = "" }, "api_version"},
		{"model id", func(m *pb.ModelInfo, _ *pb.ServerInfo) { m.ModelId = " " }, "model_id is blank"},
		{"served name", func(m *pb.ModelInfo, _ *pb.ServerInfo) { m.ServedModelName = "\t" }, "served_model_name is blank"},
		{"token ids", func(m *pb.ModelInfo, _ *pb.ServerInfo) { m.SupportsTokenIdsInput = false }, "does not take token ids"},
		{"block size", func(_ *pb.ModelInfo, s *pb.ServerInfo) {
			s.EffectiveAttentionBlockSize = proto.Uint64(math.MaxUint32 + 1)
		}, "effective_attention_block_size"},
		{"data parallel size", func(_ *pb.ModelInfo, s *pb.ServerInfo) { s.Parallelism.DataParallelSize = 0 }, "data_parallel_size is 0"},
	}
	for _, test := range refusals {
		t.Run(test.name, func(t *testing.T) {
			model, server := vllmtest.DefaultModel(), vllmtest.DefaultServer()
			test.change(model, server)
			_, err := discovered(model, server)
			if KindOfError(err) != Protocol || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, err := discovered(nil, nil); KindOfError(err) != Protocol {
		t.Errorf("empty answers: %v", err)
	}
}

func TestSizes(t *testing.T) {
	tests := []struct {
		name          string
		change        func(s *pb.ServerInfo)
		block         uint32
		blocksPerRank uint64
		note          string
	}{
		{"attention's own block size", func(s *pb.ServerInfo) { s.EffectiveAttentionBlockSize = proto.Uint64(64) }, 64, 65, ""},
		{"none told", func(s *pb.ServerInfo) { s.EffectiveAttentionBlockSize = nil }, 32, 65, ""},
		{"zero told", func(s *pb.ServerInfo) { s.EffectiveAttentionBlockSize = proto.Uint64(0) }, 32, 65, ""},
		{"neither", func(s *pb.ServerInfo) { s.EffectiveAttentionBlockSize, s.KvBlockSize = nil, 0 }, 0, 65, ""},
		{"no blocks told", func(s *pb.ServerInfo) { s.TotalKvBlocks = 0 }, 32, 0, ""},
		{"divides", func(s *pb.ServerInfo) {
			s.TotalKvBlocks, s.Parallelism.DataParallelSize, s.Parallelism.DataParallelSizeLocal = 400, 4, 4
		}, 32, 100, ""},
		{"remainder", func(s *pb.ServerInfo) {
			s.TotalKvBlocks, s.Parallelism.DataParallelSize, s.Parallelism.DataParallelSizeLocal = 401, 4, 4
		}, 32, 100, "does not divide"},
		{"less than one", func(s *pb.ServerInfo) {
			s.TotalKvBlocks, s.Parallelism.DataParallelSize, s.Parallelism.DataParallelSizeLocal = 3, 4, 4
		}, 32, 1, "less than one"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := vllmtest.DefaultServer()
			test.change(server)
			got, err := discovered(vllmtest.DefaultModel(), server)
			if err != nil || got.BlockSize != test.block || got.BlocksPerRank != test.blocksPerRank {
				t.Errorf("got block size %d, %d blocks, %v", got.BlockSize, got.BlocksPerRank, err)
			}
			if notes := strings.Join(got.Notes, "\n"); (notes == "") != (test.note == "") || !strings.Contains(notes, test.note) {
				t.Errorf("notes %q, want %q", notes, test.note)
			}
		})
	}
}

func TestLocalRanks(t *testing.T) {
	tests := []struct {
		name    string
		p       *Parallelism
		want    LocalRanks
		note    string
		refusal string
	}{
		{"absent", nil, LocalRanks{0, 1, 1}, "", ""},
		{"local unknown, one rank", &Parallelism{Data: 1}, LocalRanks{0, 1, 1}, "", ""},
		{"local unknown, four ranks", &Parallelism{Data: 4}, LocalRanks{0, 4, 4}, "all are taken to be", ""},
		{"local unknown, not the first", &Parallelism{Data: 4, DataRank: 1}, LocalRanks{}, "", "is not told"},
		{"upper half", &Parallelism{Data: 8, DataRank: 4, DataLocal: 4}, LocalRanks{4, 4, 8}, "", ""},
		{"all", &Parallelism{Data: 8, DataLocal: 8}, LocalRanks{0, 8, 8}, "", ""},
		{"one too many", &Parallelism{Data: 8, DataRank: 5, DataLocal: 4}, LocalRanks{}, "", "do not fit"},
		{"overflow", &Parallelism{Data: 8, DataRank: math.MaxUint32, DataLocal: math.MaxUint32}, LocalRanks{}, "", "do not fit"},
		{"no ranks", &Parallelism{DataLocal: 1}, LocalRanks{}, "", "is 0"},
		{"absurd", &Parallelism{Data: math.MaxUint32}, LocalRanks{}, "", "beyond all reason"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, note, err := localRanks(test.p)
			if got != test.want || (note == "") != (test.note == "") || !strings.Contains(note, test.note) {
				t.Errorf("got %v, note %q", got, note)
			}
			if (err == nil) != (test.refusal == "") || err != nil && (KindOfError(err) != Protocol || !strings.Contains(err.Error(), test.refusal)) {
				t.Errorf("error %v, want %q", err, test.refusal)
			}
		})
	}
	upper := LocalRanks{4, 4, 8}
	for rank, want := range map[uint32]bool{0: false, 3: false, 4: true, 7: true, 8: false, math.MaxUint32: false} {
		if upper.Contains(rank) != want {
			t.Errorf("contains %d: %v", rank, !want)
		}
	}
	if upper.String() != "ranks 4-7 of 8" || (LocalRanks{0, 1, 1}).String() != "rank 0 of 1" {
		t.Error(upper)
	}
}

func TestSameIdentity(t *testing.T) {
	base := func(change func(m *pb.ModelInfo, s *pb.ServerInfo)) Discovery {
		model, server := vllmtest.DefaultModel(), vllmtest.DefaultServer()
		model.ServedModelAliases = []string{"a", "b"}
		if change != nil {
			change(model, server)
		}
		d, err := discovered(model, server)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	differ := []struct {
		name   string
		change func(m *pb.ModelInfo, s *pb.ServerInfo)
		want   string
	}{
		{"model", func(m *pb.ModelInfo, _ *pb.ServerInfo) { m.ModelId = "/models/big" }, `model_id was "/models/tiny" and is "/models/big"`},
		{"served name", func(m *pb.ModelInfo, _ *pb.ServerInfo) { m.ServedModelName = "big" }, `"tiny" and is "big"`},
		{"order of aliases", func(m *pb.ModelInfo, _ *pb.ServerInfo) { m.ServedModelAliases = []string{"b", "a"} }, `["a" "b"] and is ["b" "a"]`},
		{"reasoning parser", func(m *pb.ModelInfo, _ *pb.ServerInfo) { m.ReasoningParser = "r" }, "reasoning_parser"},
		{"tool parser", func(m *pb.ModelInfo, _ *pb.ServerInfo) { m.ToolCallParser = "t" }, "tool_call_parser"},
		{"lora", func(m *pb.ModelInfo, _ *pb.ServerInfo) { m.SupportsLora = true }, "supports_lora was false and is true"},
		{"max loras", func(_ *pb.ModelInfo, s *pb.ServerInfo) { s.MaxLoras = 2 }, "max_loras was 0 and is 2"},
		{"tensor parallel", func(_ *pb.ModelInfo, s *pb.ServerInfo) { s.Parallelism.TensorParallelSize = 2 }, "tensor 2"},
		{"parallelism gone", func(_ *pb.ModelInfo, s *pb.ServerInfo) { s.Parallelism = nil }, "and is absent"},
		{"rl gone", func(_ *pb.ModelInfo, s *pb.ServerInfo) { s.Rl = nil }, "rl was"},
		{"sleep mode", func(_ *pb.ModelInfo, s *pb.ServerInfo) { s.Rl.SleepModeEnabled = true }, "sleep mode true"},
	}
	for _, test := range differ {
		t.Run(test.name, func(t *testing.T) {
			err := base(nil).SameIdentity(base(test.change))
			if KindOfError(err) != Protocol || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	same := base(func(m *pb.ModelInfo, s *pb.ServerInfo) {
		m.SupportsMultimodal = true
		s.MaxModelLen, s.KvBlockSize, s.TotalKvBlocks, s.EngineVersion, s.InstanceId = 1, 1, 1, "0.33.0", "other"
	})
	if err := base(nil).SameIdentity(same); err != nil {
		t.Errorf("sizes, version and instance may change: %v", err)
	}
	same.BlockSize = 1
	err := base(nil).SameServing(same)
	want := "the engine is not the one that was discovered first: max_model_len was 512 and is 1; KV block size was 32 and is 1"
	same.BlockSize = 32
	if KindOfError(err) != Protocol || err.Error() != want {
		t.Errorf("SameServing: %v", err)
	}
	same.ContextLength = 512
	if err = base(nil).SameServing(same); err != nil {
		t.Errorf("capacity, version and instance may change: %v", err)
	}
	same.ModelID = "/models/big"
	if err = base(nil).SameServing(same); KindOfError(err) != Protocol || !strings.Contains(err.Error(), "model_id") {
		t.Errorf("SameServing: %v", err)
	}
}

func TestParseVersion(t *testing.T) {
	tests := []struct {
		text string
		want Version
		ok   bool
	}{
		{"0.32.0", Version{0, 32, 0}, true},
		{"v0.32.1", Version{0, 32, 1}, true},
		{" 0.32 ", Version{0, 32, 0}, true},
		{"0.32.1rc1", Version{0, 32, 1}, true},
		{"0.32rc1", Version{0, 32, 0}, true},
		{"0.32.dev3", Version{0, 32, 0}, true},
		{"0.33.0.dev41+g1a2b3c4", Version{0, 33, 0}, true},
		{"1.2.3.4", Version{1, 2, 3}, true},
		{"0.32.0+cpu", Version{0, 32, 0}, true},
		{"", Version{}, false},
		{"dev", Version{}, false},
		{"0", Version{}, false},
		{"0.", Version{}, false},
		{"0.x", Version{}, false},
		{"0.99999999999999999999", Version{}, false},
		{"-1.2", Version{}, false},
	}
	for _, test := range tests {
		if got, ok := ParseVersion(test.text); got != test.want || ok != test.ok {
			t.Errorf("%q: %v %v, want %v %v", test.text, got, ok, test.want, test.ok)
		}
	}
	if v := (Version{0, 32, 0}); !v.AtLeast(0, 32) || v.AtLeast(0, 33) || v.AtLeast(1, 0) || !(Version{1, 0, 0}).AtLeast(0, 32) {
		t.Error("AtLeast")
	}
	if got := (Version{0, 32, 1}).String(); got != "0.32.1" {
		t.Error(got)
	}
}

func FuzzParseVersion(f *testing.F) {
	for _, text := range []string{"0.32.0", "v1.2rc3", "1..2", "9.9.9.9", "0.99999999999999999999"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := ParseVersion(text)
		if !ok && got != (Version{}) {
			t.Errorf("%q: %v without being one", text, got)
		}
		if again, _ := ParseVersion(got.String()); again != got {
			t.Errorf("%q: %v reads as %v", text, got, again)
		}
	})
}
