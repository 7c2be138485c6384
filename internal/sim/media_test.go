package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"remora/internal/tinymodel"
	pb "remora/proto/vllm"
)

func multimodal(c *Config) { c.Multimodal, c.MaxModelLen, c.Blocks = true, 256, 129 }

func byURL(text string) *pb.MediaItem {
	return &pb.MediaItem{Modality: pb.Modality_MODALITY_IMAGE, Source: &pb.MediaItem_Url{Url: text}}
}

func byName(item *pb.MediaItem, uuid string) *pb.MediaItem {
	item.Uuid = uuid
	return item
}

func film(text string) *pb.MediaItem {
	return &pb.MediaItem{Modality: pb.Modality_MODALITY_VIDEO, Source: &pb.MediaItem_DataUri{DataUri: text}}
}

func sound(raw string) *pb.MediaItem {
	return &pb.MediaItem{Modality: pb.Modality_MODALITY_AUDIO, Source: &pb.MediaItem_RawBytes{RawBytes: []byte(raw)}}
}

func featured(id string, offset, length uint64) *pb.MediaItem {
	return &pb.MediaItem{Modality: pb.Modality_MODALITY_IMAGE, Source: &pb.MediaItem_Features{Features: &pb.PreprocessedMediaFeatures{
		Kwargs: []byte("x"), Identifier: id, Offset: offset, Length: length,
	}}}
}

// look is a prompt with places for n items.
func look(n int) []uint32 {
	var text strings.Builder
	text.WriteString("What do you see in")
	for i := range n {
		fmt.Fprintf(&text, " this <|image_%d|> and", i+1)
	}
	return tinymodel.Encode(text.String() + " that?")
}

func seeing(req *pb.GenerateRequest, items ...*pb.MediaItem) *pb.GenerateRequest {
	req.Media = items
	return req
}

// TestMediaRefusals: what cannot be prepared is refused; a model for text takes nothing at all.
//
// Rules: media-refused, media-truncation, media-unready.
func TestMediaRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := network{}
		text, both := start(t, nw, "t", nil), start(t, nw, "m", multimodal)
		inText := seeing(request("r", nil, 3), byURL("http://h/1"))
		inText.Prompt = &pb.GenerateRequest_Text{Text: "<|image_1|>"}
		cut := seeing(request("r", look(1), 3), byURL("http://h/1"))
		cut.TruncatePromptTokens = 5
		for _, row := range []struct {
			on   *engine
			req  *pb.GenerateRequest
			want string
		}{
			{text, seeing(request("r", look(1), 3), byURL("http://h/1")), "multimodal input is not supported by this chat renderer"},
			{text, inText, "multimodal gRPC requests must provide token_ids input"},
			{both, inText, "multimodal gRPC requests must provide token_ids input"},
			{both, cut, "truncate_prompt_tokens is not supported with multimodal input"},
			{both, seeing(request("r", look(1), 3), byURL("file:///x")), "media[0] has a URL that is neither http nor https"},
			{both, seeing(request("r", look(1), 3), film("data:x")), "media[0] has no data URI"},
			{both, seeing(request("r", look(1), 3), film("x,")), "media[0] has no data URI"},
			{both, seeing(request("r", look(1), 3), sound("")), "media[0] is empty"},
			{both, seeing(request("r", look(1), 3), &pb.MediaItem{Modality: pb.Modality_MODALITY_IMAGE}), "media[0] has no source"},
			{both, seeing(request("r", look(1), 3), &pb.MediaItem{Source: &pb.MediaItem_Url{Url: "http://h"}}), "media[0] has no modality"},
			{both, seeing(request("r", look(1), 3), &pb.MediaItem{Modality: 4, Source: &pb.MediaItem_Url{Url: "http://h"}}), "media[0] has no modality"},
			{both, seeing(request("r", look(1), 3), byURL("http://h/1"), byURL("http://h/2")), "the prompt has no <|image_2|> for media item 2 of 2"},
			{both, seeing(request("r", words(9, 1), 3), byURL("http://h/1")), "the prompt has no <|image_1|> for media item 1 of 1"},
			{both, seeing(request("r", look(1), 3), byURL("http://h/1"), featured("i", 0, 1)), "media and preprocessed features cannot be mixed"},
			{both, seeing(request("r", words(9, 1), 3), featured("i", 8, 2)), "media[0] is outside the prompt"},
			{both, seeing(request("r", words(9, 1), 3), featured("i", 1<<63, 1<<63)), "media[0] is outside the prompt"},
			{both, seeing(request("r", words(9, 1), 3), featured("i", 0, 0)), "media[0] has no features"},
			{both, seeing(request("r", look(5), 3), slices.Repeat([]*pb.MediaItem{film("data:,x")}, 5)...), "maximum context length is 256 tokens"},
			{both, seeing(request("r", words(9, 1), 3), slices.Repeat([]*pb.MediaItem{featured("i", 0, 1)}, 256)...), "256 media items have no room"},
		} {
			r := row.on.generate(t, row.req)
			if got := status.Convert(r.err); got.Code() != codes.InvalidArgument || !strings.Contains(got.Message(), row.want) {
				t.Errorf("%v: %v, want %q", row.req.GetMedia()[0], r.err, row.want)
			}
		}
		wantBase(t, text, both)
	})
}

