package status

import "strings"

// labelled is a name of Dynamo's as the Rust sidecar has it in labels, so that one query finds both (measured, 1.6.1): what is
// no ASCII letter, digit or underscore becomes an underscore, a digit in front gets one before it, and two underscores in
// front are taken away, unless a letter does not follow; then one of them stays. So "my-ns" is my_ns, "1c" _1c, "__x" x.
func labelled(name string) string {
	clean := strings.Map(func(r rune) rune {
		if letter(r) || '0' <= r && r <= '9' {
			return r
		}
		return '_'
	}, name)
	rest, reserved := strings.CutPrefix(clean, "__")
	if first := rest; first != "" && (letter(rune(first[0])) || !reserved && first[0] == '_') {
		return rest
	}
	return "_" + rest
}

func letter(r rune) bool { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }
