package translate

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"remora/internal/dynamo/protocol"
)

// set is a set of features of one modality: hashes, placeholders and payloads as JSON lists without their brackets.
func set(modality, hashes, placeholders, kwargs string) string {
	return fmt.Sprintf(`{"mm_hashes":{%[1]q:[%[2]s]},"mm_placeholders":{%[1]q:[%[3]s]},"kwargs_data":{%[1]q:[%[4]s]}}`, modality, hashes, placeholders, kwargs)
}

func envelope(features string) string {
	return `"vllm_tito":{"sampling_params":{},"features":` + features + `}`
}

// features is a request with features of images.
func features(hashes, placeholders, kwargs string) string {
	return extra(envelope(set("image", hashes, placeholders, kwargs)))
}

const (
	place = `{"offset":1,"length":2}`
	abc   = `"QUJD"` // ABC

	// The names of (image, ABC), (audio, ABC) and (image, DEF), and the router's of the first, as the Rust sidecar makes them.
	imageABC = "grpc-mm:eedfd6b50a55e1a780fd8920c6093b0a7bdd8559ad7cd38140de77beaa6ac4ec"
	audioABC = "grpc-mm:8dbafba85f36038b42b52187cc291021081a06c7c4c095169b6145dc694d946a"
	imageDEF = "grpc-mm:bd5461bafa0eac694c55779529cf429a2aff2cb2a121d631b5478be33b044692"
	routeABC = "6be33cadb779c3ea000000000000000000000000000000000000000000000000"
)

