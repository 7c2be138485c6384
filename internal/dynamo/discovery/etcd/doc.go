// Package etcd owns discovery through etcd, Dynamo's default: a discovery.Store whose records are keys of the form
// bucket/key, bound to one lease. The lease's id is the worker's instance id, as in Dynamo, but chosen by the worker: so a
// lease that was lost is taken out again under the same id, and the worker comes back under the keys, the id and the address
// that frontends and running requests know it by.
//
// Goroutines: Open starts one keeper, which keeps the lease alive, takes it out again when it is lost, and puts right what
// could not be changed while etcd was away; a watch is one more, and ends with its context or with the store. The etcd client
// has its own. Close ends all of them, waits for them, and gives up the lease, which removes every record at once. A process
// that dies without Close leaves its records to the end of the lease.
//
// Under cancel: Create, Delete and Watch end with their context, and after callTimeout at the latest. A Create or Delete that
// returned an error may have reached etcd all the same; the keeper removes such a record as soon as etcd answers again. Close
// takes at most callTimeout, whatever its context says.
package etcd
