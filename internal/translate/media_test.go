package translate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// seeing is an engine that takes media.
func seeing(role protocol.Role) *Engine {
	e := engine(role)
	e.Multimodal = true
	return e
}

// told renders media items in a word or two each, so that a row can say all of them.
func told(items []*pb.MediaItem) (out []string) {
	for _, item := range items {
		text := strings.ToLower(strings.TrimPrefix(item.GetModality().String(), "MODALITY_"))
		switch source := item.GetSource().(type) {
		case *pb.MediaItem_Url:
			text += " url " + source.Url
		case *pb.MediaItem_DataUri:
			text += " data " + source.DataUri
		case *pb.MediaItem_Features:
			f := source.Features
			text += fmt.Sprintf(" %d+%d %q", f.GetOffset(), f.GetLength(), f.GetKwargs())
			if f.GetIsEmbed() != nil {
				text += fmt.Sprint(" ", f.GetIsEmbed())
			}
			text += " " + f.GetIdentifier()
			if f.GetMmHash() != f.GetIdentifier() {
				text += " of " + f.GetMmHash()
			}
		default:
			text += " nowhere"
		}
		if item.GetUuid() != "" {
			text += " as " + item.GetUuid()
		}
		if item.GetMimeType() != "" {
			text += " of type " + item.GetMimeType()
		}
		out = append(out, text)
	}
	return out
}

func data(s string) string  { return `"multi_modal_data":{` + s + `}` }
func uuids(s string) string { return `"multi_modal_uuids":{` + s + `}` }

// pictures are images at /1, /2 and so on.
func pictures(n int) string {
	var items []string
	for i := range n {
		items = append(items, fmt.Sprintf(`{"Url":"http://h/%d"}`, i+1))
	}
	return `"image_url":[` + strings.Join(items, ",") + `]`
}

const movie = `"video_url":[{"Url":"http://h/v"}]`

