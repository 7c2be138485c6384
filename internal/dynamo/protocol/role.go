package protocol

// Role is what a worker does in a deployment. It comes from the command line alone; the engine does not report it.
type Role uint8

// The roles of a worker.
const (
	Aggregated Role = iota
	Prefill
	Decode
	Encode
)

// String returns the word of the model card's worker_type.
func (r Role) String() string {
	return [...]string{"aggregated", "prefill", "decode", "encode"}[r]
}
