package decode_test

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"remora/internal/vllm/decode"
	pb "remora/proto/vllm"
)

const limit = 1 << 20

// frame puts gRPC's prefix before a message.
func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// same checks that the decoder and the generated code agree about the bytes of one message.
func same(t testing.TB, decoder *decode.Decoder, wire []byte) {
	t.Helper()
	want := new(pb.GenerateResponse)
	wantErr := proto.Unmarshal(wire, want)
	got, rest, err := decoder.Batch(frame(wire))
	if wantErr != nil {
		if !errors.Is(err, decode.ErrMalformed) || len(got) != 0 {
			t.Fatalf("% x: error %v, the generated code says %v", wire, err, wantErr)
		}
		return
	}
	if err != nil || len(rest) != 0 || len(got) != 1 {
		t.Fatalf("% x: %d messages, %d bytes left, error %v", wire, len(got), len(rest), err)
	}
	equal(t, got[0], want)
}

// equal is proto.Equal, and that empty lists are nil on both sides: encoders tell the difference.
func equal(t testing.TB, got, want *pb.GenerateResponse) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	a, b := got.GetOutputs(), want.GetOutputs()
	if (a.GetTokenIds() == nil) != (b.GetTokenIds() == nil) || (a.GetLogprobs() == nil) != (b.GetLogprobs() == nil) ||
		(a.GetRanks() == nil) != (b.GetRanks() == nil) || (a.GetCandidateTokens() == nil) != (b.GetCandidateTokens() == nil) {
		t.Fatalf("empty and absent lists differ: got %v, want %v", got, want)
	}
}

func anyOutput(t *rapid.T) *pb.SequenceOutput {
	numbers := rapid.SliceOfN(rapid.Uint32(), 0, 5)
	floats := rapid.SliceOfN(rapid.Float32(), 0, 5)
	out := &pb.SequenceOutput{
		Index:     rapid.SampledFrom([]uint32{0, 0, 0, 1, math.MaxUint32}).Draw(t, "index"),
		NumTokens: rapid.Uint32().Draw(t, "num"),
		TokenIds:  numbers.Draw(t, "ids"),
		Logprobs:  floats.Draw(t, "logprobs"),
		Ranks:     numbers.Draw(t, "ranks"),
	}
	if rapid.Bool().Draw(t, "with text") {
		out.Text = rapid.String().Draw(t, "text")
	}
	for range rapid.IntRange(0, 3).Draw(t, "lists") {
		list := &pb.CandidateTokenInfo{}
		for range rapid.IntRange(0, 3).Draw(t, "candidates") {
			list.Tokens = append(list.Tokens, &pb.TokenInfo{
				Id: rapid.Uint32().Draw(t, "id"), Logprob: rapid.Float32().Draw(t, "lp"), Rank: rapid.Uint32().Draw(t, "rank"),
			})
		}
		out.CandidateTokens = append(out.CandidateTokens, list)
	}
	if rapid.IntRange(0, 3).Draw(t, "finishes") == 0 {
		out.FinishInfo = &pb.FinishInfo{
			NumOutputTokens:  rapid.Uint32().Draw(t, "total"),
			FinishReason:     pb.FinishInfo_FinishReason(rapid.Int32Range(-1, 9).Draw(t, "reason")),
			KvTransferParams: &structpb.Struct{Fields: map[string]*structpb.Value{"block": structpb.NewNumberValue(rapid.Float64().Draw(t, "x"))}},
		}
	}
	return out
}

func anyMessage(t *rapid.T) *pb.GenerateResponse {
	message := new(pb.GenerateResponse)
	if rapid.IntRange(0, 5).Draw(t, "has prompt") == 0 {
		message.PromptInfo = &pb.PromptInfo{NumPromptTokens: rapid.Uint32().Draw(t, "prompt"), TokenIds: []uint32{1, 2}}
	}
	if rapid.IntRange(0, 9).Draw(t, "has outputs") > 0 {
		message.Outputs = anyOutput(t)
	}
	return message
}

