package decode

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	pb "remora/proto/vllm"
)

// Tags of the fields that the hand-written reader knows: number << 3 | wire type.
const (
	tagOutputs = 2<<3 | 2

	tagIndex          = 1<<3 | 0
	tagText           = 2<<3 | 2
	tagNumTokens      = 3<<3 | 0
	tagTokenID        = 4<<3 | 0
	tagTokenIDs       = 4<<3 | 2
	tagLogprob        = 5<<3 | 5
	tagLogprobs       = 5<<3 | 2
	tagRank           = 6<<3 | 0
	tagRanks          = 6<<3 | 2
	tagCandidateLists = 7<<3 | 2

	tagCandidate = 1<<3 | 2

	tagCandidateID      = 1<<3 | 0
	tagCandidateLogprob = 2<<3 | 5
	tagCandidateRank    = 3<<3 | 0
)

// slot is one message of tokens and the lists that it used so far. Nothing but the fields set below is ever set in its
// messages, so setting them again is a reset.
type slot struct {
	response pb.GenerateResponse
	output   pb.SequenceOutput

	ids      []uint32
	logprobs []float32
	ranks    []uint32
	lists    []*pb.CandidateTokenInfo // made so far; as many as needed are in the output
	tokens   [][]*pb.TokenInfo        // made so far, of the list with the same index
}

func newSlot() *slot {
	s := new(slot)
	s.response.Outputs = &s.output
	return s
}

// read takes a message of nothing but a SequenceOutput without finish. It reports false for any other, and for all that is
// malformed; the slot may be half filled then.
func (s *slot) read(data []byte) bool {
	if len(data) == 0 || data[0] != tagOutputs {
		return false
	}
	size, n := binary.Uvarint(data[1:])
	if n <= 0 || size != uint64(len(data)-1-n) {
		return false // malformed, or something follows
	}
	s.ids, s.logprobs, s.ranks = kept(s.ids), kept(s.logprobs), kept(s.ranks)
	out := &s.output
	out.Index, out.Text, out.NumTokens = 0, "", 0
	out.TokenIds, out.Logprobs, out.Ranks, out.CandidateTokens = nil, nil, nil, nil
	lists, ok := s.fields(data[1+n:])
	if !ok {
		return false
	}
	// An empty list is nil, as the generated code leaves it.
	if len(s.ids) > 0 {
		out.TokenIds = s.ids
	}
	if len(s.logprobs) > 0 {
		out.Logprobs = s.logprobs
	}
	if len(s.ranks) > 0 {
		out.Ranks = s.ranks
	}
	if lists > 0 {
		out.CandidateTokens = s.lists[:lists:lists]
	}
	return true
}

// fields reads those of the SequenceOutput and returns how many candidate lists there are.
func (s *slot) fields(data []byte) (lists int, ok bool) {
	for len(data) > 0 {
		tag := data[0]
		data = data[1:]
		var number uint32
		var bytes []byte
		switch tag {
		case tagIndex, tagNumTokens, tagTokenID, tagRank:
			number, data, ok = varint(data)
		case tagLogprob:
			number, data, ok = fixed(data)
		case tagText, tagTokenIDs, tagLogprobs, tagRanks, tagCandidateLists:
			bytes, data, ok = counted(data)
		default:
			return 0, false
		}
		if !ok {
			return 0, false
		}
		switch tag {
		case tagIndex:
			s.output.Index = number
		case tagNumTokens:
			s.output.NumTokens = number
		case tagTokenID:
			s.ids = append(s.ids, number)
		case tagTokenIDs:
			s.ids, ok = appendVarints(s.ids, bytes)
		case tagRank:
			s.ranks = append(s.ranks, number)
		case tagRanks:
			s.ranks, ok = appendVarints(s.ranks, bytes)
		case tagLogprob:
			s.logprobs = append(s.logprobs, math.Float32frombits(number))
		case tagLogprobs:
			s.logprobs, ok = appendFloats(s.logprobs, bytes)
		case tagText:
			s.output.Text, ok = string(bytes), utf8.Valid(bytes)
		case tagCandidateLists:
			ok = s.candidates(lists, bytes)
			lists++
		}
		if !ok {
			return 0, false
		}
	}
	return lists, true
}

// candidates reads the list of that index.
func (s *slot) candidates(index int, data []byte) bool {
	if index == len(s.lists) {
		if index == keepElements {
			return false // no generation step has so many positions: not worth keeping
		}
		s.lists = append(s.lists, new(pb.CandidateTokenInfo))
		s.tokens = append(s.tokens, nil)
	}
	made, count := s.tokens[index], 0
	for len(data) > 0 {
		if data[0] != tagCandidate || count == keepElements {
			return false
		}
		body, rest, ok := counted(data[1:])
		if !ok {
			return false
		}
		data = rest
		if count == len(made) {
			made = append(made, new(pb.TokenInfo))
		}
		if !readCandidate(made[count], body) {
			return false
		}
		count++
	}
	s.tokens[index] = made
	s.lists[index].Tokens = nil
	if count > 0 {
		s.lists[index].Tokens = made[:count:count]
	}
	return true
}

func readCandidate(into *pb.TokenInfo, data []byte) (ok bool) {
	into.Id, into.Logprob, into.Rank = 0, 0, 0
	for len(data) > 0 {
		tag := data[0]
		data = data[1:]
		var number uint32
		switch tag {
		case tagCandidateID:
			into.Id, data, ok = varint(data)
		case tagCandidateLogprob:
			number, data, ok = fixed(data)
			into.Logprob = math.Float32frombits(number)
		case tagCandidateRank:
			into.Rank, data, ok = varint(data)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	return true
}

// varint reads a number and cuts it to 32 bits, as the generated code does for uint32.
func varint(data []byte) (uint32, []byte, bool) {
	if len(data) > 0 && data[0] < 0x80 {
		return uint32(data[0]), data[1:], true
	}
	value, n := binary.Uvarint(data)
	if n <= 0 {
		return 0, nil, false
	}
	return uint32(value), data[n:], true
}

func fixed(data []byte) (uint32, []byte, bool) {
	if len(data) < 4 {
		return 0, nil, false
	}
	return binary.LittleEndian.Uint32(data), data[4:], true
}

// counted reads a length and that many bytes.
func counted(data []byte) (bytes, rest []byte, ok bool) {
	size, n := binary.Uvarint(data)
	if n <= 0 || size > uint64(len(data)-n) {
		return nil, nil, false
	}
	end := n + int(size)
	return data[n:end], data[end:], true
}

func appendVarints(list []uint32, data []byte) ([]uint32, bool) {
	for len(data) > 0 {
		value, rest, ok := varint(data)
		if !ok {
			return list, false
		}
		list, data = append(list, value), rest
	}
	return list, true
}

func appendFloats(list []float32, data []byte) ([]float32, bool) {
	if len(data)%4 != 0 {
		return list, false
	}
	for ; len(data) > 0; data = data[4:] {
		list = append(list, math.Float32frombits(binary.LittleEndian.Uint32(data)))
	}
	return list, true
}

// kept is an empty list with the old one's room, unless that is too much to keep.
func kept[T any](list []T) []T {
	if cap(list) > keepElements {
		return nil
	}
	return list[:0]
}
