package translate

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	"github.com/zeebo/xxh3"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// featuresKey names, in the legacy envelope, media that somebody has made ready for the model.
const featuresKey = "features"

// maxFeatureBytes bounds the tensors of a request, all taken together and decoded.
const maxFeatureBytes = 16 << 20

// routingKey carries the hashes by which the router knows the images.
const routingKey = "dynamo_mm_routing_hashes"

// featureSet are three tables that must agree: from modality to a list with an entry for each item.
type featureSet struct{ hashes, placeholders, kwargs protocol.Value }

// features makes media items of preprocessed features. The engine believes them as they are: a place outside the prompt or a
// mask of another length would end it, so everything that can be checked is.
func (c *converter) features(v protocol.Value) ([]*pb.MediaItem, *Refusal) {
	set, refusal := readFeatureSet(v)
	if refusal != nil {
		return nil, refusal
	}
	var out []*pb.MediaItem
	left := maxFeatureBytes
	for _, kind := range modalities() {
		hashes, _ := set.hashes.Get(kind.name)
		placeholders, _ := set.placeholders.Get(kind.name)
		kwargs, _ := set.kwargs.Get(kind.name)
		if n := len(hashes.List); len(placeholders.List) != n || len(kwargs.List) != n {
			return nil, refuseFeatures("%d hashes, %d placeholders and %d payloads are given for %s",
				n, len(placeholders.List), len(kwargs.List), kind.name)
		}
		for i := range hashes.List {
			if hashes.List[i].Kind != protocol.KindString || hashes.List[i].Str == "" {
				return nil, refuseFeatures("mm_hashes.%s[%d] must be a non-empty string", kind.name, i)
			}
			f, why := readPlaceholder(placeholders.List[i], len(c.req.TokenIDs))
			if why != "" {
				return nil, refuseFeatures("mm_placeholders.%s[%d] %s", kind.name, i, why)
			}
			if f.Kwargs, why = readKwargs(kwargs.List[i], left); why != "" {
				return nil, refuseFeatures("kwargs_data.%s[%d] %s", kind.name, i, why)
			}
			left -= len(f.GetKwargs())
			f.MmHash = new(contentID(kind.name, f.GetKwargs()))
			f.Identifier = f.GetMmHash()
			out = append(out, &pb.MediaItem{Modality: kind.wire, Source: &pb.MediaItem_Features{Features: f}})
		}
	}
	return out, c.identify(out)
}

func refuseFeatures(format string, args ...any) *Refusal {
	return refuse("extra_args.vllm_tito.features: %s", fmt.Sprintf(format, args...))
}

// readFeatureSet checks the outer form: three objects of lists, with the same modalities in each.
func readFeatureSet(v protocol.Value) (set featureSet, refusal *Refusal) {
	if v.Kind != protocol.KindMap {
		return set, refuseFeatures("must be an object")
	}
	for i := range v.Map {
		switch v.Map[i].Key {
		case "mm_hashes":
			set.hashes = v.Map[i].Value
		case "mm_placeholders":
			set.placeholders = v.Map[i].Value
		case "kwargs_data":
			set.kwargs = v.Map[i].Value
		case "mm_metadata": // for others
		default:
			return set, refuseFeatures("%s is not supported", v.Map[i].Key)
		}
	}
	for _, table := range []struct {
		name  string
		value protocol.Value
	}{{"mm_hashes", set.hashes}, {"mm_placeholders", set.placeholders}, {"kwargs_data", set.kwargs}} {
		if table.value.Kind != protocol.KindMap {
			return set, refuseFeatures("%s must be an object", table.name)
		}
		known := 0
		for _, kind := range modalities() {
			if _, ok := table.value.Get(kind.name); ok {
				known++
			}
		}
		for i := range table.value.Map {
			key, list := table.value.Map[i].Key, table.value.Map[i].Value
			if list.Kind != protocol.KindList {
				return set, refuseFeatures("%s.%s must be a list", table.name, key)
			}
			if _, ok := set.hashes.Get(key); !ok || len(table.value.Map) != len(set.hashes.Map) {
				return set, refuseFeatures("mm_hashes, mm_placeholders and kwargs_data must name the same modalities")
			}
			if known != len(table.value.Map) {
				return set, refuseFeatures("%s may have audio, image and video", table.name)
			}
		}
	}
	if len(set.hashes.Map) == 0 && len(set.placeholders.Map) == 0 && len(set.kwargs.Map) == 0 {
		return set, refuseFeatures("must not be empty")
	}
	return set, nil
}

