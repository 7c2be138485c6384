package discovery

import (
	"fmt"
	"strings"
)

const upperHex = "0123456789ABCDEF"

// encodeFileName turns a key into the name of its file: every byte but ASCII letters and digits becomes %XX. Keys of the
// event buckets, which have escapes of their own, are thus encoded twice.
func encodeFileName(key string) string {
	return percentEncode(key, isAlphanumeric)
}

// encodeSegment escapes one name inside a key of the event buckets.
func encodeSegment(name string) string {
	return percentEncode(name, func(c byte) bool { return isAlphanumeric(c) || c == '-' || c == '_' })
}

// decodeFileName is the reverse of encodeFileName. It takes canonical names alone: any other file in a bucket's folder was
// put there by someone who is not a discovery peer.
func decodeFileName(name string) (key string, err error) {
	var b strings.Builder
	b.Grow(len(name))
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case isAlphanumeric(c):
			b.WriteByte(c)
		case c == '%' && i+2 < len(name):
			high, low := strings.IndexByte(upperHex, name[i+1]), strings.IndexByte(upperHex, name[i+2])
			if high < 0 || low < 0 {
				return "", fmt.Errorf("%w: file name %q has a broken escape at byte %d", ErrKey, name, i)
			}
			decoded := byte(high<<4 | low)
			if isAlphanumeric(decoded) {
				return "", fmt.Errorf("%w: file name %q escapes %q needlessly", ErrKey, name, decoded)
			}
			b.WriteByte(decoded)
			i += 2
		default:
			return "", fmt.Errorf("%w: file name %q has %q unescaped", ErrKey, name, c)
		}
	}
	if b.Len() == 0 {
		return "", fmt.Errorf("%w: empty file name", ErrKey)
	}
	return b.String(), nil
}

func percentEncode(s string, keep func(byte) bool) string {
	var b strings.Builder
	b.Grow(len(s) + len(s)/2)
	for i := range len(s) {
		if c := s[i]; keep(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&0xF])
		}
	}
	return b.String()
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
