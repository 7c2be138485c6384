// Package tinymodel is the model that Remora brings along: a chat model folder of 512 tokens without weights, and the Go
// side of its tokenizer and chat template. The simulator serves it, the front door speaks it, and a stock Dynamo frontend
// loads the folder like any other Hugging Face model; all three must agree to the token, which the golden files in testdata
// (made with the Hugging Face library) hold fast.
//
// The vocabulary: ids 0-255 are the bytes themselves, 256-503 merged tokens built from an ordered word list (byte-level
// BPE), 504-511 the specials. The specials are only in added_tokens and not in the base vocabulary, because some readers add
// the two sizes and then accept ids that the model does not have.
//
// Everything here is pure and safe for concurrent use, a Detokenizer excepted, which belongs to one stream. The package
// starts no goroutine and takes no context; Write alone touches the disk.
package tinymodel