// Rules: media-flag.
func TestMultimodalIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := network{}
		for _, e := range []struct {
			on   *engine
			want bool
		}{{start(t, nw, "t", nil), false}, {start(t, nw, "m", multimodal), true}} {
			info, err := e.on.ctrl.GetModelInfo(t.Context(), &pb.GetModelInfoRequest{})
			if err != nil || info.GetSupportsMultimodal() != e.want {
				t.Errorf("%v %v, want %v", info, err, e.want)
			}
		}
	})
}

// TestMediaChangeTheText: which requests are the same to the model, and which are not; the prompt is told as it has become.
//
// Rules: media-expansion, media-identity.
func TestMediaChangeTheText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "m", multimodal)
		texts := map[string]string{} // text -> who says it
		for _, row := range []struct {
			name   string
			prompt []uint32
			items  []*pb.MediaItem
			grown  int
			like   string // the name of an earlier row with the same text
		}{
			{"no image", look(1), nil, 0, ""},
			{"an image", look(1), []*pb.MediaItem{byURL("http://h/1")}, 32 - len(tinymodel.Encode("<|image_1|>")), ""},
			{"the same image", look(1), []*pb.MediaItem{byURL("http://h/1")}, 32 - len(tinymodel.Encode("<|image_1|>")), "an image"},
			{"another image", look(1), []*pb.MediaItem{byURL("http://h/2")}, 32 - len(tinymodel.Encode("<|image_1|>")), ""},
			{"a named image", look(1), []*pb.MediaItem{byName(byURL("http://h/1"), "u")}, 32 - len(tinymodel.Encode("<|image_1|>")), ""},
			{"another one of that name", look(1), []*pb.MediaItem{byName(byURL("http://h/2"), "u")}, 32 - len(tinymodel.Encode("<|image_1|>")), "a named image"},
			{"a film", look(1), []*pb.MediaItem{film("data:,x")}, 48 - len(tinymodel.Encode("<|image_1|>")), ""},
			{"a sound", look(1), []*pb.MediaItem{sound("x")}, 24 - len(tinymodel.Encode("<|image_1|>")), ""},
			{"two images", look(2), []*pb.MediaItem{byURL("http://h/1"), byURL("http://h/2")}, 64 - 2*len(tinymodel.Encode("<|image_1|>")), ""},
			{"the other way round", look(2), []*pb.MediaItem{byURL("http://h/2"), byURL("http://h/1")}, 64 - 2*len(tinymodel.Encode("<|image_1|>")), ""},
			{"an image and a film", look(2), []*pb.MediaItem{byURL("http://h/1"), film("data:,x")}, 80 - 2*len(tinymodel.Encode("<|image_1|>")), ""},
			{"the kinds the other way round", look(2), []*pb.MediaItem{film("data:,x"), byURL("http://h/1")}, 80 - 2*len(tinymodel.Encode("<|image_1|>")), "an image and a film"},
			{"features", words(20, 1), []*pb.MediaItem{featured("i", 3, 5)}, 0, ""},
			{"features elsewhere", words(20, 1), []*pb.MediaItem{featured("i", 4, 5)}, 0, ""},
			{"other features", words(20, 1), []*pb.MediaItem{featured("j", 3, 5)}, 0, ""},
			{"two features, out of order", words(20, 1), []*pb.MediaItem{featured("j", 9, 2), featured("i", 3, 5)}, 0, ""},
		} {
			r := e.generate(t, seeing(request("r", row.prompt, 8), row.items...))
			if r.err != nil {
				t.Fatalf("%s: %v", row.name, r.err)
			}
			text := key(r.tokens())
			if who, said := texts[text]; who != row.like || said != (row.like != "") {
				t.Errorf("%s says what %q says, want %q", row.name, who, row.like)
			}
			texts[text] = row.name
			if row.like != "" {
				texts[text] = row.like
			}
			if got := int(r.msgs[0].GetPromptInfo().GetNumPromptTokens()); got != len(row.prompt)+row.grown {
				t.Errorf("%s: a prompt of %d tokens became one of %d, want %d more", row.name, len(row.prompt), got, row.grown)
			}
		}
		wantBase(t, e)
	})
}

