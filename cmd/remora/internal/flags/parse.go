package flags

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// Parse reads the arguments (without the program's and the command's name) and the environment into the variables that the
// table is bound to. Arguments are judged from left to right, so the first mistake is the one reported; then come the
// variables of the flags that were not given, in the order of the table, then what is missing, then the other variables.
//
// It returns ErrHelp, a *UsageError, a *VariableError, or where each value came from. After an error the bound variables
// hold whatever had been read by then.
func (s *Set) Parse(args []string, lookup func(name string) (string, bool)) (Sources, error) {
	p := parser{set: s, from: Sources{}, rest: args}
	for _, step := range []func() error{
		p.arguments,
		func() error { return p.environment(lookup) },
		p.defaults,
		p.required,
		func() error { return p.variables(lookup) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p.from, nil
}

// parser is the state of one Parse.
type parser struct {
	set  *Set
	from Sources
	rest []string // arguments not yet looked at
}

func (p *parser) arguments() error {
	for len(p.rest) > 0 {
		arg := p.rest[0]
		p.rest = p.rest[1:]
		if !utf8.ValidString(arg) {
			return p.usage("invalid UTF-8 was detected in one or more arguments")
		}
		if arg == "--" {
			// Everything after it is positional, and no command of ours takes positional arguments.
			if len(p.rest) > 0 {
				return p.usage("unexpected argument '" + p.rest[0] + "' found")
			}
			return nil
		}
		if err := p.argument(arg); err != nil {
			return err
		}
	}
	return nil
}

// argument judges one argument that is not the separator, and takes its value from those that follow.
func (p *parser) argument(arg string) error {
	long, isLong := strings.CutPrefix(arg, "--")
	if !isLong {
		if strings.HasPrefix(arg, "-h") {
			return ErrHelp // what may be glued to it is of no interest any more
		}
		return p.unexpected(arg)
	}
	name, text, hasText := strings.Cut(long, "=")
	if name == "help" {
		if hasText {
			return p.unasked(name, text)
		}
		return ErrHelp
	}
	flag := p.set.find(name)
	if flag == nil {
		return p.unexpected(arg)
	}
	if _, given := p.from[name]; given {
		return p.usage("the argument '" + flag.signature() + "' cannot be used multiple times")
	}
	if flag.Value.isSwitch {
		if hasText {
			return p.unasked(name, text)
		}
		text = "true"
	} else if !hasText {
		var err error
		if text, err = p.following(flag); err != nil {
			return err
		}
	}
	p.from[name] = FromArgument
	return p.store(flag, text, "")
}

// following takes the next argument as a flag's value. One that begins with a dash is not a value; a lone dash is.
func (p *parser) following(flag *Flag) (string, error) {
	if len(p.rest) == 0 {
		return "", p.missing(flag, "")
	}
	next := p.rest[0]
	if !strings.HasPrefix(next, "-") || next == "-" {
		p.rest = p.rest[1:]
		if !utf8.ValidString(next) {
			return "", p.usage("invalid UTF-8 was detected in one or more arguments")
		}
		return next, nil
	}
	if next == "--" || strings.HasPrefix(next, "-h") {
		return "", p.missing(flag, "")
	}
	long, isLong := strings.CutPrefix(next, "--")
	name, text, hasText := strings.Cut(long, "=")
	other := p.set.find(name)
	switch {
	case !isLong || name != "help" && other == nil:
		return "", p.unexpected(next)
	case hasText && (other == nil || other.Value.isSwitch):
		return "", p.unasked(name, text)
	default:
		return "", p.missing(flag, "")
	}
}

func (p *parser) environment(lookup func(string) (string, bool)) error {
	for flag := range p.set.flags() {
		if _, given := p.from[flag.Name]; given || flag.Env == "" {
			continue
		}
		text, set := lookup(flag.Env)
		if !set {
			continue
		}
		if !utf8.ValidString(text) {
			return p.usage("invalid UTF-8 was detected in " + flag.Env)
		}
		p.from[flag.Name] = FromEnvironment
		if err := p.store(flag, text, flag.Env); err != nil {
			return err
		}
	}
	return nil
}

// defaults goes through the same reading as arguments do, so that the help cannot promise what is not taken.
func (p *parser) defaults() error {
	for flag := range p.set.flags() {
		if _, given := p.from[flag.Name]; given || flag.Default == "" {
			continue
		}
		p.from[flag.Name] = FromDefault
		if err := p.store(flag, flag.Default, ""); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) required() error {
	var missing strings.Builder
	for flag := range p.set.flags() {
		if _, given := p.from[flag.Name]; flag.Required && !given {
			missing.WriteString("\n  " + flag.signature())
		}
	}
	if missing.String() != "" {
		return p.usage("the following required arguments were not provided:" + missing.String())
	}
	return nil
}

func (p *parser) variables(lookup func(string) (string, bool)) error {
	for v := range p.set.variables() {
		text, set := lookup(v.Name)
		from := FromEnvironment
		if !set || text == "" {
			text, from = v.Default, FromDefault
		}
		if text == "" {
			continue
		}
		p.from[v.Name] = from
		if err := v.Value.store(text); err != nil {
			return &VariableError{Name: v.Name, Value: text, Err: err}
		}
	}
	return nil
}

// store hands a text to a flag's value. env names the variable the text came from, if it did.
func (p *parser) store(flag *Flag, text, env string) error {
	err := flag.Value.store(text)
	if err == nil {
		return nil
	}
	if errors.Is(err, errNoValue) {
		return p.missing(flag, env)
	}
	message := "invalid value '" + text + "' for '" + flag.signature() + "'" + origin(env)
	if choice, ok := errors.AsType[*choiceError](err); ok {
		message += "\n  [possible values: " + join(choice.words) + "]"
		if choice.near != "" {
			message += "\n\n  tip: a similar value exists: '" + choice.near + "'"
		}
	} else {
		message += ": " + err.Error()
	}
	return p.usage(message)
}

func (p *parser) missing(flag *Flag, env string) error {
	message := "a value is required for '" + flag.signature() + "'" + origin(env) + " but none was supplied"
	if words := flag.Value.texts(); len(words) > 0 {
		message += "\n  [possible values: " + join(words) + "]"
	}
	return p.usage(message)
}

// unasked is a value for what takes none.
func (p *parser) unasked(name, text string) error {
	return p.usage("unexpected value '" + text + "' for '--" + name + "' found; no more were expected")
}

func (p *parser) unexpected(arg string) error {
	name, isLong := strings.CutPrefix(arg, "--")
	if !isLong {
		return p.usage("unexpected argument '" + short(arg) + "' found")
	}
	name, _, _ = strings.Cut(name, "=")
	message := "unexpected argument '--" + name + "' found"
	var names []string
	for flag := range p.set.flags() {
		names = append(names, flag.Name)
	}
	if near := similar(name, names); near != "" {
		message += "\n\n  tip: a similar argument exists: '--" + near + "'"
	}
	return p.usage(message)
}

// short names the first letter of a cluster of short flags; other arguments are named whole.
func short(arg string) string {
	if len(arg) > 1 && arg[0] == '-' {
		_, size := utf8.DecodeRuneInString(arg[1:])
		return arg[:1+size]
	}
	return arg
}

func (p *parser) usage(message string) error {
	return &UsageError{Message: message, Usage: p.set.usage(), Command: p.set.Command}
}

// origin is the part of a message that says which variable a text came from.
func origin(env string) string {
	if env == "" {
		return ""
	}
	return " (from " + env + ")"
}
