package discovery

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"
)

// Address names what a record serves: an endpoint of a component in a namespace.
type Address struct {
	Namespace string
	Component string
	Endpoint  string
}

// Validate checks the three names. Dynamo itself does not check the endpoint's, but it enters keys, the path of the TCP
// plane and NATS subjects unescaped, so we hold it to the same alphabet.
func (a Address) Validate() error {
	if err := ValidateName("namespace", a.Namespace); err != nil {
		return err
	}
	if err := ValidateName("component", a.Component); err != nil {
		return err
	}
	return ValidateName("endpoint", a.Endpoint)
}

const nameAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789-_"

// ValidateName checks one name; what says in the error which one it is.
func ValidateName(what, name string) error {
	if name == "" {
		return fmt.Errorf("%w: %s is empty", ErrName, what)
	}
	for _, r := range name {
		if !strings.ContainsRune(nameAlphabet, r) {
			return fmt.Errorf("%w: %s %q has %q; only a-z, 0-9, '-' and '_' are allowed", ErrName, what, name, r)
		}
	}
	return nil
}

// Key is the key of the address's records in Instances and ModelCards. id is printed in hexadecimal, unpadded.
func (a Address) Key(id uint64) string {
	return fmt.Sprintf("%s/%s/%s/%x", a.Namespace, a.Component, a.Endpoint, id)
}

// AdapterKey is the key of a LoRA adapter's card in ModelCards; slug is the adapter's slug.
func (a Address) AdapterKey(id uint64, slug string) string {
	return a.Key(id) + "/" + slug
}

// Path is what the frames for this endpoint name on a connection that several endpoints may share.
func (a Address) Path(id uint64) string {
	return fmt.Sprintf("%x/%s/%s/%s", id, a.Namespace, a.Component, a.Endpoint)
}

// TCP is the address of this endpoint on the TCP request plane, as instance records carry it: where the worker listens
// (host:port), and the path.
func (a Address) TCP(hostPort string, id uint64) string { return hostPort + "/" + a.Path(id) }

// Service is the name of the NATS service that the address's component is, and the first part of its subjects: the slug of
// namespace_component, which for valid names only takes leading underscores away.
func (a Address) Service() string {
	return strings.TrimLeft(a.Namespace+"_"+a.Component, "_")
}

// Subject is what this endpoint listens on in the NATS request plane, as instance records carry it.
func (a Address) Subject(id uint64) string {
	return fmt.Sprintf("%s.%s-%x", a.Service(), a.Endpoint, id)
}

// ChannelKey is the key of a publisher's records in EventChannels and EventSources. Unlike in the other buckets the names in
// it are percent-encoded.
func ChannelKey(scope Scope, topic string, publisher uint64) string {
	var key strings.Builder
	key.WriteString("namespace/" + encodeSegment(scope.Namespace))
	if scope.Component != "" {
		key.WriteString("/component/" + encodeSegment(scope.Component))
		if scope.Endpoint != "" {
			key.WriteString("/endpoint/" + encodeSegment(scope.Endpoint))
		}
	}
	fmt.Fprintf(&key, "/topic/%s/%x", encodeSegment(topic), publisher)
	return key.String()
}

// maxID keeps ids exact in readers that hold numbers as doubles.
const maxID = 1<<53 - 1

// NewID draws an instance or publisher id: random, not zero, below 2^53. One id serves a process for its whole life, and a
// new process takes a new one, since frontends remember ids that have gone.
func NewID() uint64 {
	for {
		var raw [8]byte
		_, _ = rand.Read(raw[:]) // never fails: since Go 1.24 it ends the process where the kernel has no randomness
		if id := binary.LittleEndian.Uint64(raw[:]) & maxID; id != 0 {
			return id
		}
	}
}
