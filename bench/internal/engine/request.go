package engine

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// request is what the engine reads of a GenerateRequest.
type request struct {
	id       string
	prompt   uint32        // tokens
	tokens   uint32        // to answer
	interval time.Duration // between tokens; 0: as fast as the peer takes them
}

var errRequest = errors.New("GenerateRequest can't be read")

// fields calls visit for each field of a message. It gives the value of a varint, or the bytes of a length-delimited field.
func fields(msg []byte, visit func(num protowire.Number, value uint64, bytes []byte)) error {
	for len(msg) > 0 {
		num, kind, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return errRequest
		}
		msg = msg[n:]
		var value uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(msg)
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(msg)
		default:
			n = protowire.ConsumeFieldValue(num, kind, msg)
		}
		if n < 0 {
			return errRequest
		}
		msg = msg[n:]
		visit(num, value, bytes)
	}
	return nil
}

// parseRequest reads the few fields that steer the answer. The prompt's tokens are counted, not decoded.
func parseRequest(msg []byte) (r request, err error) {
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	keep(fields(msg, func(num protowire.Number, _ uint64, value []byte) {
		switch int(num) {
		case 1:
			r.id = string(value)
		case 4: // TokenIds
			keep(fields(value, func(num protowire.Number, _ uint64, packed []byte) {
				if num == 1 {
					r.prompt += countVarints(packed)
				}
			}))
		case 6: // RandomSampling
			keep(fields(value, func(num protowire.Number, seed uint64, _ []byte) {
				if num == 5 {
					r.interval = time.Duration(seed) * time.Microsecond
				}
			}))
		case 8: // StoppingCriteria
			keep(fields(value, func(num protowire.Number, n uint64, _ []byte) {
				if num == 1 {
					r.tokens = uint32(n)
				}
			}))
		}
	}))
	switch {
	case err != nil:
		return r, err
	case r.interval < 0 || r.interval > maxInterval:
		return r, fmt.Errorf("%w: an interval of %v", errRequest, r.interval)
	case r.tokens == 0:
		return r, fmt.Errorf("%w: no max_new_tokens", errRequest)
	}
	return r, nil
}

// countVarints counts the bytes that end a varint.
func countVarints(packed []byte) uint32 {
	var n uint32
	for _, b := range packed {
		n += uint32(b>>7) ^ 1
	}
	return n
}
