package vllmtest

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	pb "remora/proto/vllm"
)

// Step is one act of a script. A step that returns an error ends the stream: with the error's gRPC status, or with OK when
// it is the one of EOF. A script that runs out ends the stream with OK, too.
type Step func(c *Call) error

// errEOF ends a script early with status OK.
var errEOF = errors.New("end of script")

// Call is one running GenerateStream, as its steps see it.
type Call struct {
	// Request is what the client sent. Set once.
	Request *pb.GenerateRequest
	// Metadata is what came with it. Set once.
	Metadata metadata.MD

	engine *Engine
	stream grpcStream

	// The rest belongs to the handler's goroutine.
	aborted    chan struct{} // closed by the engine when Abort names the request
	finishing  bool          // the answer to Abort is under way
	sentPrompt bool
	sentTokens uint32
}

// grpcStream is the part of the generated server stream that the steps use.
type grpcStream interface {
	Context() context.Context
	SendHeader(md metadata.MD) error
	Send(message *pb.GenerateResponse) error
}

// Context ends when the client drops the stream or its connection breaks.
func (c *Call) Context() context.Context { return c.stream.Context() }

// ID is the request id.
func (c *Call) ID() string { return c.Request.GetRequestId() }

func (c *Call) send(message *pb.GenerateResponse) error {
	if err := c.Context().Err(); err != nil {
		return err
	}
	select {
	case <-c.aborted:
		if !c.finishing {
			return c.finishAborted()
		}
	default:
	}
	if err := c.stream.Send(message); err != nil {
		return err
	}
	c.sentPrompt = c.sentPrompt || message.GetPromptInfo() != nil
	c.sentTokens += message.GetOutputs().GetNumTokens()
	c.engine.record(Event{Kind: Sent, ID: c.ID(), Message: message})
	return nil
}

// pause waits for one of the channels: nil for wake, the client's leaving, or an Abort, which answers as vLLM does.
func (c *Call) pause(wake <-chan struct{}) error {
	select {
	case <-wake:
		return nil
	case <-c.Context().Done():
		return c.Context().Err()
	case <-c.aborted:
		return c.finishAborted()
	}
}

func (c *Call) finishAborted() error {
	c.finishing = true
	if !c.sentPrompt {
		if err := Prompt(len(c.Request.GetTokenIds().GetIds()))(c); err != nil {
			return err
		}
	}
	if err := Finish(pb.FinishInfo_ABORTED)(c); err != nil {
		return err
	}
	return errEOF
}

// Headers sends the response headers, as vLLM does once the request is submitted.
func Headers() Step {
	return func(c *Call) error {
		if err := c.Context().Err(); err != nil {
			return err
		}
		if err := c.stream.SendHeader(metadata.Pairs("date", "Thu, 01 Jan 1970 00:00:00 GMT")); err != nil {
			return err
		}
		c.engine.record(Event{Kind: HeadersSent, ID: c.ID()})
		return nil
	}
}

// Prompt sends the message with prompt_info for n prompt tokens.
func Prompt(n int) Step {
	return Message(&pb.GenerateResponse{PromptInfo: &pb.PromptInfo{NumPromptTokens: uint32(n)}})
}

// Tokens sends one message for each id, as an engine without speculation does.
func Tokens(ids ...uint32) Step {
	return func(c *Call) error {
		for _, id := range ids {
			if err := Batch(id)(c); err != nil {
				return err
			}
		}
		return nil
	}
}

// Batch sends one message that carries all the ids; without ids it is a message of no tokens.
func Batch(ids ...uint32) Step {
	return func(c *Call) error {
		return c.send(&pb.GenerateResponse{Outputs: &pb.SequenceOutput{NumTokens: uint32(len(ids)), TokenIds: ids}})
	}
}

// Repeat sends n messages of the one token, without a record of each: for loads that the log should not hold.
func Repeat(n int, id uint32) Step {
	message := &pb.GenerateResponse{Outputs: &pb.SequenceOutput{NumTokens: 1, TokenIds: []uint32{id}}}
	return func(c *Call) error {
		for range n {
			if err := c.stream.Send(message); err != nil {
				return err
			}
		}
		c.sentTokens += uint32(n)
		return c.Context().Err()
	}
}

// Finish sends a last message without tokens. It counts the tokens sent so far.
func Finish(reason pb.FinishInfo_FinishReason) Step { return FinishWith(reason, nil) }

// FinishToken sends the last message together with its token, as vLLM does for everything but an abort.
func FinishToken(reason pb.FinishInfo_FinishReason, id uint32) Step {
	return FinishWith(reason, nil, id)
}

// FinishWith sends a last message with hand-off parameters, as a prefill does, and with its tokens if there are any.
func FinishWith(reason pb.FinishInfo_FinishReason, kvTransfer *structpb.Struct, ids ...uint32) Step {
	return func(c *Call) error {
		return c.send(&pb.GenerateResponse{Outputs: &pb.SequenceOutput{
			NumTokens: uint32(len(ids)),
			TokenIds:  ids,
			FinishInfo: &pb.FinishInfo{
				NumOutputTokens:  c.sentTokens + uint32(len(ids)),
				FinishReason:     reason,
				KvTransferParams: kvTransfer,
			},
		}})
	}
}

// Message sends any message. The message must not be changed afterwards.
func Message(message *pb.GenerateResponse) Step {
	return func(c *Call) error { return c.send(message) }
}

// Status ends the stream with an error status. As a first step it makes a trailers-only answer, which has no headers.
func Status(code codes.Code, text string) Step {
	return func(*Call) error { return status.Error(code, text) }
}

// EOF ends the stream with status OK, whatever was sent before.
func EOF() Step { return func(*Call) error { return errEOF } }

// Wait holds the script until the channel is closed or delivers. A drop ends the wait and the stream; so does an Abort.
func Wait(wake <-chan struct{}) Step {
	return func(c *Call) error { return c.pause(wake) }
}

// WaitDeaf holds the script until the channel is closed or delivers, and does not notice drops and Aborts before: an
// engine that is wedged.
func WaitDeaf(wake <-chan struct{}) Step {
	return func(c *Call) error {
		select {
		case <-wake:
			return c.Context().Err()
		case <-c.engine.closing:
			return status.Error(codes.Unavailable, "engine closed")
		}
	}
}

// Silence says nothing until the stream is dropped or aborted.
func Silence() Step { return Wait(nil) }

// Sleep pauses the script, in the bubble's time when there is one.
func Sleep(d time.Duration) Step {
	return func(c *Call) error {
		wake := make(chan struct{})
		timer := time.AfterFunc(d, func() { close(wake) })
		defer timer.Stop()
		return c.pause(wake)
	}
}

// Do runs a function on the handler's goroutine, for example to break connections at this very point.
func Do(f func(c *Call)) Step {
	return func(c *Call) error { f(c); return nil }
}
