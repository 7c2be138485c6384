package translate

import (
	"strings"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// mediaForm is how a request brings its media.
type mediaForm uint8

const (
	mediaNone     mediaForm = iota
	mediaRaw                // by URL: the engine fetches them and puts their tokens into the prompt, which grows
	mediaFeatures           // ready for the model: their tokens are in the prompt already
)

// modality is one kind of media under its three names.
type modality struct {
	key  string // in multi_modal_data and multi_modal_uuids
	name string // in preprocessed features
	wire pb.Modality
}

// modalities lists the kinds in the order in which their items go to the engine. The engine finds the place of an item by its
// kind and its number within the kind, so the order of kinds means nothing; it is fixed so that equal requests stay equal.
func modalities() [3]modality {
	return [...]modality{
		{"audio_url", "audio", pb.Modality_MODALITY_AUDIO},
		{"image_url", "image", pb.Modality_MODALITY_IMAGE},
		{"video_url", "video", pb.Modality_MODALITY_VIDEO},
	}
}

// formOf looks at a request without judging what it finds. Empty lists carry nothing, except that preprocessed features count
// as soon as they are named.
func formOf(r *protocol.PreprocessedRequest) mediaForm {
	envelope, _ := r.ExtraArgs.Get(legacyKey)
	features, _ := envelope.Get(featuresKey)
	switch {
	case carriesMedia(r.MultiModalData):
		return mediaRaw
	case !features.IsNull():
		return mediaFeatures
	default:
		return mediaNone
	}
}

// carriesMedia: v is a map from kind to a list of items. What is neither that nor null is counted as media, to be refused.
func carriesMedia(v protocol.Value) bool {
	if v.Kind != protocol.KindMap {
		return !v.IsNull()
	}
	for i := range v.Map {
		items := v.Map[i].Value
		if !items.IsNull() && (items.Kind != protocol.KindList || len(items.List) > 0) {
			return true
		}
	}
	return false
}

// media makes the engine's media items of whatever the request brings.
func (c *converter) media() (refusal *Refusal) {
	envelope, _ := c.req.ExtraArgs.Get(legacyKey)
	features, _ := envelope.Get(featuresKey)
	switch {
	case c.form == mediaRaw && !features.IsNull():
		return refuse("multi_modal_data and preprocessed features cannot be given together")
	case c.form != mediaRaw && carriesMedia(c.req.MultiModalUUIDs):
		return refuse("multi_modal_uuids is given without multi_modal_data")
	case c.form == mediaRaw:
		c.items, refusal = c.rawMedia()
	case c.form == mediaFeatures:
		c.items, refusal = c.features(features)
	}
	return refusal
}

func (c *converter) rawMedia() ([]*pb.MediaItem, *Refusal) {
	data := c.req.MultiModalData
	if refusal := knownKinds(data); refusal != nil {
		return nil, refusal
	}
	images, _ := data.Get("image_url")
	uuids, refusal := c.uuids(len(images.List))
	if refusal != nil {
		return nil, refusal
	}
	var out []*pb.MediaItem
	for _, kind := range modalities() {
		items, _ := data.Get(kind.key)
		for i := range items.List {
			item := &pb.MediaItem{Modality: kind.wire}
			if refusal := locate(item, kind.key, i, items.List[i]); refusal != nil {
				return nil, refusal
			}
			if kind.wire == pb.Modality_MODALITY_IMAGE && uuids != nil {
				item.Uuid = uuids[i]
			}
			out = append(out, item)
		}
	}
	return out, nil
}

// knownKinds refuses what no modality is called, unless nothing is listed under it.
func knownKinds(data protocol.Value) *Refusal {
	if data.Kind != protocol.KindMap {
		return refuse("multi_modal_data must be an object")
	}
	for i := range data.Map {
		key, items := data.Map[i].Key, data.Map[i].Value
		switch {
		case items.IsNull():
		case items.Kind != protocol.KindList:
			return refuse("multi_modal_data.%s must be a list", key)
		case len(items.List) > 0 && !isModality(key):
			return refuse("multi_modal_data.%s is not supported; audio_url, image_url and video_url are", key)
		}
	}
	return nil
}

func isModality(key string) bool {
	for _, kind := range modalities() {
		if kind.key == key {
			return true
		}
	}
	return false
}

// locate sets where the engine finds an item, which comes as an object with one member that says in which form it is told.
func locate(item *pb.MediaItem, key string, i int, v protocol.Value) *Refusal {
	if v.Kind != protocol.KindMap || len(v.Map) != 1 {
		return refuse("multi_modal_data.%s[%d] must be an object with one member", key, i)
	}
	form, text := v.Map[0].Key, v.Map[0].Value
	switch form {
	case "Url", "RawUrl":
	case "Decoded":
		return refuse("multi_modal_data.%s[%d] is decoded already, which the engine cannot take; leave decoding to the engine", key, i)
	case "UuidOnly":
		return refuse("multi_modal_data.%s[%d] is named by a uuid alone; the engine needs its source as well", key, i)
	default:
		return refuse("multi_modal_data.%s[%d] has the unknown form %q", key, i, form)
	}
	if text.Kind != protocol.KindString {
		return refuse("multi_modal_data.%s[%d].%s must be a string", key, i, form)
	}
	url := text.Str
	if form == "Url" {
		var ok bool
		if url, ok = tidyURL(url); !ok {
			return refuse("multi_modal_data.%s[%d] is not a URL: %.60q", key, i, text.Str)
		}
	}
	switch {
	case strings.HasPrefix(url, "data:"):
		item.Source = &pb.MediaItem_DataUri{DataUri: url}
	case strings.HasPrefix(url, "http://"), strings.HasPrefix(url, "https://"):
		item.Source = &pb.MediaItem_Url{Url: url}
	default:
		return refuse("multi_modal_data.%s[%d] must be an http, https or data URL: %.60q", key, i, url)
	}
	return nil
}

// tidyURL writes what every reader of URLs forgives as it is meant: blanks around the text, line breaks in it, capitals in the
// scheme, and another number of slashes than two before a host. The rest is left to the engine, which reads URLs by the same
// rules. ok is false for what is no absolute URL, or has no host where one is needed.
func tidyURL(text string) (url string, ok bool) {
	text = strings.TrimFunc(text, func(r rune) bool { return r <= ' ' })
	if strings.ContainsAny(text, "\t\r\n") {
		text = strings.NewReplacer("\t", "", "\r", "", "\n", "").Replace(text)
	}
	scheme, rest, ok := strings.Cut(text, ":")
	if !ok || !isScheme(scheme) {
		return "", false
	}
	scheme = strings.ToLower(scheme)
	if scheme != "http" && scheme != "https" {
		return scheme + ":" + rest, true
	}
	rest = strings.TrimLeft(rest, `/\`)
	if rest == "" || strings.ContainsRune("?#:", rune(rest[0])) {
		return "", false
	}
	return scheme + "://" + rest, true
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20 // lower case
		isLetter := 'a' <= c && c <= 'z'
		if !isLetter && (i == 0 || !strings.ContainsRune("0123456789+-.", rune(s[i]))) {
			return false
		}
	}
	return s != ""
}
