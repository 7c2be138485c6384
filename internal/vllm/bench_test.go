package vllm_test

import (
	"testing"

	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// counter is the cheapest sink.
type counter struct {
	messages int
	ended    chan vllm.Status
}

func (c *counter) OnHeaders()                                 {}
func (c *counter) OnMessages(messages []*pb.GenerateResponse) { c.messages += len(messages) }
func (c *counter) OnEnd(status vllm.Status)                   { c.ended <- status }

// BenchmarkToken is one token message from the stand-in over loopback into a sink; the time is that of both ends.
func BenchmarkToken(b *testing.B) {
	engine := vllmtest.New(b)
	endpoint, err := vllm.ParseEndpoint(engine.Loopback(b))
	if err != nil {
		b.Fatal(err)
	}
	client := dial(b, engine, func(c *vllm.Config) { c.Endpoint, c.Dialer = endpoint, nil })
	engine.Script("a", vllmtest.Headers(), vllmtest.Repeat(b.N, 7))
	sink := &counter{ended: make(chan vllm.Status, 1)}
	b.ReportAllocs()
	b.ResetTimer()
	client.Open(request("a"), nil, sink)
	if status := <-sink.ended; status != (vllm.Status{}) || sink.messages != b.N {
		b.Fatalf("%d messages, %+v", sink.messages, status)
	}
}
