// Package eventplanetest plays the other side of the event plane for tests: it decodes what publishers send and keeps the view
// of a stock Dynamo 1.6.1 router, with the rules that were observed on one. It owns nothing else, starts no goroutine, and
// nothing in it can be cancelled.
package eventplanetest
