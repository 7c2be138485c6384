// Package discovery owns how a worker makes itself known: the records that routers and frontends read (instance, model
// card, event channel, event source), their keys, and what a Store of them must do. Two stores exist here: File, which is
// byte-compatible with Dynamo's file backend, and Memory, for workers and readers inside one process; package etcd has a third.
//
// Goroutines: a File store runs one keeper from OpenFile on (it keeps our records alive and expires dead ones) and one
// goroutine a watch; a Memory store runs one goroutine a watch. A watch ends with its context or with its store. Close ends
// all of a store's goroutines, waits for them, and removes every record that the store created.
//
// Under cancel, of the two: Create, Delete and Watch give up waiting when their context ends. A Create that returned an error left no
// record behind; a Delete that returned an error may have left one, which Close tries to remove again.
package discovery
