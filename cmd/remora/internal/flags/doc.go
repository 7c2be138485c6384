// Package flags owns the command-line engine: tables of flags and environment variables, how arguments are read against
// them, and the help text made from the same tables.
//
// It follows the rules of clap, the parser of the Rust sidecar, where Go's own flag package differs: long flags take two
// dashes, `--a=b` and `--a b` are the same, a separate value may not begin with a dash (write `--a=-5`), a switch takes no
// value, a flag given twice is an error, and an argument beats its environment variable, which beats the default. An
// environment variable that is set but empty counts as given for a flag; whether an empty text is a value is for that flag
// to say. The variable of a flag that was given as an argument is not even looked at.
//
// The package is pure: no I/O, no goroutine, no global state. A table binds to variables of its owner and is read by one
// goroutine. Cancellation does not concern it.
package flags
