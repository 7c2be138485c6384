package translate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// Stamp is what a Remora prefill worker adds to a hand-off, under a key of its own, so that the decode worker can tell whether
// the hand-off is still good and made for its prompt. An engine answers a stale hand-off, or one of another prompt, with
// status OK, wrong text and a poisoned prefix cache (measured on 0.32.0), so nobody but the sidecars can notice.
type Stamp struct {
	// Finished is when the prefill ended, in nanoseconds of the frontend's clock: the time that the frontend wrote into the
	// prefill's frame, and what has passed since that frame arrived.
	Finished  int64
	Lease     time.Duration // how long the prefill engine keeps the blocks without a heartbeat; whole milliseconds
	BlockSize uint32        // of the prefill engine, in tokens; 0: not known
	Prompt    Prompt
}

// Prompt identifies a prompt by its length in tokens, before the engine puts any media into it, and a hash of it.
type Prompt struct {
	Tokens uint32
	Hash   uint64 // xxh3-64 over the ids as little-endian 32-bit words, and what tells its media apart
}

const stampVersion = "1"

// errStamp marks a stamp that can't be read, one of another version included.
var errStamp = errors.New("stamp can't be read")

// promptOf identifies the prompt. Of media it takes what they are and not what caches call them: those names may be made anew
// for each phase of a request.
func promptOf(ids []uint32, media []*pb.MediaItem) Prompt {
	raw := make([]byte, 0, 4*len(ids)+32*len(media))
	for _, id := range ids {
		raw = binary.LittleEndian.AppendUint32(raw, id)
	}
	for _, item := range media {
		raw = append(raw, byte(item.GetModality()))
		raw = binary.LittleEndian.AppendUint64(raw, xxh3.HashString(item.GetUrl()+item.GetDataUri()))
		f := item.GetFeatures()
		raw = binary.LittleEndian.AppendUint64(raw, xxh3.HashString(f.GetMmHash()))
		raw = binary.LittleEndian.AppendUint64(raw, f.GetOffset())
		raw = binary.LittleEndian.AppendUint64(raw, f.GetLength())
	}
	return Prompt{Tokens: uint32(min(len(ids), math.MaxUint32)), Hash: xxh3.Hash(raw)}
}

// Add returns params with the stamp. params itself is shared and stays as it is; what is no object can't be stamped.
func (s Stamp) Add(params protocol.Value) protocol.Value {
	if params.Kind != protocol.KindMap {
		return params
	}
	params = without(params, stampKey)
	members := make([]protocol.Member, 0, len(params.Map)+1)
	members = append(members, params.Map...)
	return protocol.Map(append(members, protocol.Member{Key: stampKey, Value: protocol.String(s.String())})...)
}

// String is the stamp's text: version; finish; lease in ms; block size; prompt length; prompt hash in hexadecimal.
func (s Stamp) String() string {
	return fmt.Sprintf("%s;%d;%d;%d;%d;%016x", stampVersion, s.Finished, s.Lease.Milliseconds(), s.BlockSize, s.Prompt.Tokens, s.Prompt.Hash)
}

// ParseStamp reads a stamp's text.
func ParseStamp(text string) (s Stamp, err error) {
	parts := strings.Split(text, ";")
	if len(parts) != 6 || parts[0] != stampVersion {
		return Stamp{}, fmt.Errorf("%w: %.60q", errStamp, text)
	}
	var lease, blockSize, tokens uint64
	for _, field := range []struct {
		text string
		base int
		bits int
		into *uint64
	}{{parts[2], 10, 40, &lease}, {parts[3], 10, 32, &blockSize}, {parts[4], 10, 32, &tokens}, {parts[5], 16, 64, &s.Prompt.Hash}} {
		if *field.into, err = strconv.ParseUint(field.text, field.base, field.bits); err != nil {
			return Stamp{}, fmt.Errorf("%w: %w", errStamp, err)
		}
	}
	if s.Finished, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return Stamp{}, fmt.Errorf("%w: %w", errStamp, err)
	}
	s.Lease = time.Duration(lease) * time.Millisecond
	s.BlockSize, s.Prompt.Tokens = uint32(blockSize), uint32(tokens)
	return s, nil
}

// absurdAge is beyond any lease: an age like that says that the two times are not of one clock.
const absurdAge = 24 * time.Hour

// Age is how old the hand-off is for a decode request that its frontend sent at sent (nanoseconds of the same clock) and that
// has been here for since. ok is false where nobody can tell: no stamp, no time, or times that can't be of one clock.
func (s Stamp) Age(sent int64, since time.Duration) (age time.Duration, ok bool) {
	if s.Finished <= 0 || sent <= 0 || s.Lease <= 0 {
		return 0, false
	}
	gap := time.Duration(sent - s.Finished)
	return gap + since, gap >= 0 && gap < absurdAge
}

// Stale tells whether a hand-off of that age must not be used any more: its lease may end before the decode engine's first
// heartbeat, which comes within a sixth of the lease, and two seconds are left for the way. Never below half the lease.
func (s Stamp) Stale(age time.Duration) bool {
	return age > max(s.Lease-s.Lease/6-2*time.Second, s.Lease/2)
}