// Whatever the messages, however they are cut into pieces: the decoder and the generated code read the same.
func TestSameAsGenerated(t *testing.T) {
	decoder := &decode.Decoder{Limit: limit} // one for all, so that nothing of a message may show in the next
	rapid.Check(t, func(t *rapid.T) {
		var wire []byte
		var want []*pb.GenerateResponse
		for range rapid.IntRange(0, 6).Draw(t, "messages") {
			message := anyMessage(t)
			data, err := proto.Marshal(message)
			if err != nil {
				t.Fatal(err)
			}
			switch rapid.IntRange(0, 5).Draw(t, "addition") {
			case 0: // a field that is not known yet
				data = protowire.AppendTag(data, protowire.Number(rapid.Int32Range(3, 1<<20).Draw(t, "field")), protowire.VarintType)
				data = protowire.AppendVarint(data, rapid.Uint64().Draw(t, "value"))
			case 1: // a second occurrence, which is merged into the first
				more, _ := proto.Marshal(anyMessage(t))
				data = append(data, more...)
			case 2: // an unknown field inside the output
				inner := protowire.AppendTag(nil, 30, protowire.BytesType)
				inner = protowire.AppendBytes(inner, []byte("later"))
				data = protowire.AppendTag(data, 2, protowire.BytesType)
				data = protowire.AppendBytes(data, inner)
			}
			parsed := new(pb.GenerateResponse)
			if err = proto.Unmarshal(data, parsed); err != nil {
				t.Fatal(err)
			}
			wire, want = append(wire, frame(data)...), append(want, parsed)
		}
		var tail []byte
		for len(wire) > 0 {
			n := rapid.IntRange(1, len(wire)).Draw(t, "piece")
			tail = append(tail, wire[:n]...)
			wire = wire[n:]
			got, rest, err := decoder.Batch(tail)
			if err != nil || len(got) > len(want) {
				t.Fatalf("%d messages, error %v", len(got), err)
			}
			for i, message := range got {
				if !proto.Equal(message, want[i]) {
					t.Fatalf("got %v, want %v", message, want[i])
				}
			}
			want, tail = want[len(got):], append([]byte(nil), rest...)
		}
		if len(want) > 0 || len(tail) > 0 {
			t.Fatalf("%d messages and %d bytes left", len(want), len(tail))
		}
	})
}

