package translate

import (
	"strings"

	"remora/internal/dynamo/protocol"
)

// hashWidth is the length of a media hash in the engine's own form; shorter ones are filled up with zeros behind.
const hashWidth = 64

// uuids are the names of the images, by which the engine's caches know them: those of the client, or else the hashes that the
// frontend made. nil: they have none. An empty one leaves its image to be known by its content.
func (c *converter) uuids(images int) ([]string, *Refusal) {
	own, given, refusal := c.ownUUIDs(images)
	if refusal != nil || given || images == 0 {
		return own, refusal
	}
	hashes, ok := c.req.ExtraArgs.Get("mm_hashes")
	if !ok {
		return nil, nil
	}
	if hashes.Kind != protocol.KindList {
		return nil, refuse("extra_args.mm_hashes must be a list of strings")
	}
	if n := len(hashes.List); n != images && n != 0 {
		return nil, refuse("extra_args.mm_hashes has %d entries for %d images", n, images)
	}
	var out []string
	for i := range hashes.List {
		if hashes.List[i].Kind != protocol.KindString || hashes.List[i].Str == "" {
			return nil, refuse("extra_args.mm_hashes[%d] must be a non-empty string", i)
		}
		hash := hashes.List[i].Str
		hash += strings.Repeat("0", max(0, hashWidth-len(hash)))
		if !safeName(hash) {
			return nil, refuse("extra_args.mm_hashes[%d] must not have a slash, a backslash or a zero byte", i)
		}
		out = append(out, hash)
	}
	return out, nil
}

// ownUUIDs are those that the client gave, a null or empty one being none. given says that there is a string among them: then
// the frontend's hashes do not count, not even for images without one.
func (c *converter) ownUUIDs(images int) (out []string, given bool, refusal *Refusal) {
	all := c.req.MultiModalUUIDs
	if all.Kind != protocol.KindMap && !all.IsNull() {
		return nil, false, refuse("multi_modal_uuids must be an object")
	}
	for i := range all.Map {
		key, list := all.Map[i].Key, all.Map[i].Value
		if list.Kind != protocol.KindList && !list.IsNull() {
			return nil, false, refuse("multi_modal_uuids.%s must be a list", key)
		}
		isImages := key == "image_url"
		if isImages && images > 0 && !list.IsNull() && len(list.List) != images {
			return nil, false, refuse("multi_modal_uuids.image_url has %d entries for %d images", len(list.List), images)
		}
		for j := range list.List {
			name := list.List[j]
			switch {
			case name.Kind != protocol.KindString && !name.IsNull():
				return nil, false, refuse("multi_modal_uuids.%s[%d] must be a string or null", key, j)
			case !isImages && name.Str != "":
				return nil, false, refuse("multi_modal_uuids.%s is not supported; only images can have uuids", key)
			case isImages && name.Str != "" && !safeName(name.Str):
				return nil, false, refuse("multi_modal_uuids.image_url[%d] must not be a dot or two, nor have a slash, a backslash or a zero byte", j)
			case isImages:
				given = given || !name.IsNull()
				out = append(out, name.Str)
			}
		}
	}
	if images == 0 {
		return nil, false, nil
	}
	return out, given, nil
}

// safeName: the engine may make a file's name of it.
func safeName(s string) bool {
	return s != "." && s != ".." && !strings.ContainsAny(s, "/\\\x00")
}
