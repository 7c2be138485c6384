package sim

import (
	"slices"
	"strings"
	"testing"

	"remora/internal/tinymodel"
)

// TestStopper repeats what a real engine was seen to send for three kinds of stop strings.
func TestStopper(t *testing.T) {
	for _, tt := range []struct {
		name    string
		stops   []string
		include bool
		in      []string
		want    []string // as sent; the flush is the last one when nothing matched
		stop    string
	}{
		{"cut off", []string{"e l"}, false, []string{" like", " like"}, []string{" li", "k"}, "e l"},
		{"included", []string{"e l"}, true, []string{" like", " like"}, []string{" like", " l"}, "e l"},
		{
			"begun and never completed", []string{"lik\x01"}, false,
			[]string{" like", " like", " like", "ea", " y", " ho"},
			[]string{" l", "ike l", "ike l", "ik", "ee", "a y", " ho"}, "",
		},
		{"no stop strings", nil, false, []string{" like", " it"}, []string{" like", " it", ""}, ""},
		{"first of the list wins", []string{"kx", "ik"}, false, []string{" lik"}, []string{" l"}, "ik"},
		{"never inside a character", []string{"xxx"}, false, []string{"aé", "b"}, []string{"a", "", "éb"}, ""},
	} {
		s := stopper{list: tt.stops, include: tt.include}
		var got []string
		stop := ""
		for _, text := range tt.in {
			var out string
			out, stop = s.push(text, true)
			got = append(got, out)
		}
		if stop == "" {
			got = append(got, s.flush())
		}
		if !slices.Equal(got, tt.want) || stop != tt.stop {
			t.Errorf("%s: %q, stop %q; want %q, stop %q", tt.name, got, stop, tt.want, tt.stop)
		}
	}
}

func TestStopperBeforeTheLeastNumberOfTokens(t *testing.T) {
	s := stopper{list: []string{"ab"}}
	if out, stop := s.push("ab", false); stop != "" || out != "a" {
		t.Errorf("%q %q", out, stop)
	}
	if _, stop := s.push("a", true); stop != "" {
		t.Errorf("matched %q across the bound", stop)
	}
	if out, stop := s.push("b", true); stop != "ab" || out != "" {
		t.Errorf("%q %q", out, stop)
	}
}

// FuzzStopper compares with the plain definition: the text up to the first place at which one of the strings is complete.
func FuzzStopper(f *testing.F) {
	f.Add("hello there", "lo", "re", false, uint8(3))
	f.Add("ééé", "é", "x", true, uint8(1))
	f.Fuzz(func(t *testing.T, text, a, b string, include bool, size uint8) {
		if a == "" || b == "" {
			return
		}
		s := stopper{list: []string{a, b}, include: include}
		var out strings.Builder
		seen, rest := "", text
		for rest != "" {
			n := min(len(rest), int(size%7)+1)
			seen, rest = seen+rest[:n], rest[n:]
			piece, stop := s.push(seen[len(seen)-n:], true)
			out.WriteString(piece)
			at := strings.Index(seen, a)
			match := a
			if at < 0 {
				at, match = strings.Index(seen, b), b
			}
			if (at >= 0) != (stop != "") {
				t.Fatalf("after %q: stop %q", seen, stop)
			}
			if stop == "" {
				continue
			}
			want := seen[:at]
			if include {
				want = seen[:at+len(match)]
			}
			if out.String() != want || stop != match {
				t.Fatalf("%q, stop %q; want %q, stop %q", out.String(), stop, want, match)
			}
			return
		}
		if got := out.String() + s.flush(); got != text {
			t.Fatalf("%q, want %q", got, text)
		}
	})
}

// TestWriter: whole characters only, as recorded; and a prompt that ends inside one.
func TestWriter(t *testing.T) {
	var w writer
	var got []string
	for _, id := range []uint32{195, 169, 195, 169, 226, 130} {
		text, _ := w.push(id, true)
		got = append(got, text)
	}
	got = append(got, w.flush())
	if want := []string{"", "é", "", "é", "", "", "\uFFFD"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, tt := range []struct {
		prompt []uint32
		ids    []uint32
		want   string
	}{
		{[]uint32{300, 0xE2, 0x82}, []uint32{0xAC, 0x41}, "€A"},
		{[]uint32{0xE2, 0x82, 0xAC}, []uint32{0x41}, "A"},
		{[]uint32{0xE2, 300}, []uint32{0x41}, "A"},
		{[]uint32{0xC3}, []uint32{0x41}, "\uFFFDA"},
	} {
		after := writer{}
		after.prompt(tt.prompt)
		out := ""
		for _, id := range tt.ids {
			text, _ := after.push(id, true)
			out += text
		}
		if out += after.flush(); out != tt.want {
			t.Errorf("prompt %v: %q, want %q", tt.prompt, out, tt.want)
		}
	}
	special := writer{keepSpecials: true}
	if text, _ := special.push(tinymodel.EOS, true); text != tinymodel.SpecialText(tinymodel.EOS) {
		t.Errorf("special: %q", text)
	}
}