// readPlaceholder reads where in the prompt an item's tokens stand, and which of them are embeddings. why is how a sentence
// that began with its name goes on; empty: it is all right.
func readPlaceholder(v protocol.Value, promptTokens int) (f *pb.PreprocessedMediaFeatures, why string) {
	if v.Kind != protocol.KindMap {
		return nil, "must be an object"
	}
	f = &pb.PreprocessedMediaFeatures{}
	var okOffset, okLength bool
	mask := protocol.Value{}
	for i := range v.Map {
		switch value := v.Map[i].Value; v.Map[i].Key {
		case "offset":
			f.Offset, okOffset = asUint64(value)
		case "length":
			f.Length, okLength = asUint64(value)
		case "is_embed":
			mask = value
		default:
			return nil, "has the unknown member " + v.Map[i].Key
		}
	}
	switch {
	case !okOffset || !okLength:
		return nil, "must have offset and length, whole numbers from 0"
	case f.GetLength() == 0:
		return nil, "has length 0"
	case f.GetOffset() > math.MaxUint64-f.GetLength() || f.GetOffset()+f.GetLength() > uint64(promptTokens):
		return nil, fmt.Sprintf("goes beyond the prompt's %d tokens", promptTokens)
	case mask.Kind != protocol.KindList && !mask.IsNull():
		return nil, "must have a list or null as is_embed"
	case len(mask.List) > 0 && uint64(len(mask.List)) != f.GetLength():
		return nil, fmt.Sprintf("has length %d and %d entries in is_embed", f.GetLength(), len(mask.List))
	}
	for i := range mask.List {
		if mask.List[i].Kind != protocol.KindBool {
			return nil, "must have booleans in is_embed"
		}
		f.IsEmbed = append(f.IsEmbed, mask.List[i].Bool)
	}
	return f, ""
}

func asUint64(v protocol.Value) (uint64, bool) {
	if v.Kind == protocol.KindUint {
		return v.Uint, true
	}
	return uint64(v.Int), v.Kind == protocol.KindInt && v.Int >= 0
}

// readKwargs decodes an item's tensors, of which at most left bytes may come. The text is plain base64 with its padding, so
// that one payload has one text.
func readKwargs(v protocol.Value, left int) (raw []byte, why string) {
	if v.Kind != protocol.KindString || v.Str == "" {
		return nil, "must be a non-empty string"
	}
	padding := len(v.Str) - len(strings.TrimRight(v.Str, "="))
	if base64.StdEncoding.DecodedLen(len(v.Str))-padding > left {
		return nil, fmt.Sprintf("is too much: the payloads of a request may have %d bytes", maxFeatureBytes)
	}
	if strings.ContainsAny(v.Str, "\r\n") { // which Go's decoder would skip
		return nil, "is not base64"
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(v.Str)
	if err != nil {
		return nil, "is not base64"
	}
	return raw, ""
}

// contentID names a payload by what it is. The form is that of vLLM's own front end, so that the same payload has one name in
// the engine, whichever way it came.
func contentID(modality string, kwargs []byte) string {
	h := sha256.New()
	h.Write([]byte("vllm.grpc.preprocessed-mm.v1"))
	var length [8]byte
	for _, part := range [][]byte{[]byte(modality), kwargs} {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write(part)
	}
	return "grpc-mm:" + hex.EncodeToString(h.Sum(nil))
}

// routingHash is the router's name for a payload, filled up like every hash.
func routingHash(id string) string {
	return fmt.Sprintf("%016x%s", xxh3.HashString(id), strings.Repeat("0", hashWidth-16))
}

// identify sets under which name the engine's caches know each item: an adapter has its own, since it may see an image
// differently; else the router's name, so that what the router believes to be cached is; else the content's.
func (c *converter) identify(items []*pb.MediaItem) *Refusal {
	hashes, ok := c.req.ExtraArgs.Get(routingKey)
	if ok && hashes.Kind != protocol.KindList {
		return refuse("extra_args.%s must be a list of strings", routingKey)
	}
	images := 0
	for _, item := range items {
		f := item.GetFeatures()
		if item.GetModality() == pb.Modality_MODALITY_IMAGE {
			if ok && images < len(hashes.List) {
				if hash := hashes.List[images]; hash.Kind != protocol.KindString || hash.Str != routingHash(f.GetMmHash()) {
					return refuse("extra_args.%s[%d] is not the hash of the image that is given", routingKey, images)
				}
				f.Identifier = hashes.List[images].Str
			}
			images++
		}
		if adapter := orZero(c.req.Routing.LoraName); adapter != "" {
			f.Identifier = adapter + ":" + f.GetMmHash()
		}
	}
	if ok && len(hashes.List) != images {
		return refuse("extra_args.%s has %d entries for %d images", routingKey, len(hashes.List), images)
	}
	return nil
}
