package flags

import "strings"

// Set is the table of one command.
type Set struct {
	Command string // what the user typed to get here: "remora sidecar"
	Summary string // what the command does; the first paragraph of its help
	Groups  []Group
}

// Group is a section of the help text.
type Group struct {
	Title     string
	Note      string // a paragraph under the title; may be empty
	Flags     []Flag
	Variables []Variable
}

// Flag is one long flag, with or without an environment variable behind it.
type Flag struct {
	Name     string // without dashes
	Env      string // its environment variable; empty if it has none
	Default  string // in the words of the command line; empty: the bound variable stays as its owner left it
	Required bool
	Value    Value
	Help     string
}

// Variable is a setting that has no flag. One that is set but empty counts as not set.
type Variable struct {
	Name    string
	Default string // as for Flag
	Value   Value
	Help    string
}

// Sources says where the value of each flag and variable came from, by its name (flags without dashes).
type Sources map[string]Source

// Source is where a value came from.
type Source uint8

// The sources, in rising rank. A name that is missing in Sources was not given at all.
const (
	FromDefault Source = iota + 1
	FromEnvironment
	FromArgument
)

// placeholder is the name of a flag's value in usage lines: GRPC_ENDPOINT for grpc-endpoint.
func (f *Flag) placeholder() string {
	return strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// signature is how messages name a flag: with its value's name, unless it is a switch.
func (f *Flag) signature() string {
	if f.Value.isSwitch {
		return "--" + f.Name
	}
	return "--" + f.Name + " <" + f.placeholder() + ">"
}

// usage is the line that ends every complaint and begins the help.
func (s *Set) usage() string {
	var line strings.Builder
	line.WriteString("Usage: " + s.Command + " [OPTIONS]")
	for f := range s.flags() {
		if f.Required {
			line.WriteString(" " + f.signature())
		}
	}
	return line.String()
}

// flags walks the flags of all groups in the order of the table.
func (s *Set) flags() func(yield func(*Flag) bool) {
	return func(yield func(*Flag) bool) {
		for g := range s.Groups {
			for f := range s.Groups[g].Flags {
				if !yield(&s.Groups[g].Flags[f]) {
					return
				}
			}
		}
	}
}

// variables walks the variables of all groups in the order of the table.
func (s *Set) variables() func(yield func(*Variable) bool) {
	return func(yield func(*Variable) bool) {
		for g := range s.Groups {
			for v := range s.Groups[g].Variables {
				if !yield(&s.Groups[g].Variables[v]) {
					return
				}
			}
		}
	}
}

// find returns the flag of that name, or nil.
func (s *Set) find(name string) *Flag {
	for f := range s.flags() {
		if f.Name == name {
			return f
		}
	}
	return nil
}
