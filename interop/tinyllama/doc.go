// Package tinyllama writes a Llama small enough for two cores whose greedy text tells whether its KV cache is right.
//
// The folder is the built-in model's (tokenizer, chat template, configuration) plus real weights in model.safetensors,
// about 10 MB, drawn from a seeded source: the same seed gives the same bytes. The weights are scaled so that
//   - attention prefers some positions and ignores none, and what comes out of the cache outweighs the current token: an
//     engine that reads one wrong block gives visibly other text;
//   - only tokens of plain printable text have output rows. The others, end-of-sequence among them, have logit 0, which
//     is far below the best: greedy text is readable and never ends by itself.
//
// The package starts no goroutine and only writes into the folder that it is given.
package tinyllama
