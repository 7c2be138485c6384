package flags

// similar returns the word that looks most like text, or "" if none does. The measure is Jaro's, above 0.7.
func similar(text string, words []string) string {
	best, found := 0.7, ""
	for _, w := range words {
		if score := jaro([]rune(text), []rune(w)); score > best {
			best, found = score, w
		}
	}
	return found
}

// longestSuggestion bounds the work of jaro, which grows with the product of both lengths.
const longestSuggestion = 100

// jaro is the Jaro similarity of two words, from 0 (nothing in common) to 1 (equal): the mean of the shares of matching
// letters in either word and of those matches that stand in the same order.
func jaro(a, b []rune) float64 {
	if len(a) == 0 || len(b) == 0 || len(a) > longestSuggestion || len(b) > longestSuggestion {
		return 0
	}
	reach := max(max(len(a), len(b))/2-1, 0)
	usedB := make([]bool, len(b))
	var inA []rune
	for i, r := range a {
		for j := max(i-reach, 0); j < min(i+reach+1, len(b)); j++ {
			if !usedB[j] && b[j] == r {
				usedB[j] = true
				inA = append(inA, r)
				break
			}
		}
	}
	if len(inA) == 0 {
		return 0
	}
	moved, next := 0, 0
	for j, used := range usedB {
		if used {
			if b[j] != inA[next] {
				moved++
			}
			next++
		}
	}
	m := float64(len(inA))
	return (m/float64(len(a)) + m/float64(len(b)) + (m-float64(moved/2))/m) / 3
}
