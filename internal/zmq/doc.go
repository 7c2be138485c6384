// Package zmq owns the ZeroMQ connections of this program: the subscription to an engine's KV events and the request to its
// replay socket (SUB, DEALER), the events that a worker publishes (PUB), and the replay socket of the simulated engine
// (ROUTER). It speaks ZMTP 3.0 and 3.1 with the NULL mechanism over tcp:// and ipc://, which is what libzmq 4 speaks, and no
// more of ZeroMQ than these four sockets need.
//
// It is written here because the pure Go library (go-zeromq/zmq4 0.17.0) cannot be made safe from outside: nine bytes from a
// peer make it allocate any amount; one peer that is silent in its handshake keeps all others from connecting; one subscriber
// that does not read holds up the others, and the high-water mark is the socket's, not the subscriber's; Close leaves
// goroutines behind; and a reconnect, which is how a restarted engine shows itself, is not told to the application. The C
// library would cost the static binary.
//
// Bounds. A message has at most Limits.Frames frames and Limits.Bytes bytes; memory grows with the bytes that have arrived,
// never with a length that a peer has claimed. A handshake has ten seconds. A Pub holds at most PubConfig.QueueMessages and
// QueueBytes for each of at most PubConfig.Peers subscribers, with at most 1024 subscriptions each; what does not fit is
// dropped for that subscriber and counted. A Sub has no queue of its own: a handler that is slow holds back the connection,
// then the publisher, which drops when its own queue is full. A Router serves at most RouterConfig.Peers peers.
//
// Goroutines. Conn and Sub start none: Sub.Run works on its caller's. A Pub runs one that accepts and two a subscriber, a
// Router one that accepts and one a peer; Close ends them and waits for them. While a call waits for the network under a
// context, a short-lived one (of package context) may run, which ends with the call.
//
// Cancel. The context of a call ends the call; a Conn whose send or handshake was cut short is not usable any more and says so.
package zmq
