package differential

import (
	"encoding/base64"
	"fmt"
	"strings"

	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// mediaGroups are the cases before an engine that takes media. The first has the engine put two tokens more into the prompt, as
// it does for raw media; the second leaves the prompt as it was.
var mediaGroups = []group{
	{"media", withScript(mediaCases, grown)},
	{"features", withScript(featureCases(), same)},
}

// withScript gives a script to every case that has none.
func withScript(cases []testCase, script func(p *play) []vllmtest.Step) []testCase {
	for i := range cases {
		if cases[i].script == nil {
			cases[i].script = script
		}
	}
	return cases
}

// prompt is prompt_info with its ids.
func prompt(ids ...uint32) vllmtest.Step {
	return vllmtest.Message(&pb.GenerateResponse{PromptInfo: &pb.PromptInfo{NumPromptTokens: uint32(len(ids)), TokenIds: ids}})
}

// saying is a good answer of the role with another prompt_info.
func saying(info vllmtest.Step) func(p *play) []vllmtest.Step {
	return func(p *play) []vllmtest.Step {
		steps := good(p)
		steps[1] = info
		return steps
	}
}

var (
	grown = saying(prompt(1, 9, 9, 9, 3, 4))
	same  = saying(prompt(1, 2, 3, 4))
)

// images is a body with an image for each of the texts, which are JSON.
func images(items ...string) string {
	return `{"multi_modal_data":{"image_url":[` + strings.Join(items, ",") + `]}}`
}

// named is a body with two images and further members.
func named(members string) string {
	return `{"multi_modal_data":{"image_url":[{"Url":"http://x/1"},{"Url":"http://x/2"}]},` + members + `}`
}

// one is a body with one image and further members.
func one(members string) string {
	return `{"multi_modal_data":{"image_url":[{"Url":"http://x/1"}]},` + members + `}`
}

// film is a body with a video and further members.
func film(members string) string {
	return `{"multi_modal_data":{"video_url":[{"Url":"http://x/1"}]},` + members + `}`
}

// expanded is a hand-off with the ids of a prompt that media went into.
const expanded = `"prefill_result":{"disaggregated_params":{"_dynamo_sidecar_multimodal_prompt_token_ids":[1,9,9,9,3,4]}}`

// mediaCases are the rows of raw media.
var mediaCases = []testCase{
	{name: "http", body: images(`{"Url":"http://x/y.png"}`)},
	{name: "https", body: images(`{"Url":"https://x/y.png?a=b#c"}`)},
	{name: "data", body: images(`{"Url":"data:image/png;base64,AAAA"}`)},
	{name: "data of nothing", body: images(`{"Url":"data:"}`)},
	{name: "data with a capital scheme", body: images(`{"Url":"DATA:image/PNG;base64,A A+/="}`)},
	{name: "raw http", body: images(`{"RawUrl":"http://x/y.png"}`)},
	{name: "raw data", body: images(`{"RawUrl":"data:image/png;base64,AA"}`)},
	{name: "raw with capitals", body: images(`{"RawUrl":"HTTP://x/y.png"}`)},
	{name: "raw path", body: images(`{"RawUrl":"/etc/passwd"}`)},
	{name: "raw empty", body: images(`{"RawUrl":""}`)},
	{name: "raw number", body: images(`{"RawUrl":5}`), silent: true},
	{name: "blanks and a capital scheme", body: images(`{"Url":" HTTPS://x/y.png\n"}`)},
	{name: "slashes", body: images(`{"Url":"http:\\x/y"}`), silent: true},
	{name: "no slashes", body: images(`{"Url":"http:x/y"}`)},
	{name: "normal form of a URL", body: images(`{"Url":"http:/LOCALHOST:80/a b?q=ä"}`)},
	{name: "file", body: images(`{"Url":"file:///x"}`)},
	{name: "s3", body: images(`{"Url":"s3://x/y"}`)},
	{name: "no host", body: images(`{"Url":"http://"}`), silent: true},
	{name: "no scheme", body: images(`{"Url":"/x/y"}`), silent: true},
	{name: "no text", body: images(`{"Url":""}`), silent: true},
	{name: "a number", body: images(`{"Url":5}`), silent: true},
	{name: "two forms", body: images(`{"Url":"http://x/y","RawUrl":"http://x/y"}`), silent: true},
	{name: "unknown form", body: images(`{"Uri":"http://x/y"}`), silent: true},
	{name: "bare text", body: images(`"http://x/y"`), silent: true},
	{name: "null among items", body: images(`null`), silent: true},
	{name: "decoded", body: images(`{"Decoded":{}}`), silent: true},
	{name: "uuid only", body: images(`{"UuidOnly":"abc"}`)},
	{name: "list null", body: `{"multi_modal_data":{"image_url":null}}`, script: good, silent: true},
	{name: "list an object", body: `{"multi_modal_data":{"image_url":{}}}`, silent: true},
	{name: "data a list", body: `{"multi_modal_data":[]}`, silent: true},
	{name: "video", body: film(`"x":1`)},
	{name: "audio", body: `{"multi_modal_data":{"audio_url":[{"Url":"http://x/y.wav"}]}}`},
	{name: "input audio", body: `{"multi_modal_data":{"input_audio":[{"Url":"http://x/y.wav"}]}}`},
	{name: "image", body: `{"multi_modal_data":{"image":[{"Url":"http://x/y.png"}]}}`},
	{name: "nothing of an unknown kind", body: `{"multi_modal_data":{"smell":[]}}`, script: good},
	{name: "no images", body: `{"multi_modal_data":{"image_url":[]}}`, script: good},
	{name: "no images and messages", body: `{"multi_modal_data":{"image_url":[]},"extra_args":{"messages":[]}}`},
	{name: "all kinds", mixed: true, body: `{"multi_modal_data":{"audio_url":[{"Url":"http://x/a1"},{"Url":"http://x/a2"}],
		"video_url":[{"Url":"http://x/v"}],"image_url":[{"Url":"http://x/i1"},{"Url":"data:,x"}]}}`},
	{name: "options for a decoder", body: one(`"media_io_kwargs":{"a":1}`)},
	{name: "what the router knows", body: one(`"mm_routing_info":{"routing_token_ids":[1,2],"block_mm_infos":[],"expanded_prompt_len":5}`)},
	{name: "processor arguments", body: one(`"mm_processor_kwargs":{"a":1}`)},
	{name: "encoder result", body: one(`"encoder_result":{"a":1}`)},
	{name: "messages", body: one(`"extra_args":{"messages":[{"a":1}],"formatted_prompt":5}`)},
	{name: "routing hashes", body: one(`"extra_args":{"dynamo_mm_routing_hashes":["a"]}`)},

	{name: "uuids", body: named(`"multi_modal_uuids":{"image_url":["u1","u2"]}`)},
	{name: "uuids, one null", body: named(`"multi_modal_uuids":{"image_url":["u1",null]}`)},
	{name: "uuids, one empty", body: named(`"multi_modal_uuids":{"image_url":["","u2"]}`)},
	{name: "uuids, too few", body: named(`"multi_modal_uuids":{"image_url":["u1"]}`)},
	{name: "uuids, none for two", body: named(`"multi_modal_uuids":{"image_url":[]}`)},
	{name: "uuids null", body: one(`"multi_modal_uuids":null`)},
	{name: "uuids of nothing", body: one(`"multi_modal_uuids":{}`)},
	{name: "uuids, list null", body: one(`"multi_modal_uuids":{"image_url":null}`), silent: true},
	{name: "uuids of numbers", body: one(`"multi_modal_uuids":{"image_url":[5]}`), silent: true},
	{name: "uuids a list", body: one(`"multi_modal_uuids":["a"]`), silent: true},
	{name: "uuids, list of text", body: one(`"multi_modal_uuids":{"image_url":"a"}`), silent: true},
	{name: "uuids of an unknown kind", body: one(`"multi_modal_uuids":{"smell":["a"]}`)},
	{name: "uuids of an unknown kind, empty text", body: one(`"multi_modal_uuids":{"smell":[""]}`)},
	{name: "uuids of an unknown kind, null", body: one(`"multi_modal_uuids":{"smell":[null]}`)},
	{name: "uuids of an unknown kind, none", body: one(`"multi_modal_uuids":{"smell":[]}`)},
	{name: "uuids of a video", body: film(`"multi_modal_uuids":{"video_url":["a"]}`)},
	{name: "uuids of a video, null", body: film(`"multi_modal_uuids":{"video_url":[null]}`)},
	{name: "uuids of images that are not there", body: film(`"multi_modal_uuids":{"image_url":["a"]}`)},
	{name: "uuids without data", body: `{"multi_modal_uuids":{"image_url":["a"]}}`},
	{name: "uuids without data, null", body: `{"multi_modal_uuids":{"image_url":[null]}}`},
	{name: "uuids without data, none", body: `{"multi_modal_uuids":{"image_url":[]}}`, script: good},
	{name: "uuid with a slash", body: one(`"multi_modal_uuids":{"image_url":["a/b"]}`)},
	{name: "uuid with a backslash", body: one(`"multi_modal_uuids":{"image_url":["a\\b"]}`)},
	{name: "uuid with a zero byte", body: one(`"multi_modal_uuids":{"image_url":["a\u0000b"]}`)},
	{name: "uuid of a dot", body: one(`"multi_modal_uuids":{"image_url":["."]}`)},
	{name: "uuid of two dots", body: one(`"multi_modal_uuids":{"image_url":[".."]}`)},
	{name: "uuid with dots", body: one(`"multi_modal_uuids":{"image_url":["a..b"]}`)},
	{name: "uuid of blanks", body: one(`"multi_modal_uuids":{"image_url":["  "]}`)},

	{name: "hashes", body: named(`"extra_args":{"mm_hashes":["0123456789abcdef","zz"]}`)},
	{name: "hashes, none", body: one(`"extra_args":{"mm_hashes":[]}`)},
	{name: "hashes null", body: one(`"extra_args":{"mm_hashes":null}`)},
	{name: "hashes of text", body: one(`"extra_args":{"mm_hashes":"a"}`)},
	{name: "hashes of numbers", body: one(`"extra_args":{"mm_hashes":[5]}`)},
	{name: "hashes, one null", body: named(`"extra_args":{"mm_hashes":["a",null]}`)},
	{name: "hashes, one empty", body: named(`"extra_args":{"mm_hashes":["a",""]}`)},
	{name: "hashes, too few", body: named(`"extra_args":{"mm_hashes":["a"]}`)},
	{name: "hashes, too many", body: one(`"extra_args":{"mm_hashes":["a","b"]}`)},
	{name: "hash that is long", body: one(`"extra_args":{"mm_hashes":["` + strings.Repeat("a", 70) + `"]}`)},
	{name: "hash of other letters", body: one(`"extra_args":{"mm_hashes":["üü"]}`)},
	{name: "hash with a slash", body: one(`"extra_args":{"mm_hashes":["a/b"]}`)},
	{name: "hash of a dot", body: one(`"extra_args":{"mm_hashes":["."]}`)},
	{name: "hashes beside uuids", body: named(`"multi_modal_uuids":{"image_url":["u1",null]},"extra_args":{"mm_hashes":["h1","h2"]}`)},
	{name: "hashes beside uuids, wrong", body: named(`"multi_modal_uuids":{"image_url":["u1","u2"]},"extra_args":{"mm_hashes":["h1/"]}`)},
	{name: "hashes beside null uuids", body: one(`"multi_modal_uuids":{"image_url":[null]},"extra_args":{"mm_hashes":["h1"]}`)},
	{name: "hashes beside empty uuids", body: one(`"multi_modal_uuids":{"image_url":[""]},"extra_args":{"mm_hashes":["h1"]}`)},
	{name: "hashes of a video", body: film(`"extra_args":{"mm_hashes":[5]}`)},
	{name: "hashes of a video and an image", mixed: true, body: `{"multi_modal_data":{"video_url":[{"Url":"http://x/1"}],"image_url":[{"Url":"http://x/2"}]},"extra_args":{"mm_hashes":["h1"]}}`},
	{name: "hashes without media", body: `{"extra_args":{"mm_hashes":["h1"]}}`},

	{name: "hand-off with the prompt", roles: "d", body: one(expanded)},
	{name: "hand-off with another prompt key", roles: "d", body: one(`"prefill_result":{"disaggregated_params":{"_dynamo_sidecar_multimodal_prompt_token_ids":"x"}}`)},
	{name: "hand-off of a prompt with media, without them", roles: "d", script: good, body: `{` + expanded + `}`},
	{name: "prompt without ids", body: images(`{"Url":"http://x/y.png"}`), script: saying(vllmtest.Prompt(6))},
	{name: "prompt with too few ids", body: images(`{"Url":"http://x/y.png"}`), script: saying(vllmtest.Message(&pb.GenerateResponse{
		PromptInfo: &pb.PromptInfo{NumPromptTokens: 6, TokenIds: []uint32{1, 2}},
	}))},
	{name: "prompt unknown", body: images(`{"Url":"http://x/y.png"}`), script: saying(vllmtest.Message(&pb.GenerateResponse{}))},
	{name: "prompt told twice", body: images(`{"Url":"http://x/y.png"}`), script: func(p *play) []vllmtest.Step {
		steps := grown(p)
		return append(steps[:2:2], append([]vllmtest.Step{prompt(1, 9, 4)}, steps[2:]...)...)
	}},
	{name: "prompt log-probabilities", body: one(`"output_options":{"prompt_logprobs":1}`), script: saying(vllmtest.Message(&pb.GenerateResponse{
		PromptInfo: &pb.PromptInfo{
			NumPromptTokens: 2, TokenIds: []uint32{1, 9}, Logprobs: []float32{0, -1}, Ranks: []uint32{0, 2},
			CandidateTokens: []*pb.CandidateTokenInfo{{}, {Tokens: []*pb.TokenInfo{{Id: 7, Logprob: -0.5, Rank: 1}}}},
		},
	}))},
	{name: "aborted", body: images(`{"Url":"http://x/y.png"}`), script: steps(vllmtest.Headers(), prompt(1, 9, 9, 9, 3, 4), vllmtest.Finish(pb.FinishInfo_ABORTED))},
	{name: "refused by the engine", body: images(`{"Url":"http://x/y.png"}`), script: steps(vllmtest.Status(3, "no such image"))},
}

// features is a body with features for the base request, each part as JSON for the one image.
func features(hash, placeholder, kwargs string) string {
	return envelope(fmt.Sprintf(`{"mm_hashes":{"image":[%s]},"mm_placeholders":{"image":[%s]},"kwargs_data":{"image":[%s]}}`, hash, placeholder, kwargs))
}

// place is a placeholder; ABC is a payload.
const (
	place = `{"offset":1,"length":2}`
	abc   = `"QUJD"`
)

func envelope(features string) string { return envelopeAnd(features, "", "") }

// envelopeAnd has further members beside the envelope, and further members of the request.
func envelopeAnd(features, extra, members string) string {
	inner := `"vllm_tito":{"sampling_params":{},"features":` + features + `}`
	if extra != "" {
		inner += "," + extra
	}
	outer := `"extra_args":{` + inner + `}`
	if members != "" {
		outer += "," + members
	}
	return `{` + outer + `}`
}

// set is a set of features: mm_hashes, mm_placeholders, kwargs_data, each as JSON.
func set(hashes, placeholders, kwargs string) string {
	return fmt.Sprintf(`{"mm_hashes":%s,"mm_placeholders":%s,"kwargs_data":%s}`, hashes, placeholders, kwargs)
}

// plainSet is a set with one item of a modality.
func plainSet(modality string) string {
	return set(`{"`+modality+`":["h"]}`, `{"`+modality+`":[`+place+`]}`, `{"`+modality+`":[`+abc+`]}`)
}

// routing is the router's hash of ABC.
const routing = `6be33cadb779c3ea000000000000000000000000000000000000000000000000`

func routed(value string) string { return `"dynamo_mm_routing_hashes":` + value }

// featureCases are the rows of preprocessed features.
func featureCases() []testCase {
	image := plainSet("image")
	all := set(`{"video":["v"],"image":["i","j"],"audio":["a"]}`,
		`{"video":[{"offset":0,"length":1}],"image":[{"offset":1,"length":1},{"offset":3,"length":1}],"audio":[{"offset":2,"length":1}]}`,
		`{"video":["QUJD"],"image":["QUJD","REVG"],"audio":["REVG"]}`)
	payload := func(n int) string {
		return `"` + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", n))) + `"`
	}
	cases := []testCase{
		{name: "image", body: envelope(image)},
		{name: "audio", body: envelope(plainSet("audio"))},
		{name: "video", body: envelope(plainSet("video"))},
		{name: "unknown modality", body: envelope(plainSet("smell"))},
		{name: "unknown modality, none", body: envelope(set(`{"smell":[]}`, `{"smell":[]}`, `{"smell":[]}`))},
		{name: "modality by its other name", body: envelope(plainSet("image_url"))},
		{name: "all modalities", body: envelope(all)},
		{name: "null", body: envelope(`null`)},
		{name: "empty", body: envelope(`{}`)},
		{name: "number", body: envelope(`5`)},
		{name: "list", body: envelope(`[]`)},
		{name: "set as a list", body: envelope(`[{"image":["h"]},{"image":[` + place + `]},{"image":[` + abc + `]},null]`)},
		{name: "no modality", body: envelope(set(`{}`, `{}`, `{}`))},
		{name: "no item", body: envelope(set(`{"image":[]}`, `{"image":[]}`, `{"image":[]}`))},
		{name: "no item of one modality", body: envelope(set(`{"image":["h"],"video":[]}`, `{"image":[`+place+`],"video":[]}`, `{"image":[`+abc+`],"video":[]}`))},
		{name: "no item and messages", body: envelopeAnd(set(`{"image":[]}`, `{"image":[]}`, `{"image":[]}`), `"messages":[]`, "")},
		{name: "metadata", body: envelope(strings.Replace(image, `{`, `{"mm_metadata":{"x":1},`, 1))},
		{name: "unknown member", body: envelope(strings.Replace(image, `{`, `{"odd":null,`, 1))},
		{name: "hashes null", body: envelope(set(`null`, `{"image":[`+place+`]}`, `{"image":[`+abc+`]}`))},
		{name: "placeholders absent", body: envelope(`{"mm_hashes":{"image":["h"]},"kwargs_data":{"image":["QUJD"]}}`)},
		{name: "payload list null", body: envelope(set(`{"image":["h"]}`, `{"image":[`+place+`]}`, `{"image":null}`))},
		{name: "modalities differ", body: envelope(set(`{"image":["h"]}`, `{"image":[`+place+`],"audio":[]}`, `{"image":[`+abc+`]}`))},
		{name: "more hashes", body: features(`"a","b"`, place, abc)},
		{name: "more payloads", body: features(`"a"`, place, abc+","+abc)},
		{name: "hash empty", body: features(`""`, place, abc)},
		{name: "hash null", body: features(`null`, place, abc)},
		{name: "hash a number", body: features(`5`, place, abc)},
		{name: "hash with a slash", body: features(`"a/b"`, place, abc)},
		{name: "placeholder null", body: features(`"h"`, `null`, abc)},
		{name: "placeholder a list", body: features(`"h"`, `[1,2]`, abc)},
		{name: "placeholder with an unknown member", body: features(`"h"`, `{"offset":1,"length":2,"x":1}`, abc)},
		{name: "offset absent", body: features(`"h"`, `{"length":2}`, abc)},
		{name: "offset negative", body: features(`"h"`, `{"offset":-1,"length":2}`, abc)},
		{name: "offset a float", body: features(`"h"`, `{"offset":1.0,"length":2}`, abc)},
		{name: "length absent", body: features(`"h"`, `{"offset":1}`, abc)},
		{name: "length 0", body: features(`"h"`, `{"offset":1,"length":0}`, abc)},
		{name: "length null", body: features(`"h"`, `{"offset":1,"length":null}`, abc)},
		{name: "beyond the prompt", body: features(`"h"`, `{"offset":3,"length":2}`, abc)},
		{name: "to the end of the prompt", body: features(`"h"`, `{"offset":2,"length":2}`, abc)},
		{name: "the whole prompt", body: features(`"h"`, `{"offset":0,"length":4}`, abc)},
		{name: "offset too large to add", body: features(`"h"`, `{"offset":18446744073709551615,"length":2}`, abc)},
		{name: "length too large to add", body: features(`"h"`, `{"offset":1,"length":18446744073709551615}`, abc)},
		{name: "mask", body: features(`"h"`, `{"offset":1,"length":2,"is_embed":[true,false]}`, abc)},
		{name: "mask null", body: features(`"h"`, `{"offset":1,"length":2,"is_embed":null}`, abc)},
		{name: "mask empty", body: features(`"h"`, `{"offset":1,"length":2,"is_embed":[]}`, abc)},
		{name: "mask too short", body: features(`"h"`, `{"offset":1,"length":2,"is_embed":[true]}`, abc)},
		{name: "mask of numbers", body: features(`"h"`, `{"offset":1,"length":2,"is_embed":[1,0]}`, abc)},
		{name: "mask of text", body: features(`"h"`, `{"offset":1,"length":2,"is_embed":"x"}`, abc)},
		{name: "payload empty", body: features(`"h"`, place, `""`)},
		{name: "payload null", body: features(`"h"`, place, `null`)},
		{name: "payload a number", body: features(`"h"`, place, `5`)},
		{name: "payload no base64", body: features(`"h"`, place, `"!!!"`)},
		{name: "payload without padding", body: features(`"h"`, place, `"QUI"`)},
		{name: "payload with padding", body: features(`"h"`, place, `"QUI="`)},
		{name: "payload with stray bits", body: features(`"h"`, place, `"QUJ="`)},
		{name: "payload of the other alphabet", body: features(`"h"`, place, `"-_-_"`)},
		{name: "payload with a line break", body: features(`"h"`, place, `"QU\nJD"`)},
		{name: "payload with a blank", body: features(`"h"`, place, `"QUJD "`)},
		{name: "payload at the limit", roles: "ap", large: true, body: features(`"h"`, place, payload(16<<20))},
		{name: "payload over the limit", roles: "ap", large: true, body: features(`"h"`, place, payload(16<<20+1))},
		{name: "payloads over the limit", roles: "ap", large: true, body: features(`"h","i"`, place+","+place, payload(8<<20)+","+payload(8<<20+1))},
		{name: "out of order", body: features(`"a","b"`, `{"offset":2,"length":1},{"offset":0,"length":1}`, `"QUJD","REVG"`)},
		{name: "overlapping", body: features(`"a","b"`, `{"offset":0,"length":2},{"offset":1,"length":2}`, `"QUJD","REVG"`)},
		{name: "raw media as well", body: envelopeAnd(image, "", `"multi_modal_data":{"image_url":[{"Url":"http://x/1"}]}`)},
		{name: "empty raw media as well", body: envelopeAnd(image, "", `"multi_modal_data":{"image_url":[]}`)},
		{name: "uuids as well", body: envelopeAnd(image, "", `"multi_modal_uuids":{"image_url":["a"]}`)},
		{name: "hashes of raw media as well", body: envelopeAnd(image, `"mm_hashes":5`, "")},
		{name: "messages as well", body: envelopeAnd(image, `"messages":[1],"formatted_prompt":"x"`, "")},
		{name: "processor arguments", body: envelopeAnd(image, "", `"mm_processor_kwargs":{}`)},
		{name: "encoder result", body: envelopeAnd(image, "", `"encoder_result":{"a":1}`)},
		{name: "routing hash", body: envelopeAnd(image, routed(`["`+routing+`"]`), "")},
		{name: "routing hash of two equal images", body: envelopeAnd(set(`{"image":["a","b"]}`, `{"image":[`+place+`,`+place+`]}`, `{"image":[`+abc+`,`+abc+`]}`), routed(`["`+routing+`","`+routing+`"]`), "")},
		{name: "routing hash in capitals", body: envelopeAnd(image, routed(`["`+strings.ToUpper(routing)+`"]`), "")},
		{name: "routing hash not filled up", body: envelopeAnd(image, routed(`["6be33cadb779c3ea"]`), "")},
		{name: "routing hash of something else", body: envelopeAnd(image, routed(`["`+strings.Repeat("0", 64)+`"]`), "")},
		{name: "routing hash blank", body: envelopeAnd(image, routed(`[""]`), "")},
		{name: "routing hashes, too many", body: envelopeAnd(image, routed(`["`+routing+`","`+routing+`"]`), "")},
		{name: "routing hashes, none", body: envelopeAnd(image, routed(`[]`), "")},
		{name: "routing hashes null", body: envelopeAnd(image, routed(`null`), "")},
		{name: "routing hashes of numbers", body: envelopeAnd(image, routed(`[5]`), "")},
		{name: "routing hashes a text", body: envelopeAnd(image, routed(`"`+routing+`"`), "")},
		{name: "routing hashes for a sound", body: envelopeAnd(plainSet("audio"), routed(`["`+routing+`"]`), "")},
		{name: "routing hashes, none for a sound", body: envelopeAnd(plainSet("audio"), routed(`[]`), "")},
		{name: "routing hashes, none for no item", body: envelopeAnd(set(`{"image":[]}`, `{"image":[]}`, `{"image":[]}`), routed(`[]`), "")},
		{name: "routing hashes null without features", body: `{"extra_args":{"dynamo_mm_routing_hashes":null}}`},
		{name: "adapter is the base model", body: envelopeAnd(image, routed(`["`+routing+`"]`), `"routing":{"lora_name":"tiny"}`)},
		{name: "adapter empty", body: envelopeAnd(image, "", `"routing":{"lora_name":""}`)},
		{name: "prompt without ids", body: envelope(image), script: good},
		{name: "prompt of another length", body: envelope(image), script: grown},
		{name: "hand-off with a prompt", roles: "d", body: envelopeAnd(image, "", expanded)},
	}
	return cases
}
