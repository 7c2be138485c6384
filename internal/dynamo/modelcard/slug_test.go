package modelcard

import (
	"strings"
	"testing"
)

func TestSlug(t *testing.T) {
	for name, want := range map[string]string{
		"Qwen/Qwen3-0.6B": "qwen_qwen3-0_6b", "/models/tiny-1": "models_tiny-1", "__a_": "a_", "Näme": "n_me", "": "", "///": "",
	} {
		if got := Slug(name); got != want {
			t.Errorf("Slug(%q) = %q, want %q", name, got, want)
		}
	}
}

func FuzzSlug(f *testing.F) {
	for _, seed := range []string{"Qwen/Qwen3-0.6B", "__a_", "Näme"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if slug := Slug(name); strings.Trim(slug, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || strings.HasPrefix(slug, "_") {
			t.Errorf("Slug(%q) = %q", name, slug)
		}
	})
}