// TestFeatures: how preprocessed features reach the engine.
func TestFeatures(t *testing.T) {
	route := func(modality, hashes string) string {
		return extra(`"dynamo_mm_routing_hashes":[` + hashes + `],` + envelope(set(modality, `"h"`, place, abc)))
	}
	for _, row := range []struct {
		name    string
		members string
		want    []string
	}{
		{"identifier: made of the content", features(`"h"`, place, abc), []string{`image 1+2 "ABC" ` + imageABC}},
		{"identifier: the request's own hash counts for nothing", features(`"a/b"`, place, abc), []string{`image 1+2 "ABC" ` + imageABC}},
		{"modalities: audio has another name", extra(envelope(set("audio", `"h"`, place, abc))), []string{`audio 1+2 "ABC" ` + audioABC}},
		{"modalities: video", extra(envelope(set("video", `"h"`, place, abc))), []string{`video 1+2 "ABC" grpc-mm:7da1f08bce8f1d370ff2a5cc2ddf2b1625e1d77f57c4b1108de7dca13c019b9a`}},
		{"modalities: all, in a fixed order", extra(envelope(`{"mm_hashes":{"video":["v"],"image":["i","j"],"audio":["a"]},
			"mm_placeholders":{"video":[{"offset":0,"length":1}],"image":[{"offset":1,"length":1},{"offset":2,"length":1}],"audio":[{"offset":0,"length":1}]},
			"kwargs_data":{"video":["QUJD"],"image":["QUJD","REVG"],"audio":["QUJD"]}}`)),
			[]string{
				`audio 0+1 "ABC" ` + audioABC, `image 1+1 "ABC" ` + imageABC, `image 2+1 "DEF" ` + imageDEF,
				`video 0+1 "ABC" grpc-mm:7da1f08bce8f1d370ff2a5cc2ddf2b1625e1d77f57c4b1108de7dca13c019b9a`,
			}},
		{"placeholder: the whole prompt", features(`"h"`, `{"offset":0,"length":3}`, abc), []string{`image 0+3 "ABC" ` + imageABC}},
		{"placeholder: overlapping and out of order", features(`"h","i"`, place+`,{"offset":0,"length":2}`, `"QUJD","REVG"`), []string{`image 1+2 "ABC" ` + imageABC, `image 0+2 "DEF" ` + imageDEF}},
		{"mask", features(`"h"`, `{"offset":1,"length":2,"is_embed":[true,false]}`, abc), []string{`image 1+2 "ABC" [true false] ` + imageABC}},
		{"mask: null or empty is none", features(`"h","i"`, `{"offset":1,"length":2,"is_embed":null},{"offset":1,"length":2,"is_embed":[]}`, abc+","+abc),
			[]string{`image 1+2 "ABC" ` + imageABC, `image 1+2 "ABC" ` + imageABC}},
		{"kwargs: padded", features(`"h"`, place, `"QUI="`), []string{`image 1+2 "AB" grpc-mm:70994cb1fb296fb583ed3349de4db2cfa8aac6687d43850eff6376b91204da3a`}},
		{"mm_metadata is ignored", extra(envelope(`{"mm_metadata":5,` + set("image", `"h"`, place, abc)[1:])), []string{`image 1+2 "ABC" ` + imageABC}},
		{"lists of nothing", features(``, ``, ``), nil},
		{"null is none", extra(envelope(`null`)), nil},
		{"messages, formatted_prompt and mm_hashes are dropped", extra(`"messages":1,"formatted_prompt":2,"mm_hashes":3,` + envelope(set("image", `"h"`, place, abc))), []string{`image 1+2 "ABC" ` + imageABC}},
		{"empty raw media beside them", data(`"image_url":[]`) + "," + features(`"h"`, place, abc), []string{`image 1+2 "ABC" ` + imageABC}},
		{"routing hash: becomes the identifier", route("image", `"`+routeABC+`"`), []string{`image 1+2 "ABC" ` + routeABC + " of " + imageABC}},
		{"routing hashes: none for other modalities", route("audio", ``), []string{`audio 1+2 "ABC" ` + audioABC}},
		{"adapter: a name of its own, also for the base model", routing(`"lora_name":"served"`) + "," + route("image", `"`+routeABC+`"`), []string{`image 1+2 "ABC" served:` + imageABC + " of " + imageABC}},
		{"adapter: empty is none", routing(`"lora_name":""`) + "," + features(`"h"`, place, abc), []string{`image 1+2 "ABC" ` + imageABC}},
	} {
		t.Run(row.name, func(t *testing.T) {
			call := convert(t, seeing(protocol.Aggregated), row.members)
			if diff := cmp.Diff(row.want, told(call.Request.GetMedia())); diff != "" {
				t.Error(diff)
			}
			if call.Request.GetLoraName() != "" {
				t.Errorf("adapter %q", call.Request.GetLoraName())
			}
			if prefill := convert(t, seeing(protocol.Prefill), row.members).Request; prefill.GetResponse().GetPromptTokenIds() == strings.HasPrefix(row.name, "null") {
				t.Errorf("a prefill asks for the prompt's ids: %v", prefill.GetResponse().GetPromptTokenIds())
			}
		})
	}
}

