package modelcard

import "strings"

// Slug is the form of a model's name that fits into keys and URLs.
func Slug(name string) string {
	slug := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	return strings.TrimLeft(slug, "_")
}
