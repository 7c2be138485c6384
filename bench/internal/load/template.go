package load

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"remora/internal/dynamo/protocol"
)

// Shape is what a request asks for.
type Shape struct {
	Prompt   int           // tokens
	Tokens   int           // to answer
	Interval time.Duration // between tokens; 0: as fast as can be
}

// Every request has a number, which stands as twelve digits at the end of its id and of its subject. So a request is made by
// writing these digits into a copy of the first one.
const digits = "000000000000"

// template is a request frame with the places of its number.
type template struct {
	frame  []byte
	places []int // where the digits begin
	sentAt int   // where the send time begins
}

const sendTime = "1000000000000000000" // nanoseconds, always 19 digits in our century

func newTemplate(w Worker, s Shape, responses string) (*template, error) {
	id, subject := "5eed0000-0000-4000-8000-"+digits, "b0a70000-0000-4000-9000-"+digits
	text := func(v any) ([]byte, error) {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("request: %w", err)
		}
		return b, nil
	}
	headers, err := text(map[string]string{"request-id": id, "x-endpoint-path": w.Path, "x-frontend-send-ts-ns": sendTime})
	if err != nil {
		return nil, err
	}
	info, err := text(map[string]string{"address": responses, "subject": subject, "context": id, "stream_type": "response"})
	if err != nil {
		return nil, err
	}
	control, err := text(map[string]any{
		"id": id, "request_type": "single_in", "response_type": "many_out", "payload_codec": w.Codec.String(),
		"connection_info": map[string]string{"transport": "tcp_server", "info": string(info)},
	})
	if err != nil {
		return nil, err
	}
	head := binary.BigEndian.AppendUint16(nil, uint16(len(w.Path)))
	head = append(head, w.Path...)
	head = binary.BigEndian.AppendUint16(head, uint16(len(headers)))
	head = append(head, headers...)
	body := protocol.AppendRequest(nil, w.Codec, request(s))
	head = binary.BigEndian.AppendUint32(head, uint32(prefixSize+len(control)+len(body)))
	head = binary.BigEndian.AppendUint64(head, uint64(len(control)))
	head = binary.BigEndian.AppendUint64(head, uint64(len(body)))
	head = binary.BigEndian.AppendUint64(head, 0)
	head = append(head, control...)

	t := &template{sentAt: bytes.Index(head, []byte(sendTime))}
	for at := 0; ; at++ {
		next := bytes.Index(head[at:], []byte("-"+digits))
		if next < 0 {
			break
		}
		at += next + 1
		t.places = append(t.places, at)
	}
	if len(t.places) != 4 || t.sentAt < 0 {
		return nil, fmt.Errorf("request: its number stands in %d places", len(t.places))
	}
	head = append(head, body...)
	t.frame = head
	return t, nil
}

// request is a plain completion whose seed tells the scripted engine the pace.
func request(s Shape) *protocol.PreprocessedRequest {
	prompt := make([]uint32, s.Prompt)
	for i := range prompt {
		prompt[i] = uint32(i*2654435761) % 128_000 // as wide as real vocabularies
	}
	tokens, seed, yes, temperature := uint32(s.Tokens), s.Interval.Microseconds(), true, float32(0.7)
	return &protocol.PreprocessedRequest{
		Model: "bench", TokenIDs: prompt,
		StopConditions:  protocol.StopConditions{MaxTokens: &tokens, IgnoreEOS: &yes},
		SamplingOptions: protocol.SamplingOptions{Seed: &seed, Temperature: &temperature},
		Annotations:     []string{},
	}
}

// number makes the template the request with this number.
func (t *template) number(n int, now time.Time) {
	text := fmt.Appendf(nil, "%0*d", len(digits), n)
	for _, at := range t.places {
		copy(t.frame[at:], text)
	}
	strconv.AppendInt(t.frame[t.sentAt:t.sentAt], now.UnixNano(), 10)
}
