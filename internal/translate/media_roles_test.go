package translate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// TestMediaOfTheRoles: prefill and decode prepare the same media; a prefill asks what the prompt has become.
func TestMediaOfTheRoles(t *testing.T) {
	picture := `"image_url":[{"Url":"http://h/1"}]`
	prefill := convert(t, seeing(protocol.Prefill), data(picture))
	if diff := cmp.Diff([]string{"image url http://h/1"}, told(prefill.Request.GetMedia())); diff != "" {
		t.Errorf("prefill: %s", diff)
	}
	if !prefill.Request.GetResponse().GetPromptTokenIds() {
		t.Error("a prefill with media must ask for the prompt's ids")
	}
	decode := convert(t, seeing(protocol.Decode), data(picture)+`,"prefill_result":{"disaggregated_params":{"a":1,"_dynamo_sidecar_multimodal_prompt_token_ids":[1,9,9]}}`)
	if diff := cmp.Diff([]string{"image url http://h/1"}, told(decode.Request.GetMedia())); diff != "" {
		t.Errorf("decode: %s", diff)
	}
	if decode.Request.GetResponse().GetPromptTokenIds() {
		t.Error("a decode asks for the prompt's ids")
	}
	if params := decode.Request.GetKv().GetKvTransferParams(); !proto.Equal(params, object(t, `{"a":1}`)) {
		t.Errorf("hand-off %v", params)
	}
	if prefill.Prompt != decode.Prompt {
		t.Errorf("one prompt, identified as %+v and %+v", prefill.Prompt, decode.Prompt)
	}
}

// TestPromptWithMedia: what tells prompts apart for the stamp, and what does not.
func TestPromptWithMedia(t *testing.T) {
	of := func(members string) Prompt { return convert(t, seeing(protocol.Prefill), members).Prompt }
	same := of(data(pictures(1)))
	if text := of(``); text == same {
		t.Error("a prompt with an image is identified like one without")
	}
	if named := of(data(pictures(1)) + "," + uuids(`"image_url":["u"]`)); named != same {
		t.Error("the name in the caches makes another prompt")
	}
	for _, other := range []string{
		data(pictures(2)), data(`"image_url":[{"Url":"http://h/2"}]`), data(`"video_url":[{"Url":"http://h/1"}]`), data(`"image_url":[{"Url":"data:,x"}]`),
		features(`"h"`, `{"offset":0,"length":1}`, `"QUJD"`), features(`"h"`, `{"offset":1,"length":1}`, `"QUJD"`), features(`"h"`, `{"offset":0,"length":1}`, `"REVG"`),
	} {
		if p := of(other); p == same || p.Tokens != same.Tokens {
			t.Errorf("%s is identified as %+v, the first one as %+v", other, p, same)
		}
	}
	if a, b := of(features(`"h"`, `{"offset":0,"length":1}`, `"QUJD"`)), of(features(`"h"`, `{"offset":1,"length":1}`, `"QUJD"`)); a == b {
		t.Error("the place of an item does not count")
	}
	if a, b := of(features(`"h"`, `{"offset":0,"length":1}`, `"QUJD"`)), of(features(`"h"`, `{"offset":0,"length":2}`, `"QUJD"`)); a == b {
		t.Error("the length of an item does not count")
	}
}

// TestHandoffWithMedia: how many blocks a hand-off must have where the engine puts media into the prompt. The request's own
// prompt has 33 tokens, blocks have 32.
func TestHandoffWithMedia(t *testing.T) {
	ids := func(n int) string { return expandedKey + ":[" + strings.TrimSuffix(strings.Repeat("9,", n), ",") + "]" }
	blocks := func(n int) string {
		return "remote_block_ids:[[" + strings.TrimSuffix(strings.Repeat("5,", n), ",") + "]]"
	}
	image, ready := data(pictures(1)), features(`"h"`, place, abc)
	for _, row := range []struct {
		name   string
		check  HandoffCheck
		media  string
		params string
		fault  HandoffFault
	}{
		{"as many as the prompt has become long", HandoffStrict, image, with(ids(70), blocks(3)), FaultNone},
		{"fewer", HandoffStrict, image, with(ids(70), blocks(2)), FaultBlockCount},
		{"more", HandoffStrict, image, with(ids(70), blocks(4)), FaultBlockCount},
		{"not counted", HandoffShape, image, with(ids(70), blocks(2)), FaultNone},
		{"nobody says how long", HandoffStrict, image, with(blocks(9)), FaultNone},
		{"the length is no list", HandoffStrict, image, with(expandedKey+`:"x"`, blocks(9)), FaultNone},
		{"nobody says how long, but the shape is wrong", HandoffStrict, image, with("remote_block_ids:[]"), FaultBlocks},
		{"features are in the prompt already", HandoffStrict, ready, with(blocks(2)), FaultNone},
		{"features are in the prompt already: more", HandoffStrict, ready, with(blocks(3)), FaultBlockCount},
		{"media that are not in the request", HandoffStrict, ``, with(ids(33), blocks(2)), FaultTokens},
		{"media that are not in the request, shape", HandoffShape, ``, with(ids(33), blocks(2)), FaultTokens},
		{"another connector's, too", HandoffStrict, ``, `{` + strings.Replace(ids(33), expandedKey, `"`+expandedKey+`"`, 1) + `}`, FaultTokens},
		{"not looked at", HandoffOff, ``, with(ids(33)), FaultNone},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := seeing(protocol.Decode)
			e.HandoffCheck = row.check
			r := request(t, strings.TrimPrefix(row.media+`,"prefill_result":{"disaggregated_params":`+row.params+`}`, ","))
			r.TokenIDs = make([]uint32, 33)
			call, refusal := e.Convert("id", r)
			if row.fault != FaultNone {
				if refusal == nil || refusal.Handoff != row.fault || refusal.Err.Kind != protocol.ErrorBackendDisconnected {
					t.Fatalf("refusal %v, want fault %s of a kind that may migrate", refusal, row.fault)
				}
				return
			}
			if refusal != nil {
				t.Fatal(refusal)
			}
			_, there := call.Request.GetKv().GetKvTransferParams().GetFields()[expandedKey]
			if there != (row.media == "") {
				t.Errorf("the engine gets to see the prompt's ids: %v", there)
			}
		})
	}
}

