package sim

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"remora/internal/sim/core"
	"remora/internal/tinymodel"
	pb "remora/proto/vllm"
)

// checkMedia refuses media that can't be prepared. The words for a text prompt and for a model without media are a real
// engine's, the others are not: those depend on the model.
func (s *Server) checkMedia(req *pb.GenerateRequest) error {
	switch {
	case len(req.GetMedia()) == 0:
		return nil
	case req.GetTokenIds() == nil:
		return invalid("multimodal gRPC requests must provide token_ids input")
	case !s.cfg.Multimodal:
		return invalid("multimodal input is not supported by this chat renderer")
	case req.GetTruncatePromptTokens() > 0:
		return invalid("truncate_prompt_tokens is not supported with multimodal input")
	case len(req.GetMedia()) >= s.cfg.MaxModelLen:
		return invalid("%d media items have no room in %d tokens", len(req.GetMedia()), s.cfg.MaxModelLen)
	}
	ready := 0
	for i, item := range req.GetMedia() {
		if why := badItem(item); why != "" {
			return invalid("media[%d] %s", i, why)
		}
		if item.GetFeatures() != nil {
			ready++
		}
	}
	if ready != 0 && ready != len(req.GetMedia()) {
		return invalid("media and preprocessed features cannot be mixed")
	}
	return nil
}

// badItem says what is wrong with an item, if anything. A URL is not fetched: what it says stands for what is there.
func badItem(item *pb.MediaItem) string {
	if item.GetModality() < pb.Modality_MODALITY_IMAGE || item.GetModality() > pb.Modality_MODALITY_AUDIO {
		return "has no modality"
	}
	switch source := item.GetSource().(type) {
	case *pb.MediaItem_Url:
		if !strings.HasPrefix(source.Url, "http://") && !strings.HasPrefix(source.Url, "https://") {
			return "has a URL that is neither http nor https"
		}
	case *pb.MediaItem_DataUri:
		if !strings.HasPrefix(source.DataUri, "data:") || !strings.Contains(source.DataUri, ",") {
			return "has no data URI"
		}
	case *pb.MediaItem_RawBytes:
		if len(source.RawBytes) == 0 {
			return "is empty"
		}
	case *pb.MediaItem_Features:
		if f := source.Features; len(f.GetKwargs()) == 0 || f.GetLength() == 0 {
			return "has no features"
		}
	default:
		return "has no source"
	}
	return ""
}

// placeMedia enters media into a request. Features say where they stand; other media take the places of their placeholders, so
// that the prompt grows.
func placeMedia(req *core.Request, items []*pb.MediaItem) error {
	if len(items) == 0 {
		return nil
	}
	if items[0].GetFeatures() == nil {
		return expand(req, items)
	}
	for i, item := range items {
		f := item.GetFeatures()
		if n := uint64(len(req.Prompt)); f.GetOffset() >= n || f.GetLength() > n-f.GetOffset() {
			return invalid("media[%d] is outside the prompt", i)
		}
		id := cmp.Or(f.GetIdentifier(), f.GetMmHash(), contentHash(f.GetKwargs()))
		req.Media = append(req.Media, core.Media{ID: id, Offset: int(f.GetOffset()), Length: int(f.GetLength())})
	}
	sortMedia(req.Media)
	return nil
}

func sortMedia(all []core.Media) {
	slices.SortStableFunc(all, func(a, b core.Media) int { return cmp.Compare(a.Offset, b.Offset) })
}

// expand puts the items in the places of the texts <|image_1|>, <|image_2|> and so on, which a stock frontend writes for
// media of any kind where the chat template has no words for them. Images come first, then films, then sounds.
func expand(req *core.Request, items []*pb.MediaItem) error {
	items = slices.SortedStableFunc(slices.Values(items), func(a, b *pb.MediaItem) int { return cmp.Compare(a.GetModality(), b.GetModality()) })
	type place struct {
		at, length int // of the placeholder
		item       *pb.MediaItem
	}
	places := make([]place, 0, len(items))
	for i, item := range items {
		text := fmt.Sprintf("<|image_%d|>", i+1)
		ids := tinymodel.Encode(text)
		at := indexOf(req.Prompt, ids)
		if at < 0 {
			return invalid("the prompt has no %s for media item %d of %d", text, i+1, len(items))
		}
		places = append(places, place{at, len(ids), item})
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.at, b.at) })
	var out []uint32
	done := 0
	for _, p := range places {
		out = append(out, req.Prompt[done:p.at]...)
		done = p.at + p.length
		n := tokensOf(p.item.GetModality())
		req.Media = append(req.Media, core.Media{ID: identity(p.item), Offset: len(out), Length: n})
		out = append(out, slices.Repeat([]uint32{tinymodel.PAD}, n)...)
	}
	req.Prompt = append(out, req.Prompt[done:]...)
	return nil
}

// tokensOf says how many tokens stand for an item. Those of an image fill at least one block of the default size.
func tokensOf(m pb.Modality) int {
	switch m {
	case pb.Modality_MODALITY_VIDEO:
		return 48
	case pb.Modality_MODALITY_AUDIO:
		return 24
	case pb.Modality_MODALITY_IMAGE, pb.Modality_MODALITY_UNSPECIFIED:
	}
	return 32
}

// identity is the name by which the caches know an item: the one that came with it, or else its content's.
func identity(item *pb.MediaItem) string {
	if item.GetUuid() != "" {
		return item.GetUuid()
	}
	return contentHash([]byte(item.GetUrl() + item.GetDataUri() + string(item.GetRawBytes())))
}

// contentHash has the form of a real engine's, 64 hexadecimal digits.
func contentHash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// indexOf finds a sequence of tokens.
func indexOf(ids, wanted []uint32) int {
	for i := 0; i+len(wanted) <= len(ids); i++ {
		if slices.Equal(ids[i:i+len(wanted)], wanted) {
			return i
		}
	}
	return -1
}
