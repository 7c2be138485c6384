package flags

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Value reads the text of a flag and stores what it says in a variable of the table's owner.
type Value struct {
	store    func(text string) error
	isSwitch bool
	words    []word // the possible values, if they are few
}

// word is a possible value as the help shows it.
type word struct{ text, help string }

// Text takes any text, the empty one included.
func Text(dst *string) Value {
	return Value{store: func(text string) error { *dst = text; return nil }}
}

// Path takes the path of a file: any text but the empty one, which names no file.
func Path(dst *string) Value {
	return Func(func(text string) error {
		if text == "" {
			return errNoValue
		}
		*dst = text
		return nil
	})
}

// Switch is false until it is given. Its environment variable says true or false, nothing else.
func Switch(dst *bool) Value {
	v := Bool(dst)
	v.isSwitch = true
	return v
}

// Bool takes the words true and false.
func Bool(dst *bool) Value {
	return OneOf(dst, Choice[bool]{Word: "true", Value: true}, Choice[bool]{Word: "false", Value: false})
}

// Truthy takes the words that Dynamo's runtime takes for its boolean variables, in any case.
func Truthy(dst *bool) Value {
	return Func(func(text string) error {
		switch strings.ToLower(strings.TrimSpace(text)) {
		case "1", "true", "yes", "on":
			*dst = true
		case "0", "false", "no", "off":
			*dst = false
		default:
			return errors.New("say true or false")
		}
		return nil
	})
}

// Choice is one word of an enumeration.
type Choice[T any] struct {
	Word   string
	Value  T
	Help   string // said in the long help; may be empty
	Hidden bool   // taken, but neither shown nor suggested
}

// OneOf takes one of a few words, exactly as written.
func OneOf[T any](dst *T, choices ...Choice[T]) Value {
	v := Value{}
	for _, c := range choices {
		if !c.Hidden {
			v.words = append(v.words, word{c.Word, c.Help})
		}
	}
	shown := v.texts()
	v.store = func(text string) error {
		for _, c := range choices {
			if c.Word == text {
				*dst = c.Value
				return nil
			}
		}
		if text == "" {
			return errNoValue
		}
		return &choiceError{words: shown, near: similar(text, shown)}
	}
	return v
}

// AnyCase is the value with its words taken in capitals, too.
func (v Value) AnyCase() Value {
	store := v.store
	v.store = func(text string) error { return store(strings.ToLower(text)) }
	return v
}

// Unsigned is what Number can store.
type Unsigned interface {
	~int | ~uint16 | ~uint32 | ~uint64
}

// Number takes a whole number from least to most, both included. Digits only; a leading plus sign is allowed.
func Number[T Unsigned](dst *T, least, most T) Value {
	return Func(func(text string) error {
		if text == "" {
			return errors.New("cannot parse a number from an empty text")
		}
		n, err := strconv.ParseUint(strings.TrimPrefix(text, "+"), 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange) || err == nil && n > uint64(most):
			return fmt.Errorf("the number is too large; at most %d", uint64(most))
		case err != nil:
			return errors.New("not a whole number")
		case n < uint64(least):
			return fmt.Errorf("%d is below the minimum of %d", n, uint64(least))
		}
		*dst = T(n)
		return nil
	})
}

// Func takes whatever store takes. The error's text follows "invalid value '...': ".
func Func(store func(text string) error) Value { return Value{store: store} }

// texts returns the possible values.
func (v Value) texts() []string {
	texts := make([]string, len(v.words))
	for i, w := range v.words {
		texts[i] = w.text
	}
	return texts
}

func join(words []string) string { return strings.Join(words, ", ") }
