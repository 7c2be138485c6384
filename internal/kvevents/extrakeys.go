package kvevents

import "github.com/tinylib/msgp/msgp"

// readExtraKeys reads the keys of each block: nil or a list. What is neither counts as one opaque key.
func (d *Decoder) readExtraKeys(b []byte) (extra [][]ExtraKey, rest []byte, err error) {
	if msgp.IsNil(b) {
		return nil, b[1:], nil
	}
	if msgp.NextType(b) != msgp.ArrayType { // of a form that means nothing to us
		rest, err = msgp.Skip(b)
		return nil, rest, err
	}
	count, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return nil, nil, err
	}
	start, blank := len(d.extra), 0
	for range count {
		if msgp.IsNil(b) { // almost every block: only counted, until one comes that has keys
			blank++
			b = b[1:]
			continue
		}
		for ; blank > 0; blank-- {
			d.extra = append(d.extra, nil)
		}
		var keys []ExtraKey
		if keys, b, err = d.readKeys(b); err != nil {
			return nil, nil, err
		}
		d.extra = append(d.extra, keys)
	}
	return cut(d.extra, start), b, nil
}

func (d *Decoder) readKeys(b []byte) (keys []ExtraKey, rest []byte, err error) {
	start := len(d.keys)
	count := uint32(1)
	if msgp.NextType(b) == msgp.ArrayType {
		if count, b, err = msgp.ReadArrayHeaderBytes(b); err != nil {
			return nil, nil, err
		}
	}
	for range count {
		var key ExtraKey
		if key, b, err = readExtraKey(b); err != nil {
			return nil, nil, err
		}
		d.keys = append(d.keys, key)
	}
	return cut(d.keys, start), b, nil
}

// readExtraKey reads a text, or a text and where it applies, or something opaque.
func readExtraKey(b []byte) (key ExtraKey, rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.StrType:
		var text []byte
		text, rest, err = msgp.ReadStringZC(b)
		return ExtraKey{Text: string(text)}, rest, err
	case msgp.ArrayType:
		var placed bool
		if rest, placed = readPlaced(&key, b); placed {
			return key, rest, nil
		}
	default:
	}
	rest, err = msgp.Skip(b)
	return ExtraKey{Opaque: true}, rest, err
}

func readPlaced(key *ExtraKey, b []byte) (rest []byte, ok bool) {
	count, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil || count != 2 || msgp.NextType(b) != msgp.StrType {
		return nil, false
	}
	text, b, err := msgp.ReadStringZC(b)
	if err != nil {
		return nil, false
	}
	offset, ok := readWhole(b)
	if !ok {
		return nil, false
	}
	*key = ExtraKey{Text: string(text), Offset: offset, HasOffset: true}
	rest, err = msgp.Skip(b)
	return rest, err == nil
}
