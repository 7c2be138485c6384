package modelcard

import (
	"errors"
	"strings"
	"testing"
)

func TestParseEndpointTypes(t *testing.T) {
	for list, want := range map[string]string{
		"chat,completions":                 "Chat | Completions",
		"completions,chat":                 "Chat | Completions",
		"COMPLETIONS":                      "Completions",
		", chat ,,":                        "Chat",
		"embedding":                        "Embedding",
		"embeddings,embedding":             "Embedding",
		"tensor":                           "TensorBased",
		"image,images,video,videos":        "Images | Videos",
		"audio,audios":                     "Audios",
		"videos,audios,images,tensor,chat": "Chat | TensorBased | Images | Audios | Videos",
	} {
		types, err := ParseEndpointTypes(list)
		if err != nil || types.String() != want {
			t.Errorf("%q: %q, %v, want %q", list, types, err, want)
		}
	}
	for list, says := range map[string]string{
		"": "no endpoint type", " , ": "no endpoint type", "prefill": "disaggregation mode", "chat,Prefill": "disaggregation mode",
		"chat,soup": `"soup"`, "chat completions": `"chat completions"`,
	} {
		if types, err := ParseEndpointTypes(list); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v, want an error that says %s", list, types, err, says)
		}
	}
}

func TestSlug(t *testing.T) {
	for name, want := range map[string]string{
		"Qwen/Qwen3-0.6B": "qwen_qwen3-0_6b", "/models/tiny-1": "models_tiny-1", "__a_": "a_", "Näme": "n_me", "": "", "///": "",
	} {
		if got := Slug(name); got != want {
			t.Errorf("Slug(%q) = %q, want %q", name, got, want)
		}
	}
}

func FuzzEndpointTypes(f *testing.F) {
	for _, seed := range []string{"chat,completions", " , ", "prefill", "Images,VIDEO"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		types, err := ParseEndpointTypes(list)
		if (err == nil) != (types != 0) {
			t.Errorf("%q: %v, %v", list, types, err)
		}
		if slug := Slug(list); strings.Trim(slug, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || strings.HasPrefix(slug, "_") {
			t.Errorf("Slug(%q) = %q", list, slug)
		}
	})
}