// TestFeatureRefusals: each row names the words that tell the client what to change.
func TestFeatureRefusals(t *testing.T) {
	tables := func(hashes, placeholders, kwargs string) string {
		return extra(envelope(`{"mm_hashes":` + hashes + `,"mm_placeholders":` + placeholders + `,"kwargs_data":` + kwargs + `}`))
	}
	route := func(hashes string) string {
		return extra(`"dynamo_mm_routing_hashes":` + hashes + `,` + envelope(set("image", `"h"`, place, abc)))
	}
	for _, row := range []struct{ name, members, words string }{
		{"no object", extra(envelope(`[]`)), "features: must be an object"},
		{"no object: false", extra(envelope(`false`)), "features: must be an object"},
		{"unknown member", extra(envelope(`{"odd":null,` + set("image", `"h"`, place, abc)[1:])), "odd is not supported"},
		{"empty", extra(envelope(`{}`)), "mm_hashes must be an object"},
		{"no modality", tables(`{}`, `{}`, `{}`), "must not be empty"},
		{"a table is missing", extra(envelope(`{"mm_hashes":{"image":["h"]},"kwargs_data":{"image":["QUJD"]}}`)), "mm_placeholders must be an object"},
		{"a table is null", tables(`{"image":["h"]}`, `{"image":[`+place+`]}`, `null`), "kwargs_data must be an object"},
		{"a list is null", tables(`{"image":["h"]}`, `{"image":null}`, `{"image":["QUJD"]}`), "mm_placeholders.image must be a list"},
		{"modalities: unknown", extra(envelope(set("smell", `"h"`, place, abc))), "may have audio, image and video"},
		{"modalities: unknown, lists of nothing", extra(envelope(set("smell", ``, ``, ``))), "may have audio, image and video"},
		{"modalities: more placeholders", tables(`{"image":["h"]}`, `{"image":[`+place+`],"audio":[]}`, `{"image":["QUJD"]}`), "the same modalities"},
		{"modalities: fewer placeholders", tables(`{"image":["h"],"audio":[]}`, `{"image":[`+place+`]}`, `{"image":["QUJD"],"audio":[]}`), "the same modalities"},
		{"modalities: others", tables(`{"image":["h"]}`, `{"audio":[`+place+`]}`, `{"image":["QUJD"]}`), "the same modalities"},
		{"modalities: none of hashes", tables(`{}`, `{"image":[`+place+`]}`, `{"image":["QUJD"]}`), "the same modalities"},
		{"counts: hashes", features(`"a","b"`, place, abc), "2 hashes, 1 placeholders and 1 payloads"},
		{"counts: payloads", features(`"a"`, place, abc+","+abc), "1 hashes, 1 placeholders and 2 payloads"},
		{"hash: empty", features(`""`, place, abc), "mm_hashes.image[0] must be a non-empty string"},
		{"hash: null", features(`null`, place, abc), "mm_hashes.image[0] must be a non-empty string"},
		{"placeholder: no object", features(`"h"`, `[1,2]`, abc), "mm_placeholders.image[0] must be an object"},
		{"placeholder: unknown member", features(`"h"`, `{"offset":1,"length":2,"x":1}`, abc), "unknown member x"},
		{"placeholder: no offset", features(`"h"`, `{"length":2}`, abc), "must have offset and length"},
		{"placeholder: negative", features(`"h"`, `{"offset":-1,"length":2}`, abc), "must have offset and length"},
		{"placeholder: float", features(`"h"`, `{"offset":1.0,"length":2}`, abc), "must have offset and length"},
		{"placeholder: null", features(`"h"`, `{"offset":1,"length":null}`, abc), "must have offset and length"},
		{"length > 0", features(`"h"`, `{"offset":1,"length":0}`, abc), "has length 0"},
		{"offset+length <= prompt length", features(`"h"`, `{"offset":2,"length":2}`, abc), "beyond the prompt's 3 tokens"},
		{"offset+length: too large to add", features(`"h"`, `{"offset":18446744073709551615,"length":2}`, abc), "beyond the prompt's 3 tokens"},
		{"offset+length: the other too large", features(`"h"`, `{"offset":1,"length":18446744073709551615}`, abc), "beyond the prompt's 3 tokens"},
		{"mask: too short", features(`"h"`, `{"offset":1,"length":2,"is_embed":[true]}`, abc), "has length 2 and 1 entries in is_embed"},
		{"mask: numbers", features(`"h"`, `{"offset":1,"length":2,"is_embed":[1,0]}`, abc), "booleans in is_embed"},
		{"mask: text", features(`"h"`, `{"offset":1,"length":2,"is_embed":"x"}`, abc), "a list or null as is_embed"},
		{"kwargs: empty", features(`"h"`, place, `""`), "kwargs_data.image[0] must be a non-empty string"},
		{"kwargs: number", features(`"h"`, place, `5`), "kwargs_data.image[0] must be a non-empty string"},
		{"kwargs: no base64", features(`"h"`, place, `"!!!!"`), "is not base64"},
		{"kwargs: no padding", features(`"h"`, place, `"QUI"`), "is not base64"},
		{"kwargs: stray bits", features(`"h"`, place, `"QUJ="`), "is not base64"},
		{"kwargs: the other alphabet", features(`"h"`, place, `"-_-_"`), "is not base64"},
		{"kwargs: a line break", features(`"h"`, place, `"QU\nJD"`), "is not base64"},
		{"kwargs: padding alone", features(`"h"`, place, `"===="`), "is not base64"},
		{"no raw media alongside", data(movie) + "," + features(`"h"`, place, abc), "cannot be given together"},
		{"no UUIDs alongside", uuids(`"image_url":["a"]`) + "," + features(`"h"`, place, abc), "multi_modal_uuids is given without multi_modal_data"},
		{"routing hash: of another payload", route(`["` + strings.Repeat("0", 64) + `"]`), "dynamo_mm_routing_hashes[0] is not the hash"},
		{"routing hash: in capitals", route(`["` + strings.ToUpper(routeABC) + `"]`), "dynamo_mm_routing_hashes[0] is not the hash"},
		{"routing hash: not filled up", route(`["` + routeABC[:16] + `"]`), "dynamo_mm_routing_hashes[0] is not the hash"},
		{"routing hash: blank", route(`[""]`), "dynamo_mm_routing_hashes[0] is not the hash"},
		{"routing hash: number", route(`[5]`), "dynamo_mm_routing_hashes[0] is not the hash"},
		{"routing hashes: too many", route(`["` + routeABC + `","` + routeABC + `"]`), "has 2 entries for 1 images"},
		{"routing hashes: none", route(`[]`), "has 0 entries for 1 images"},
		{"routing hashes: null", route(`null`), "must be a list of strings"},
		{"routing hashes: for a sound", extra(`"dynamo_mm_routing_hashes":["` + routeABC + `"],` + envelope(set("audio", `"h"`, place, abc))), "has 1 entries for 0 images"},
		{"routing hashes without features", extra(`"dynamo_mm_routing_hashes":["` + routeABC + `"]`), "without preprocessed features"},
		{"an adapter that is not served", routing(`"lora_name":"tuned"`) + "," + features(`"h"`, place, abc), `adapter "tuned"`},
	} {
		t.Run(row.name, func(t *testing.T) { wantRefusal(t, seeing(protocol.Aggregated), row.members, row.words) })
	}
}