// TestMedia: how raw media reach the engine.
func TestMedia(t *testing.T) {
	zeros := strings.Repeat("0", 64)
	for _, row := range []struct {
		name    string
		members string
		want    []string
	}{
		{"keys accepted: image_url", data(`"image_url":[{"Url":"http://h/x.png"}]`), []string{"image url http://h/x.png"}},
		{"keys accepted: video_url", data(`"video_url":[{"Url":"http://h/x.mp4"}]`), []string{"video url http://h/x.mp4"}},
		{"keys accepted: audio_url", data(`"audio_url":[{"Url":"http://h/x.wav"}]`), []string{"audio url http://h/x.wav"}},
		{"source forms: https", data(`"image_url":[{"Url":"https://h/x?a#b"}]`), []string{"image url https://h/x?a#b"}},
		{"source forms: data", data(`"image_url":[{"Url":"data:image/png;base64,AAAA"}]`), []string{"image data data:image/png;base64,AAAA"}},
		{"source forms: any data passes unchecked", data(`"image_url":[{"Url":"data:"}]`), []string{"image data data:"}},
		{"URL text: the raw form goes as it is", data(`"image_url":[{"RawUrl":"http://h/ X"}]`), []string{"image url http://h/ X"}},
		{"URL text: raw data", data(`"image_url":[{"RawUrl":"data:,x"}]`), []string{"image data data:,x"}},
		{"URL text: scheme in lower case", data(`"image_url":[{"Url":"HTTPS://h/X"},{"Url":"DATA:image/PNG,X"}]`), []string{"image url https://h/X", "image data data:image/PNG,X"}},
		{"URL text: blanks and line breaks", data(`"image_url":[{"Url":" \thttp://h/a\nb \r\n"}]`), []string{"image url http://h/ab"}},
		{"URL text: slashes", data(`"image_url":[{"Url":"http:h/x"},{"Url":"http:/h/x"},{"Url":"http:\\\\h/x"},{"Url":"http:///h/x"}]`),
			[]string{"image url http://h/x", "image url http://h/x", "image url http://h/x", "image url http://h/x"}},
		{"item order: kinds in a fixed order, lists as they are", data(`"video_url":[{"Url":"http://h/v"}],"image_url":[{"Url":"http://h/2"},{"Url":"http://h/1"}],"audio_url":[{"Url":"http://h/a"}]`),
			[]string{"audio url http://h/a", "image url http://h/2", "image url http://h/1", "video url http://h/v"}},
		{"media keys: unknown and empty lists", data(`"smell":[],"image_url":[],` + movie), []string{"video url http://h/v"}},
		{"media keys: lists that are null", data(`"image_url":null,` + movie), []string{"video url http://h/v"}},
		{"mime type: never set", data(`"image_url":[{"Url":"data:image/png,x"}]`), []string{"image data data:image/png,x"}},

		{"UUIDs", data(pictures(2)) + "," + uuids(`"image_url":["u1","u2"]`), []string{"image url http://h/1 as u1", "image url http://h/2 as u2"}},
		{"UUIDs: null or empty is none", data(pictures(3)) + "," + uuids(`"image_url":[null,"","u3"]`), []string{"image url http://h/1", "image url http://h/2", "image url http://h/3 as u3"}},
		{"UUIDs: foreign keys without a text", data(pictures(1)) + "," + uuids(`"video_url":[null],"smell":[],"audio_url":[""],"x":null`), []string{"image url http://h/1"}},
		{"UUIDs: none of nothing", data(pictures(1)) + "," + uuids(``), []string{"image url http://h/1"}},
		{"UUIDs: of images that are not there", data(movie) + "," + uuids(`"image_url":["a"]`), []string{"video url http://h/v"}},
		{"UUID safety: dots inside", data(pictures(1)) + "," + uuids(`"image_url":["a..b"]`), []string{"image url http://h/1 as a..b"}},

		{"mm_hashes: filled up", data(pictures(2)) + "," + extra(`"mm_hashes":["0123456789abcdef","üü"]`),
			[]string{"image url http://h/1 as 0123456789abcdef" + zeros[16:], "image url http://h/2 as üü" + zeros[4:]}},
		{"mm_hashes: longer ones stay", data(pictures(1)) + "," + extra(`"mm_hashes":["`+zeros+`1"]`), []string{"image url http://h/1 as " + zeros + "1"}},
		{"mm_hashes: a dot is none of a path when filled up", data(pictures(1)) + "," + extra(`"mm_hashes":["."]`), []string{"image url http://h/1 as ." + zeros[1:]}},
		{"mm_hashes: an empty list is none", data(pictures(1)) + "," + extra(`"mm_hashes":[]`), []string{"image url http://h/1"}},
		{"mm_hashes: not beside a UUID, for no image", data(pictures(2)) + "," + uuids(`"image_url":["u1",null]`) + "," + extra(`"mm_hashes":["h1","h2"]`),
			[]string{"image url http://h/1 as u1", "image url http://h/2"}},
		{"mm_hashes: not beside an empty UUID either", data(pictures(1)) + "," + uuids(`"image_url":[""]`) + "," + extra(`"mm_hashes":["h1"]`), []string{"image url http://h/1"}},
		{"mm_hashes: not even looked at beside UUIDs", data(pictures(1)) + "," + uuids(`"image_url":["u"]`) + "," + extra(`"mm_hashes":5`), []string{"image url http://h/1 as u"}},
		{"mm_hashes: beside null UUIDs", data(pictures(1)) + "," + uuids(`"image_url":[null]`) + "," + extra(`"mm_hashes":["h1"]`), []string{"image url http://h/1 as h1" + zeros[2:]}},
		{"mm_hashes: ignored for video and audio", data(movie) + "," + extra(`"mm_hashes":5`), []string{"video url http://h/v"}},
		{"mm_hashes: of the images among others", data(movie+","+pictures(1)) + "," + extra(`"mm_hashes":["h1"]`), []string{"image url http://h/1 as h1" + zeros[2:], "video url http://h/v"}},

		{"extra_args beside media: messages and formatted_prompt", data(movie) + "," + extra(`"messages":5,"formatted_prompt":null`), []string{"video url http://h/v"}},
		{"encoder_result beside media", data(movie) + `,"encoder_result":{"a":1}`, []string{"video url http://h/v"}},
		{"ignored: media_io_kwargs, mm_routing_info", data(movie) + `,"media_io_kwargs":{"a":1},"mm_routing_info":{"routing_token_ids":[1]}`, []string{"video url http://h/v"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			call := convert(t, seeing(protocol.Aggregated), row.members)
			if diff := cmp.Diff(row.want, told(call.Request.GetMedia())); diff != "" {
				t.Error(diff)
			}
			if !slices.Equal(call.Request.GetTokenIds().GetIds(), []uint32{1, 2, 3}) || call.Request.GetResponse().GetPromptTokenIds() {
				t.Errorf("prompt %v, response %v", call.Request.GetTokenIds(), call.Request.GetResponse())
			}
		})
	}
}

