package discovery

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Address names what a record serves: an endpoint of a component in a namespace.
type Address struct {
	Namespace string
	Component string
	Endpoint  string
}

// Validate checks the three names.
func (a Address) Validate() error {
	if err := ValidateName("namespace", a.Namespace); err != nil {
		return err
	}
	if err := ValidateName("component", a.Component); err != nil {
		return err
	}
	return ValidateName("endpoint", a.Endpoint)
}

// ValidateName checks one name; what says in the error which one it is. Dynamo's own workers take nearly any text, capitals,
// dots and other scripts included. Refused is what is a mistake (an empty name, a blank), what cannot be told apart in a key
// or a URL (a slash), and a name that a metric's label could not carry: there only ASCII letters and digits are kept.
func ValidateName(what, name string) error {
	if name == "" {
		return fmt.Errorf("%w: the %s is empty", ErrName, what)
	}
	labelled := false
	for _, r := range name {
		if r == '/' || r == utf8.RuneError || unicode.IsSpace(r) || unicode.IsControl(r) {
			return fmt.Errorf("%w: the %s %q has %q; no blank, slash or control character is allowed", ErrName, what, name, r)
		}
		labelled = labelled || r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r))
	}
	if !labelled {
		return fmt.Errorf("%w: the %s %q has no letter from a to z and no digit", ErrName, what, name)
	}
	return nil
}

// Key is the key of the address's records in Instances and ModelCards. id is printed in hexadecimal, unpadded.
func (a Address) Key(id uint64) string {
	return fmt.Sprintf("%s/%s/%s/%x", a.Namespace, a.Component, a.Endpoint, id)
}

// Path is what the frames for this endpoint name on a connection that several endpoints may share. A percent sign in a name is
// escaped, as the Rust sidecar does it (measured); nothing else is.
func (a Address) Path(id uint64) string {
	escape := strings.NewReplacer("%", "%25").Replace
	return fmt.Sprintf("%x/%s/%s/%s", id, escape(a.Namespace), escape(a.Component), escape(a.Endpoint))
}

// TCP is the address of this endpoint on the TCP request plane, as instance records carry it: where the worker listens
// (host:port), and the path.
func (a Address) TCP(hostPort string, id uint64) string { return hostPort + "/" + a.Path(id) }

// group is the first part of the NATS subjects of a component's endpoints.
func (a Address) group() string { return a.Namespace + "_" + a.Component }

// Service is the name of the NATS service that the address's component is: the slug of its group.
func (a Address) Service() string {
	return serviceName(strings.TrimLeft(strings.ToLower(a.group()), "_"))
}

// EndpointService is the name of this endpoint within the service. Nothing is sent by it; it is what tools list.
func (a Address) EndpointService(id uint64) string {
	return serviceName(fmt.Sprintf("%s-%s-%x", a.group(), a.Endpoint, id))
}

// serviceName fits a name into the narrow alphabet of NATS services.
func serviceName(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, name)
}

// Subject is what this endpoint listens on in the NATS request plane, as instance records carry it. The names stand in it as
// they are (measured).
func (a Address) Subject(id uint64) string {
	return fmt.Sprintf("%s.%s-%x", a.group(), a.Endpoint, id)
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
