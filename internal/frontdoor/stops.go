package frontdoor

import "strings"

// stopMatcher finds stop strings in a text that arrives in pieces. What may be the beginning of one is held back, at most as
// many bytes as the longest stop string has.
type stopMatcher struct {
	stops []string
	held  string
}

// push takes the next piece and returns what may be shown. After a match nothing more may be pushed: the text ends before
// the stop string.
func (m *stopMatcher) push(piece string) (text string, matched bool) {
	if len(m.stops) == 0 {
		return piece, false
	}
	buf := m.held + piece
	first := -1
	for _, stop := range m.stops {
		if i := strings.Index(buf, stop); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		m.held = ""
		return buf[:first], true
	}
	keep := 0
	for _, stop := range m.stops {
		for n := min(len(stop)-1, len(buf)); n > keep; n-- {
			if strings.HasSuffix(buf, stop[:n]) {
				keep = n
				break
			}
		}
	}
	text, m.held = buf[:len(buf)-keep], buf[len(buf)-keep:]
	return text, false
}

// flush returns what is still held: the text has ended, so no stop string will come of it.
func (m *stopMatcher) flush() string {
	text := m.held
	m.held = ""
	return text
}
