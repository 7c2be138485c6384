package flags

import "errors"

// ErrHelp means that the user asked for help; the caller prints Set.Help and ends with success.
var ErrHelp = errors.New("help requested")

// UsageError is an argument, or the environment variable behind a flag, that cannot be taken. The command ends with code 2.
type UsageError struct {
	Message string // what is wrong; may have several lines
	Usage   string // the usage line
	Command string // whose --help to point to
}

func (e *UsageError) Error() string { return e.Message }

// Report is the whole text for the terminal.
func (e *UsageError) Report() string {
	return "error: " + e.Message + "\n\n" + e.Usage + "\n\nFor more information, try '" + e.Command + " --help'.\n"
}

// VariableError is an environment variable without a flag that cannot be taken. The command ends with code 1, as the Rust
// sidecar does: its runtime reads these variables only after the command line was accepted.
type VariableError struct {
	Name  string
	Value string
	Err   error
}

func (e *VariableError) Error() string {
	return "invalid value '" + e.Value + "' for " + e.Name + ": " + e.Err.Error()
}

func (e *VariableError) Unwrap() error { return e.Err }

// errNoValue is what a Value answers to an empty text that is not among its words.
var errNoValue = errors.New("a value is required but none was supplied")

// choiceError is a text that is none of the words a value has.
type choiceError struct {
	words []string
	near  string // the word that looks like it; may be empty
}

func (e *choiceError) Error() string { return "the possible values are " + join(e.words) }