// TestStampWithMedia: a hand-off of another image is refused, though everything else fits.
func TestStampWithMedia(t *testing.T) {
	stamped := func(members string) string {
		call := convert(t, seeing(protocol.Prefill), members)
		s := Stamp{Finished: 1, Lease: 30 * time.Second, Prompt: call.Prompt}
		return fmt.Sprintf(`"prefill_result":{"disaggregated_params":{%q:%q}}`, stampKey, s.String())
	}
	one, other := data(`"image_url":[{"Url":"http://h/1"}]`), data(`"image_url":[{"Url":"http://h/2"}]`)
	for _, row := range []struct {
		name            string
		prefill, decode string
		fault           HandoffFault
	}{
		{"the same", one, one, FaultNone},
		{"the same under another name", one, one + "," + uuids(`"image_url":["u"]`), FaultNone},
		{"another image", one, other, FaultTokens},
		{"no image", one, ``, FaultTokens},
		{"an image too many", ``, one, FaultTokens},
		{"the same features", features(`"h"`, place, abc), features(`"i"`, place, abc), FaultNone},
		{"other features", features(`"h"`, place, abc), features(`"h"`, place, `"REVG"`), FaultTokens},
	} {
		t.Run(row.name, func(t *testing.T) {
			handoff := stamped(row.prefill)
			decode := strings.TrimPrefix(row.decode+","+handoff, ",")
			_, refusal := seeing(protocol.Decode).Convert("id", request(t, decode))
			if (refusal != nil) != (row.fault != FaultNone) || refusal != nil && refusal.Handoff != row.fault {
				t.Errorf("refusal %v, want fault %q", refusal, row.fault)
			}
			// Refused for another reason: whose hand-off is sound must release it.
			_, refusal = seeing(protocol.Decode).Convert("id", request(t, decode+","+sampling(`"n":2`)))
			if refusal == nil || (refusal.Unclaimed != nil) != (row.fault == FaultNone) {
				t.Errorf("with n 2: %+v", refusal)
			}
			if _, leaked := refusal.Unclaimed.GetFields()[stampKey]; leaked {
				t.Error("the engine gets to see the stamp")
			}
		})
	}
	image := one + `,"prefill_result":{"disaggregated_params":{"a":1,"` + expandedKey + `":[1,9,9]}},` + sampling(`"n":2`)
	if _, refusal := seeing(protocol.Decode).Convert("id", request(t, image)); refusal == nil || !proto.Equal(refusal.Unclaimed, object(t, `{"a":1}`)) {
		t.Errorf("unclaimed: %+v", refusal)
	}
}

