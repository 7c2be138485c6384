package protocol

import "testing"

func BenchmarkAppendItem(b *testing.B) {
	index := uint32(0)
	item := Item{Data: &EngineOutput{TokenIDs: []uint32{4711}, Index: &index}}
	for _, codec := range []Codec{JSON, MsgPack} {
		b.Run(codec.String(), func(b *testing.B) {
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				dst = AppendItem(dst[:0], codec, &item)
			}
		})
	}
}

func BenchmarkParseRequest(b *testing.B) {
	req := PreprocessedRequest{Model: "m", TokenIDs: make([]uint32, 8192)}
	for i := range req.TokenIDs {
		req.TokenIDs[i] = uint32(i * 17)
	}
	for _, codec := range []Codec{JSON, MsgPack} {
		b.Run(codec.String(), func(b *testing.B) {
			body := AppendRequest(nil, codec, &req)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseRequest(codec, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