// TestFeatureLimit: total decoded <= 16 MiB, over all items.
func TestFeatureLimit(t *testing.T) {
	payload := func(n int) protocol.Value { return protocol.String(base64.StdEncoding.EncodeToString(make([]byte, n))) }
	c := newConverter(seeing(protocol.Aggregated), request(t, ``))
	convertAll := func(payloads ...protocol.Value) *Refusal {
		n := len(payloads)
		v := value(t, set("image", strings.Repeat(`"h",`, n-1)+`"h"`, strings.Repeat(place+",", n-1)+place, ``))
		v.Map[2].Value.Map[0].Value = protocol.List(payloads...)
		items, refusal := c.features(v)
		if refusal == nil && len(items) != n {
			t.Errorf("%d items of %d", len(items), n)
		}
		return refusal
	}
	if refusal := convertAll(payload(16 << 20)); refusal != nil {
		t.Errorf("16 MiB: %v", refusal)
	}
	if refusal := convertAll(payload(16<<20 + 1)); refusal == nil || !strings.Contains(refusal.String(), "kwargs_data.image[0] is too much: the payloads of a request may have 16777216 bytes") {
		t.Errorf("16 MiB and a byte: %v", refusal)
	}
	if refusal := convertAll(payload(1), payload(16<<20)); refusal == nil || !strings.Contains(refusal.String(), "kwargs_data.image[1] is too much") {
		t.Errorf("a byte and 16 MiB: %v", refusal)
	}
}