// TestMediaRefusals: each row names the words that tell the client what to change.
func TestMediaRefusals(t *testing.T) {
	for _, row := range []struct{ name, members, words string }{
		{"keys accepted: no other", data(`"input_audio":[{"Url":"http://h/x"}]`), "multi_modal_data.input_audio is not supported"},
		{"keys accepted: no short form", data(`"image":[{"Url":"http://h/x"}]`), "multi_modal_data.image is not supported"},
		{"keys: no list", data(`"image_url":{}`), "multi_modal_data.image_url must be a list"},
		{"source forms: file", data(`"image_url":[{"Url":"file:///x"}]`), "must be an http, https or data URL"},
		{"source forms: ftp", data(`"image_url":[{"Url":"FTP://h/x"}]`), "must be an http, https or data URL"},
		{"source forms: s3", data(`"video_url":[{"Url":"s3://h/x"}]`), "multi_modal_data.video_url[0] must be an http"},
		{"URL text: a path", data(pictures(1)[:len(pictures(1))-1] + `,{"Url":"/x/y"}]`), "multi_modal_data.image_url[1] is not a URL"},
		{"URL text: empty", data(`"image_url":[{"Url":""}]`), "is not a URL"},
		{"URL text: no scheme", data(`"image_url":[{"Url":"://h"}]`), "is not a URL"},
		{"URL text: no host", data(`"image_url":[{"Url":"http://"}]`), "is not a URL"},
		{"URL text: no host but a query", data(`"image_url":[{"Url":"http://?x"}]`), "is not a URL"},
		{"URL text: a scheme that is none", data(`"image_url":[{"Url":"ht tp://h"}]`), "is not a URL"},
		{"URL text: no text", data(`"image_url":[{"Url":5}]`), "image_url[0].Url must be a string"},
		{"URL text: raw, with capitals", data(`"image_url":[{"RawUrl":"HTTP://h/x"}]`), "must be an http, https or data URL"},
		{"URL text: raw path", data(`"image_url":[{"RawUrl":"/x"}]`), "must be an http, https or data URL"},
		{"decoded", data(`"image_url":[{"Decoded":{}}]`), "is decoded already"},
		{"UUID-only items", data(`"image_url":[{"UuidOnly":"a"}]`), "named by a uuid alone"},
		{"items: unknown form", data(`"image_url":[{"Uri":"http://h/x"}]`), `unknown form "Uri"`},
		{"items: two forms", data(`"image_url":[{"Url":"http://h/x","RawUrl":"http://h/x"}]`), "an object with one member"},
		{"items: no form", data(`"image_url":[{}]`), "an object with one member"},
		{"items: bare text", data(`"image_url":["http://h/x"]`), "an object with one member"},
		{"items: null", data(`"image_url":[null]`), "an object with one member"},
		{"UUIDs without data", uuids(`"image_url":["a"]`), "multi_modal_uuids is given without multi_modal_data"},
		{"UUIDs without data, null", uuids(`"image_url":[null]`), "multi_modal_uuids is given without multi_modal_data"},
		{"UUID count", data(pictures(2)) + "," + uuids(`"image_url":["a"]`), "has 1 entries for 2 images"},
		{"UUID count, none", data(pictures(2)) + "," + uuids(`"image_url":[]`), "has 0 entries for 2 images"},
		{"UUIDs for video", data(movie) + "," + uuids(`"video_url":["a"]`), "only images can have uuids"},
		{"UUIDs for unknown kinds", data(movie) + "," + uuids(`"smell":["a"]`), "multi_modal_uuids.smell is not supported"},
		{"UUIDs: numbers", data(pictures(1)) + "," + uuids(`"image_url":[5]`), "must be a string or null"},
		{"UUIDs: no list", data(pictures(1)) + "," + uuids(`"image_url":"a"`), "multi_modal_uuids.image_url must be a list"},
		{"UUID safety: slash", data(pictures(1)) + "," + uuids(`"image_url":["a/b"]`), "image_url[0] must not be a dot or two"},
		{"UUID safety: backslash", data(pictures(1)) + "," + uuids(`"image_url":["a\\b"]`), "a backslash"},
		{"UUID safety: zero byte", data(pictures(1)) + "," + uuids(`"image_url":["a\u0000b"]`), "a zero byte"},
		{"UUID safety: dot", data(pictures(1)) + "," + uuids(`"image_url":["."]`), "a dot or two"},
		{"UUID safety: two dots", data(pictures(1)) + "," + uuids(`"image_url":[".."]`), "a dot or two"},
		{"mm_hashes: null", data(pictures(1)) + "," + extra(`"mm_hashes":null`), "mm_hashes must be a list of strings"},
		{"mm_hashes: text", data(pictures(1)) + "," + extra(`"mm_hashes":"a"`), "mm_hashes must be a list of strings"},
		{"mm_hashes: numbers", data(pictures(1)) + "," + extra(`"mm_hashes":[5]`), "mm_hashes[0] must be a non-empty string"},
		{"mm_hashes: empty text", data(pictures(2)) + "," + extra(`"mm_hashes":["a",""]`), "mm_hashes[1] must be a non-empty string"},
		{"mm_hashes: count", data(pictures(2)) + "," + extra(`"mm_hashes":["a"]`), "mm_hashes has 1 entries for 2 images"},
		{"mm_hashes: path characters", data(pictures(1)) + "," + extra(`"mm_hashes":["a/b"]`), "mm_hashes[0] must not have a slash"},
		{"mm_hashes without media", extra(`"mm_hashes":["a"]`), "extra_args.mm_hashes is given without media"},
		{"messages beside empty lists", data(`"image_url":[]`) + "," + extra(`"messages":[]`), "extra_args.messages is given without media"},
		{"routing hashes beside raw media", data(movie) + "," + extra(`"dynamo_mm_routing_hashes":["a"]`), "without preprocessed features"},
		{"mm_processor_kwargs beside media", data(movie) + `,"mm_processor_kwargs":{}`, "mm_processor_kwargs"},
		{"raw media alongside features", data(movie) + "," + extra(`"vllm_tito":{"sampling_params":{},"features":{}}`), "cannot be given together"},
	} {
		t.Run(row.name, func(t *testing.T) { wantRefusal(t, seeing(protocol.Aggregated), row.members, row.words) })
	}
}

