package protocol

// ErrorKind is Dynamo's error_type: a bare word, or a word under "Backend". The kind decides the client's HTTP status,
// whether the worker is taken out of routing for some seconds ("inhibited") and whether the frontend may migrate the request.
type ErrorKind struct {
	Backend bool
	Name    string
}

// The kinds that Remora writes. HTTP status, inhibition and migration as measured on a 1.6.1 frontend for data items.
var (
	ErrorInvalidArgument         = ErrorKind{false, "InvalidArgument"}   // 400, no, no
	ErrorBackendInvalidArgument  = ErrorKind{true, "InvalidArgument"}    // 400, no, no
	ErrorBackendUnknown          = ErrorKind{true, "Unknown"}            // 500, no, no
	ErrorBackendCancelled        = ErrorKind{true, "Cancelled"}          // 499, no, forbids
	ErrorBackendEngineShutdown   = ErrorKind{true, "EngineShutdown"}     // 503, yes, yes
	ErrorBackendStreamIncomplete = ErrorKind{true, "StreamIncomplete"}   // 503, yes, yes
	ErrorBackendCannotConnect    = ErrorKind{true, "CannotConnect"}      // 503, no, yes
	ErrorBackendDisconnected     = ErrorKind{true, "Disconnected"}       // 503, no, yes
	ErrorBackendTimeout          = ErrorKind{true, "ConnectionTimeout"}  // 504, no, yes
	ErrorWorkerOverloaded        = ErrorKind{false, "WorkerOverloaded"}  // 529, no, yes
	ErrorResourceExhausted       = ErrorKind{false, "ResourceExhausted"} // 529, no, forbids
)

// Error is a DynamoError. Message is for operators; Public, where not empty, is the only text that HTTP clients get to see.
type Error struct {
	Kind    ErrorKind
	Message string
	Public  string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Kind.Backend {
		return "Backend." + e.Kind.Name + ": " + e.Message
	}
	return e.Kind.Name + ": " + e.Message
}
