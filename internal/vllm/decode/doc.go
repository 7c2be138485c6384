// Package decode reads GenerateResponse from the wire, faster than the generated code does and with the same result.
//
// A token message, which is all but the first and the last of a stream, is read by hand into structs that are used again.
// Every other message, and everything about which there could be a doubt (a field that the hand-written reader does not
// know, one that comes twice, bytes that are malformed), is left to the generated code, so that there is one opinion only
// about what a message means and which bytes are none.
//
// The package starts no goroutine and keeps nothing of the bytes that it is given.
package decode
