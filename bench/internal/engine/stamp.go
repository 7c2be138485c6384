package engine

import "time"

// Token ids carry the time in microseconds, modulo stampRange (134 s), with a bit set above it. So every id takes four bytes
// as a varint and five in msgpack, whatever the time.
const stampRange = 1 << 27

// Stamp is the token id that says now.
func Stamp() uint32 { return uint32(time.Now().UnixMicro()&(stampRange-1)) | stampRange }

// Age tells how many microseconds before now (Unix microseconds) a token id was made, if that was within the last minute.
func Age(now int64, id uint32) int64 {
	return (now - int64(id)) & (stampRange - 1)
}
