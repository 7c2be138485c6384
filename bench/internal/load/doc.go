// Package load is a Dynamo frontend for benchmarks: it sends requests to one worker over the request plane, accepts the
// response streams that the worker dials, counts the tokens in them and takes the time of each. It looks only for the token
// ids in a frame, so that it costs little; what it checks of every answer is that it begins with a good prologue and ends with
// the sentinel after exactly the tokens that were asked for.
//
// Hold keeps a number of streams open and measures a window of their life; Loop sends short requests, a given number at a time,
// and measures until the last is answered. Both read, over the same span, the CPU time of the processes that they are told to watch.
//
// Goroutines. One epoll loop serves all response streams; each request connection has a sender and a reader of
// acknowledgements. Close ends them and waits for them. A kill is what a stock frontend sends: the word, then the end of the
// connection and a reset together.
package load