func TestByHand(t *testing.T) {
	tests := map[string][]byte{
		"nothing":                   {},
		"empty output":              {0x12, 0},
		"token":                     {0x12, 5, 0x18, 1, 0x22, 1, 7},
		"unpacked ids and ranks":    {0x12, 8, 0x20, 7, 0x20, 8, 0x30, 1, 0x30, 2},
		"packed and unpacked":       {0x12, 7, 0x22, 1, 7, 0x20, 8, 0x20, 9},
		"packed in two parts":       {0x12, 6, 0x22, 1, 7, 0x22, 1, 8},
		"empty packed":              {0x12, 2, 0x22, 0},
		"index twice, last counts":  {0x12, 4, 0x08, 1, 0x08, 2},
		"64 bit number":             {0x12, 11, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"number too long":           {0x12, 12, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"number of 65 bits":         {0x12, 11, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2},
		"number cut off":            {0x12, 2, 0x18, 0x80},
		"long tag":                  {0x12, 3, 0x98, 0, 1},
		"wrong wire type":           {0x12, 2, 0x10, 1},
		"group":                     {0x12, 2, 0x1b, 0x1c},
		"group without an end":      {0x12, 1, 0x1b},
		"field zero":                {0x12, 2, 0x00, 1},
		"text":                      {0x12, 4, 0x12, 2, 0xc3, 0xa9},
		"text that is not UTF-8":    {0x12, 3, 0x12, 1, 0xff},
		"floats":                    {0x12, 11, 0x2d, 0, 0, 0x80, 0x3f, 0x2a, 4, 0, 0, 0xc0, 0x7f},
		"floats cut off":            {0x12, 5, 0x2a, 3, 0, 0, 0},
		"output twice":              {0x12, 2, 0x18, 1, 0x12, 2, 0x08, 3},
		"output longer than all":    {0x12, 9, 0x18, 1},
		"prompt first":              {0x0a, 2, 0x08, 3, 0x12, 2, 0x18, 1},
		"candidates":                {0x12, 13, 0x3a, 11, 0x0a, 9, 0x08, 1, 0x15, 0, 0, 0x80, 0x3f, 0x18, 2},
		"candidate with a new part": {0x12, 6, 0x3a, 4, 0x0a, 2, 0x20, 1},
		"empty candidate lists":     {0x12, 4, 0x3a, 0, 0x3a, 0},
		"finish":                    {0x12, 4, 0x42, 2, 0x10, 1},
	}
	decoder := &decode.Decoder{Limit: limit}
	for name, wire := range tests {
		t.Run(name, func(t *testing.T) {
			same(t, decoder, []byte{0x12, 8, 0x20, 9, 0x30, 9, 0x08, 9, 0x3a, 0}) // leaves something behind, if anything can
			same(t, decoder, wire)
		})
	}
}

func TestFrames(t *testing.T) {
	token := []byte{0x12, 5, 0x18, 1, 0x22, 1, 7}
	tests := []struct {
		name     string
		data     []byte
		messages int
		rest     int
		err      error
	}{
		{"nothing", nil, 0, 0, nil},
		{"part of a prefix", []byte{0, 0, 0, 0}, 0, 4, nil},
		{"part of a message", frame(token)[:8], 0, 8, nil},
		{"two and a half", append(append(frame(token), frame(token)...), 0, 0), 2, 2, nil},
		{"empty message", frame(nil), 1, 0, nil},
		{"compressed", append(frame(token), 1, 0, 0, 0, 1, 0), 1, 6, decode.ErrCompressed},
		{"flags of another kind", []byte{2, 0, 0, 0, 0}, 0, 5, decode.ErrFlag},
		{"4 GiB announced", append(frame(token), 0, 0xff, 0xff, 0xff, 0xff), 1, 5, decode.ErrTooLarge},
		{"just too large", []byte{0, 0, 0x10, 0, 1}, 0, 5, decode.ErrTooLarge},
		{"just not too large", []byte{0, 0, 0x10, 0, 0}, 0, 5, nil},
		{"bytes that are no message", append(frame(token), frame([]byte{0xff, 0xff})...), 1, 7, decode.ErrMalformed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			decoder := &decode.Decoder{Limit: limit}
			messages, rest, err := decoder.Batch(test.data)
			if len(messages) != test.messages || len(rest) != test.rest || !errors.Is(err, test.err) {
				t.Errorf("%d messages, %d bytes left, error %v", len(messages), len(rest), err)
			}
		})
	}
}

// A batch as large as a window allows is read at once, and is not kept.
func TestLargeBatch(t *testing.T) {
	decoder := &decode.Decoder{Limit: limit}
	var data []byte
	for id := range byte(100) {
		for range 50 {
			data = append(data, frame([]byte{0x12, 5, 0x18, 1, 0x22, 1, id})...)
		}
	}
	for range 2 {
		messages, rest, err := decoder.Batch(data)
		if len(messages) != 5000 || len(rest) != 0 || err != nil {
			t.Fatalf("%d messages, %d bytes left, error %v", len(messages), len(rest), err)
		}
		for i, message := range messages {
			if got := message.GetOutputs().GetTokenIds(); len(got) != 1 || got[0] != uint32(i/50) {
				t.Fatalf("message %d has ids %v", i, got)
			}
		}
	}
}

func TestTokensCostNothing(t *testing.T) {
	decoder := &decode.Decoder{Limit: limit}
	data := frame([]byte{0x12, 5, 0x18, 1, 0x22, 1, 7})
	if n := testing.AllocsPerRun(100, func() { _, _, _ = decoder.Batch(data) }); n != 0 {
		t.Errorf("%v allocations a token", n)
	}
}

func FuzzSameAsGenerated(f *testing.F) {
	f.Add([]byte{0x12, 5, 0x18, 1, 0x22, 1, 7})
	f.Add([]byte{0x12, 13, 0x3a, 11, 0x0a, 9, 0x08, 1, 0x15, 0, 0, 0x80, 0x3f, 0x18, 2})
	f.Add([]byte{0x0a, 2, 0x08, 3, 0x12, 4, 0x42, 2, 0x10, 1})
	decoder := &decode.Decoder{Limit: limit}
	f.Fuzz(func(t *testing.T, wire []byte) { same(t, decoder, wire) })
}

func FuzzBatch(f *testing.F) {
	f.Add(append(frame([]byte{0x12, 5, 0x18, 1, 0x22, 1, 7}), 0, 0, 0))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		decoder := &decode.Decoder{Limit: 1 << 10}
		messages, rest, err := decoder.Batch(data)
		if len(rest)+5*len(messages) > len(data) || (err == nil && len(rest) > 5+1<<10) {
			t.Fatalf("%d messages and %d bytes left of %d, error %v", len(messages), len(rest), len(data), err)
		}
	})
}

func BenchmarkToken(b *testing.B) {
	wire := []byte{0x12, 5, 0x18, 1, 0x22, 1, 7}
	b.Run("by hand", func(b *testing.B) {
		decoder := &decode.Decoder{Limit: limit}
		data := frame(wire)
		b.ReportAllocs()
		for b.Loop() {
			_, _, _ = decoder.Batch(data)
		}
	})
	b.Run("generated", func(b *testing.B) {
		message := new(pb.GenerateResponse)
		b.ReportAllocs()
		for b.Loop() {
			_ = proto.Unmarshal(wire, message)
		}
	})
}
