package sim

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// newUUID makes a random (version 4) UUID.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	b[6] = b[6]&0x0F | 0x40
	b[8] = b[8]&0x3F | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// internalID makes the engine's own name for a request: requests that share an external id stay apart.
func internalID(external string) string {
	var b [4]byte
	rand.Read(b[:])
	return external + "-" + hex.EncodeToString(b[:])
}

func randomUint64() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