func wantRefusal(t *testing.T, e *Engine, members, words string) {
	t.Helper()
	call, refusal := e.Convert("id", request(t, members))
	if refusal == nil {
		t.Fatalf("accepted: %v", call.Request)
	}
	if refusal.Err.Kind != protocol.ErrorBackendInvalidArgument || refusal.Handoff != FaultNone {
		t.Errorf("kind %v, hand-off fault %q", refusal.Err.Kind, refusal.Handoff)
	}
	if !strings.Contains(refusal.Err.Message, words) || refusal.Err.Public != refusal.Err.Message {
		t.Errorf("message %q, public %q; want %q in both", refusal.Err.Message, refusal.Err.Public, words)
	}
	if len(refusal.Err.Message) > 300 {
		t.Errorf("a message of %d bytes repeats what the client sent", len(refusal.Err.Message))
	}
}

// TestMediaOnATextModel: nothing of media passes where the engine takes none, except lists of nothing.
func TestMediaOnATextModel(t *testing.T) {
	for members, fits := range map[string]bool{
		data(pictures(1)): false,
		data(movie):       false,
		extra(`"vllm_tito":{"sampling_params":{},"features":{}}`):                                                               false,
		extra(`"vllm_tito":{"sampling_params":{},"features":{"mm_hashes":{"image":[]},"mm_placeholders":{},"kwargs_data":{}}}`): false,
		extra(`"vllm_tito":{"sampling_params":{},"features":null}`):                                                             true,
		data(`"image_url":[],"smell":[]`):                                                                                       true,
		uuids(`"image_url":[]`):                                                                                                 true,
		data(`"image_url":[]`) + "," + uuids(`"smell":[]`):                                                                      true,
	} {
		_, refusal := engine(protocol.Aggregated).Convert("id", request(t, members))
		if (refusal == nil) != fits || (refusal != nil && !strings.Contains(refusal.String(), "takes text only")) {
			t.Errorf("%s: %v", members, refusal)
		}
	}
	// The prefill engine took the media and holds blocks for them.
	_, refusal := engine(protocol.Decode).Convert("id", request(t, data(pictures(1))+`,"prefill_result":{"disaggregated_params":{"a":1}}`))
	if refusal == nil || refusal.Handoff != FaultNone || !proto.Equal(refusal.Unclaimed, object(t, `{"a":1}`)) {
		t.Errorf("a decode: %+v", refusal)
	}
}