func key(tokens []uint32) string { return fmt.Sprint(tokens) }

// TestMediaInTheCache: equal images are found in the prefix cache, others end the prefix where they begin.
//
// Rules: media-hash.
func TestMediaInTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "m", multimodal)
		cached := func(items ...*pb.MediaItem) int {
			return int(e.generate(t, seeing(request("r", look(2), 2), items...)).finish().GetNumCachedTokens())
		}
		a, b := byURL("http://h/a"), byURL("http://h/b")
		if n := cached(a, b); n != 0 {
			t.Errorf("%d tokens are cached from the start", n)
		}
		whole := cached(a, b)
		first := len(tinymodel.Encode("What do you see in this "))
		if whole < first+32+32 {
			t.Errorf("the same again: %d cached", whole)
		}
		if n := cached(b, a); n > first || n < first-4 {
			t.Errorf("other images: %d cached, %d tokens stand before the first", n, first)
		}
		if n := cached(a, a); n < first+32-4 || n >= whole-32 {
			t.Errorf("another second image: %d cached, of the same %d", n, whole)
		}
	})
}

// TestMediaHandOff: D prepares the same media as P. With others it goes on from P's, and nobody notices.
//
// Rules: media-other-on-d.
func TestMediaHandOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := network{}
		p, d, agg := start(t, nw, "p", multimodal), start(t, nw, "d", multimodal), start(t, nw, "agg", multimodal)
		say := func(url string) []uint32 {
			return agg.tokens(t, seeing(request("agg", look(1), 8), byURL(url)))
		}
		handOver := func(url string) *pb.GenerateRequest {
			h := p.generate(t, seeing(prefillRequest(t, "r", look(1)), byURL("http://h/a"))).handOff(t)
			return seeing(decodeRequest("r", look(1), 8, h), byURL(url))
		}
		if got := d.tokens(t, handOver("http://h/a")); !slices.Equal(got, say("http://h/a")) {
			t.Errorf("the same image: %v, want %v", got, say("http://h/a"))
		}
		if got := d.tokens(t, handOver("http://h/b")); slices.Equal(got, say("http://h/b")) {
			t.Error("another image on D: its own text, although the KV is P's")
		}
		if got := d.tokens(t, seeing(request("later", look(1), 8), byURL("http://h/b"))); slices.Equal(got, say("http://h/b")) {
			t.Error("D's cache is clean after a hand-off of another image")
		}
		bypass := seeing(request("later", look(1), 8), byURL("http://h/b"))
		bypass.Kv = &pb.KVCacheParameters{BypassPrefixCache: true}
		if got := d.tokens(t, bypass); !slices.Equal(got, say("http://h/b")) {
			t.Errorf("past the cache: %v, want %v", got, say("http://h/b"))
		}
	})
}

// FuzzMedia: whatever a request has as media, it is refused or they stand inside a prompt that the engine has room for.
func FuzzMedia(f *testing.F) {
	for _, req := range []*pb.GenerateRequest{
		seeing(request("r", look(2), 3), byURL("http://h/1"), film("data:,x")),
		seeing(request("r", look(1), 3), byName(sound("x"), "u")),
		seeing(request("r", words(9, 1), 3), featured("i", 3, 5), featured("j", 8, 1)),
	} {
		raw, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	cfg := Config{Model: "m"}
	multimodal(&cfg)
	s, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		req := &pb.GenerateRequest{}
		if proto.Unmarshal(raw, req) != nil {
			return
		}
		j, err := s.prepare(req, nil)
		if err != nil {
			if status.Code(err) == codes.Unknown {
				t.Fatalf("no status: %v", err)
			}
			return
		}
		if len(j.core.Prompt) >= s.cfg.MaxModelLen || len(j.core.Media) != len(req.GetMedia()) {
			t.Fatalf("%d tokens, %d of %d items", len(j.core.Prompt), len(j.core.Media), len(req.GetMedia()))
		}
		last := 0
		for _, m := range j.core.Media {
			if m.Offset < last || m.Length < 1 || m.Length > len(j.core.Prompt)-m.Offset {
				t.Fatalf("%+v in %d tokens", j.core.Media, len(j.core.Prompt))
			}
			last = m.Offset
		}
	})
}
