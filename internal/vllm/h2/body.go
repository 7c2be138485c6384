package h2

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "remora/proto/vllm"
)

const (
	// maxMessage bounds messages in both directions.
	maxMessage = 64 << 20
	// keepBody is the largest request whose buffer is used again: prompts of about 20,000 tokens.
	keepBody = 64 << 10
	// prefixLen is that of gRPC's frame around a message.
	prefixLen = 5
)

// body is a request on its way out. It belongs to its stream and goes back to the pool when its last byte is with the writer.
type body struct {
	buffer []byte
	left   []byte // part of buffer that is not with the writer yet; never empty while the body is a stream's
}

// marshal makes the body of a request.
func (p *Pool) marshal(request *pb.GenerateRequest) (*body, *End) {
	refuse := func(text string) *End { return &End{Code: codes.InvalidArgument, Message: text, NotSent: true} }
	size := proto.Size(request)
	if size > maxMessage {
		return nil, refuse(fmt.Sprintf("grpc: trying to send message larger than max (%d vs. %d)", size, maxMessage))
	}
	b, _ := p.bodies.Get().(*body)
	if b == nil {
		b = new(body)
	}
	if cap(b.buffer) < prefixLen+size {
		b.buffer = make([]byte, 0, prefixLen+size)
	}
	b.buffer = append(b.buffer[:0], 0) // not compressed
	b.buffer = binary.BigEndian.AppendUint32(b.buffer, uint32(size))
	whole, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b.buffer, request)
	if err != nil {
		p.recycle(b)
		return nil, refuse("grpc: error while marshaling: " + err.Error())
	}
	b.buffer, b.left = whole, whole
	return b, nil
}

func (p *Pool) recycle(b *body) {
	if b == nil || cap(b.buffer) > keepBody {
		return
	}
	b.left = nil
	p.bodies.Put(b)
}