// FuzzMedia: whatever stands in the fields of media, the request is refused in words or has items that an engine can take.
func FuzzMedia(f *testing.F) {
	f.Add(data(pictures(2))+","+uuids(`"image_url":["u1",null]`)+","+extra(`"mm_hashes":["a","b"]`), byte(0))
	f.Add(data(movie)+`,"prefill_result":{"disaggregated_params":{"_dynamo_sidecar_multimodal_prompt_token_ids":[1,9,9]}}`, byte(2))
	f.Add(features(`"h"`, `{"offset":0,"length":2,"is_embed":[true,false]}`, `"QUJD"`), byte(1))
	f.Add(extra(`"dynamo_mm_routing_hashes":["6be33cadb779c3ea000000000000000000000000000000000000000000000000"],`+envelope(set("image", `"h"`, `{"offset":0,"length":2}`, `"QUJD"`))), byte(0))
	f.Fuzz(func(t *testing.T, members string, role byte) {
		r, err := protocol.ParseRequest(protocol.JSON, []byte(`{"token_ids":[1,2,3],`+members+`}`))
		if err != nil {
			return
		}
		e := seeing([]protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode}[role%3])
		call, refusal := e.Convert("id", r)
		if refusal != nil {
			if refusal.Err.Message == "" || refusal.Err.Public == "" {
				t.Fatalf("refused without a word: %+v", refusal)
			}
			return
		}
		if _, err := proto.Marshal(call.Request); err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, item := range call.Request.GetMedia() {
			f := item.GetFeatures()
			total += len(f.GetKwargs())
			switch {
			case item.GetModality() == pb.Modality_MODALITY_UNSPECIFIED || item.GetSource() == nil || !safeName(item.GetUuid()):
				t.Fatalf("item %v", item)
			case item.GetUrl() != "" && !strings.HasPrefix(item.GetUrl(), "http"), item.GetDataUri() != "" && !strings.HasPrefix(item.GetDataUri(), "data:"):
				t.Fatalf("source %v", item)
			case f != nil && (len(f.GetKwargs()) == 0 || f.GetLength() == 0 || f.GetOffset() > 3 || f.GetLength() > 3-f.GetOffset() || f.GetMmHash() == ""):
				t.Fatalf("features %v", f)
			}
		}
		if total > maxFeatureBytes {
			t.Fatalf("%d bytes of features", total)
		}
	})
}
