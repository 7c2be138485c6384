package differential

import (
	"regexp"
	"strings"
)

func controlling(old, with string) func(s *sent, subject string) {
	return func(s *sent, _ string) { s.control = strings.Replace(s.control, old, with, 1) }
}

var home = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// calling has the worker dial another address.
func calling(address string) func(s *sent, subject string) {
	return func(s *sent, _ string) { s.control = home.ReplaceAllLiteralString(s.control, address) }
}

// silentCases are requests that cannot be served, and that the Rust sidecar accepts without ever answering.
var silentCases = []testCase{
	{name: "body empty", raw: " "},
	{name: "body of noise", raw: "\xc1\xff\x00"},
	{name: "body a list", body: ``, raw: "\x90"},
	{name: "token ids absent", without: "token_ids"},
	{name: "token ids null", body: `{"token_ids":null}`},
	{name: "token ids negative", body: `{"token_ids":[-1]}`},
	{name: "token ids too large", body: `{"token_ids":[4294967296]}`},
	{name: "token ids of text", body: `{"token_ids":["1"]}`},
	{name: "token ids of floats", body: `{"token_ids":[1.0]}`},
	{name: "sampling options null", body: `{"sampling_options":null}`},
	{name: "stop conditions null", body: `{"stop_conditions":null}`},
	{name: "output options null", body: `{"output_options":null}`},
	{name: "n above a byte", body: `{"sampling_options":{"n":256}}`},
	{name: "temperature of text", body: `{"sampling_options":{"temperature":"hot"}}`},
	{name: "max tokens negative", body: `{"stop_conditions":{"max_tokens":-1}}`},
	{name: "max tokens a float", body: `{"stop_conditions":{"max_tokens":5.5}}`},
	{name: "top_k beyond 32 bits", body: `{"sampling_options":{"top_k":2147483648}}`},
	{name: "seed beyond 64 bits", body: `{"sampling_options":{"seed":18446744073709551615}}`},
	{name: "logprobs negative", body: `{"output_options":{"logprobs":-1}}`},
	{name: "rank negative", body: `{"routing":{"dp_rank":-1}}`},
	{name: "rank of text", body: `{"routing":{"dp_rank":"0"}}`},
	{name: "priority beyond 32 bits", body: `{"routing":{"priority":2147483648}}`},
	{name: "encoder result no object", body: `{"encoder_result":1}`},
	{name: "prefill result without parameters", body: `{"prefill_result":{"x":1}}`, without: "prefill_result.disaggregated_params"},
	{name: "prefill result no object", body: `{"prefill_result":"x"}`},
	{name: "annotations of numbers", body: `{"annotations":[1]}`},
	{name: "eos ids of text", body: `{"eos_token_ids":["x"]}`},
	{name: "model a number", body: `{"model":1}`},
	{name: "extra codec", wire: func(s *sent, _ string) {
		s.control = strings.NewReplacer(`"payload_codec":"msgpack"`, `"payload_codec":"cbor"`, `"payload_codec":"json"`, `"payload_codec":"cbor"`).Replace(s.control)
	}},
	{name: "control without id", wire: func(s *sent, _ string) { s.control = strings.Replace(s.control, `"id":"`, `"di":"`, 1) }},
	{name: "control of another id", wire: func(s *sent, _ string) { s.control = strings.Replace(s.control, `"id":"`, `"id":"x`, 1) }},
	{name: "control without connection", wire: controlling(`"connection_info"`, `"connection_inf"`)},
	{name: "control of another transport", wire: controlling(`tcp_server`, `quic_server`)},
	{name: "control is no JSON", wire: func(s *sent, _ string) { s.control = "{" }},
	{name: "control with an unknown request type", wire: controlling(`single_in`, `triple_in`)},
	{name: "payload is no two-part message", wire: func(s *sent, _ string) { s.payload = []byte("short") }},
	{name: "payload lies about its parts", wire: func(s *sent, _ string) { s.payload = twoPart([]byte(s.control), s.body); s.payload[7] += 9 }},
}

// badRequestCases are requests as no good frontend sends them, and odd ones that are all right.
var badRequestCases = func() []testCase {
	cases := []testCase{
		{name: "stop conditions with thinking null", body: `{"stop_conditions":{"max_thinking_tokens":null}}`},
		{name: "annotations absent", without: "annotations"},
		{name: "eos ids absent", without: "eos_token_ids"},
		{name: "many in", wire: controlling(`single_in`, `many_in`)},
		{name: "single out", wire: controlling(`many_out`, `single_out`)},
		{name: "no request type", wire: controlling(`"request_type"`, `"request_typ"`), silent: true},
		{name: "no response type", wire: controlling(`"response_type"`, `"response_typ"`), silent: true},
		{name: "no codec", wire: controlling(`"payload_codec"`, `"payload_code"`), silent: true},
		{name: "metadata", wire: controlling(`{"id"`, `{"metadata":{"a":"b"},"id"`)},
		{name: "metadata of numbers", wire: controlling(`{"id"`, `{"metadata":{"a":1},"id"`), silent: true},
		{name: "frame headers empty", wire: func(s *sent, _ string) { s.headers = "{}" }},
		{name: "frame headers no JSON", wire: func(s *sent, _ string) { s.headers = "x" }},
		{name: "frame headers of numbers", wire: func(s *sent, _ string) { s.headers = `{"a":1}` }},
		{name: "path of nobody", wire: func(s *sent, _ string) { s.path = "7/a/b/c" }},
		{name: "path empty", wire: func(s *sent, _ string) { s.path = "" }},
		{name: "call home to a closed port", wire: calling("127.0.0.1:1"), silent: true},
		{name: "call home to a name", wire: calling("localhost:9"), silent: true},
		{name: "checksum", wire: func(s *sent, _ string) { s.payload = twoPart([]byte(s.control), s.body); s.payload[23] = 1 }},
	}
	for _, c := range silentCases {
		c.silent = true
		cases = append(cases, c)
	}
	return cases
}()
