// Package modelcard owns the model deployment card: the JSON document from which a frontend learns a model's name, files,
// limits and role. It finds the model's folder, reads and checksums the files in it, and combines them with what the engine
// and the command line say.
//
// The frontend sums up parts of the card into a fingerprint, and lets a worker into a running set of workers only when the
// fingerprints agree. So for equal inputs a card of ours carries what the Rust sidecar's would carry: every rule here was
// measured on that program, version 1.6.1.
//
// The package starts no goroutine and holds no state. Reading and checksumming take as long as the files are large; there is
// no cancel, start-up is over before it matters.
package modelcard