// TestResponsesWithMedia: the engine says how long the prompt has become; a prefill hands its ids over.
func TestResponsesWithMedia(t *testing.T) {
	const (
		grown  = `{"prompt_info":{"num_prompt_tokens":5,"token_ids":[1,9,9,9,3]}}`
		finish = `{"outputs":{"finish_info":{"finish_reason":"LENGTH",` + params + `}}}`
	)
	image, ready := data(pictures(1)), features(`"h"`, place, abc)
	usage := func(prompt int) string {
		return fmt.Sprintf(`"completion_usage":{"prompt_tokens":%d,"completion_tokens":0,"total_tokens":%d}`, prompt, prompt)
	}
	item5 := func(more string) string {
		return `{"token_ids":[],"finish_reason":"length","index":0,` + usage(5) + `,"disaggregated_params":{"a":[[1]],"b":2` + more + `}}`
	}
	for _, row := range []struct {
		name     string
		role     protocol.Role
		members  string
		messages []string
		last     string // the last item, or the words of the last message's error
	}{
		{"prompt_tokens: replaced by the engine's count", protocol.Aggregated, image, []string{grown, finish}, item5("")},
		{"prompt_tokens: without ids", protocol.Decode, image, []string{`{"prompt_info":{"num_prompt_tokens":5}}`, finish}, item5("")},
		{"prompt_tokens: the last count holds", protocol.Aggregated, image, []string{`{"prompt_info":{"num_prompt_tokens":9}}`, grown, finish}, item5("")},
		{"prompt_tokens: never told", protocol.Aggregated, image, []string{finish}, strings.ReplaceAll(item5(""), "5", "3")},
		{"prompt_tokens: features leave the prompt as it is", protocol.Aggregated, ready, []string{grown}, "num_prompt_tokens is 5, but the prompt has 3"},
		{"prefill: the expanded prompt is handed over", protocol.Prefill, image, []string{grown, finish}, item5(`,"` + expandedKey + `":[1,9,9,9,3]`)},
		{"prefill: the last prompt holds", protocol.Prefill, image, []string{`{"prompt_info":{"num_prompt_tokens":1,"token_ids":[1]}}`, grown, finish}, item5(`,"` + expandedKey + `":[1,9,9,9,3]`)},
		{"prefill: expanded ids missing", protocol.Prefill, image, []string{finish}, "without the ids of its prompt"},
		{"prefill: fewer ids than tokens", protocol.Prefill, image, []string{`{"prompt_info":{"num_prompt_tokens":5,"token_ids":[1]}}`}, "5 prompt tokens, but 1 ids"},
		{"prefill: features need none", protocol.Prefill, ready, []string{`{"prompt_info":{"num_prompt_tokens":3}}`, finish}, strings.ReplaceAll(item5(""), "5", "3")},
		{"prefill: aborted", protocol.Prefill, image, []string{`{"outputs":{"finish_info":{"finish_reason":"ABORTED",` + params + `}}}`},
			`{"token_ids":[],"finish_reason":"cancelled","index":0,` + usage(3) + `}`},
		{"prompt log-probabilities: of the expanded prompt", protocol.Aggregated, image + "," + output(`"prompt_logprobs":0`),
			[]string{`{"prompt_info":{"num_prompt_tokens":2,"token_ids":[1,9],"logprobs":[0,-1],"ranks":[0,2],"candidate_tokens":[{},{}]}}`, `{"outputs":{"finish_info":{"finish_reason":"LENGTH"}}}`},
			`{"token_ids":[],"finish_reason":"length","index":0,` + usage(2) + `,"engine_data":{"prompt_logprobs":[null,{"9":{"logprob":-1.0,"rank":2}}]}}`},
		{"prompt log-probabilities: too short", protocol.Aggregated, image + "," + output(`"prompt_logprobs":0`), []string{grown}, "5 prompt tokens, but 5 ids, 0 logprobs"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.role == protocol.Decode {
				row.members += `,"prefill_result":{"disaggregated_params":{}}`
			}
			r := convert(t, seeing(row.role), row.members).Response
			for i, text := range row.messages {
				result, err := r.Convert(message(t, text))
				last := i == len(row.messages)-1
				switch {
				case last && !strings.HasPrefix(row.last, "{"):
					if !errors.Is(err, ErrInvalidResponse) || !strings.Contains(err.Error(), row.last) {
						t.Errorf("error %v, want %q", err, row.last)
					}
				case err != nil:
					t.Fatalf("message %d: %v", i, err)
				case last && canonical(t, item(result.Output)) != canonical(t, row.last):
					t.Errorf("\n got %s\nwant %s", item(result.Output), row.last)
				}
			}
		})
	}
}

// TestPromptIsKept: the ids of a prefill's prompt are its own, since the engine client uses its messages again.
func TestPromptIsKept(t *testing.T) {
	r := convert(t, seeing(protocol.Prefill), data(pictures(1))).Response
	info := &pb.PromptInfo{NumPromptTokens: 2, TokenIds: []uint32{1, 9}}
	if _, err := r.Convert(&pb.GenerateResponse{PromptInfo: info}); err != nil {
		t.Fatal(err)
	}
	info.TokenIds[1] = 0
	result, err := r.Convert(message(t, `{"outputs":{"finish_info":{"finish_reason":"LENGTH",`+params+`}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if ids, _ := result.Output.DisaggregatedParams.Get(expandedKey); string(ids.AppendJSON(nil)) != "[1,9]" {
		t.Errorf("handed over %s", ids.AppendJSON(nil))
	}
}
