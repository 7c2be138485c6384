package discovery

import (
	"encoding/json"
	"fmt"
)

// Scope says what an event channel belongs to: a namespace, a component in it, or an endpoint of that. The fields that are
// set decide which.
type Scope struct {
	Namespace string
	Component string // empty: the whole namespace
	Endpoint  string // empty: the whole component
}

// EventTransport says how a channel is read; exactly one field is set.
type EventTransport struct {
	ZMQ               string // endpoint, tcp://host:port
	NATSSubjectPrefix string
	Broker            *ZMQBroker
}

// ZMQBroker are the endpoints of a forwarder between publishers and subscribers.
type ZMQBroker struct {
	XSub []string `json:"xsub_endpoints"`
	XPub []string `json:"xpub_endpoints"`
}

type wireScope struct {
	Kind      string        `json:"kind"`
	Endpoint  *EndpointName `json:"endpoint,omitempty"`
	Name      string        `json:"name,omitempty"`
	Namespace string        `json:"namespace,omitempty"`
	Component string        `json:"component,omitempty"`
}

// MarshalJSON writes the tagged form of the wire.
func (s Scope) MarshalJSON() ([]byte, error) {
	switch {
	case s.Namespace == "", s.Component == "" && s.Endpoint != "":
		return nil, fmt.Errorf("%w: scope %+v has a gap", ErrRecord, s)
	case s.Component == "":
		return encode(wireScope{Kind: "namespace", Name: s.Namespace})
	case s.Endpoint == "":
		return encode(wireScope{Kind: "component", Namespace: s.Namespace, Component: s.Component})
	default:
		return encode(wireScope{Kind: "endpoint", Endpoint: &EndpointName{s.Namespace, s.Component, s.Endpoint}})
	}
}

// UnmarshalJSON reads the tagged form of the wire.
func (s *Scope) UnmarshalJSON(data []byte) error {
	var w wireScope
	if err := json.Unmarshal(data, &w); err != nil {
		return fmt.Errorf("%w: scope: %w", ErrRecord, err)
	}
	var read Scope
	switch w.Kind {
	case "namespace":
		read = Scope{Namespace: w.Name}
	case "component":
		read = Scope{Namespace: w.Namespace, Component: w.Component}
	case "endpoint":
		if w.Endpoint == nil {
			return fmt.Errorf("%w: endpoint scope without endpoint", ErrRecord)
		}
		read = Scope{Namespace: w.Endpoint.Namespace, Component: w.Endpoint.Component, Endpoint: w.Endpoint.Name}
	default:
		return fmt.Errorf("%w: unknown scope kind %q", ErrRecord, w.Kind)
	}
	if read.Namespace == "" || w.Kind != "namespace" && read.Component == "" || w.Kind == "endpoint" && read.Endpoint == "" {
		return fmt.Errorf("%w: %s scope lacks a name", ErrRecord, w.Kind)
	}
	*s = read
	return nil
}

type wireEventTransport struct {
	Kind   string          `json:"kind"`
	Config json.RawMessage `json:"config"`
}

type zmqConfig struct {
	Endpoint string `json:"endpoint"`
}

type natsConfig struct {
	SubjectPrefix string `json:"subject_prefix"`
}

// MarshalJSON writes the tagged form of the wire.
func (t EventTransport) MarshalJSON() ([]byte, error) {
	var (
		kind   string
		config any
		set    int
	)
	if t.ZMQ != "" {
		kind, config, set = "Zmq", zmqConfig{t.ZMQ}, set+1
	}
	if t.NATSSubjectPrefix != "" {
		kind, config, set = "Nats", natsConfig{t.NATSSubjectPrefix}, set+1
	}
	if t.Broker != nil {
		kind, config, set = "ZmqBroker", t.Broker, set+1
	}
	if set != 1 {
		return nil, fmt.Errorf("%w: event transport needs exactly one way, has %d", ErrRecord, set)
	}
	raw, err := encode(config)
	if err != nil {
		return nil, err
	}
	return encode(wireEventTransport{Kind: kind, Config: raw})
}

// UnmarshalJSON reads the tagged form of the wire.
func (t *EventTransport) UnmarshalJSON(data []byte) error {
	var w wireEventTransport
	if err := json.Unmarshal(data, &w); err != nil {
		return fmt.Errorf("%w: event transport: %w", ErrRecord, err)
	}
	var (
		read EventTransport
		zmq  zmqConfig
		nats natsConfig
		err  error
	)
	switch w.Kind {
	case "Zmq":
		err = json.Unmarshal(w.Config, &zmq)
		read.ZMQ = zmq.Endpoint
	case "Nats":
		err = json.Unmarshal(w.Config, &nats)
		read.NATSSubjectPrefix = nats.SubjectPrefix
	case "ZmqBroker":
		err = json.Unmarshal(w.Config, &read.Broker)
	default:
		return fmt.Errorf("%w: unknown event transport %q", ErrRecord, w.Kind)
	}
	if err != nil {
		return fmt.Errorf("%w: event transport %s: %w", ErrRecord, w.Kind, err)
	}
	if read == (EventTransport{}) {
		return fmt.Errorf("%w: event transport %s is empty", ErrRecord, w.Kind)
	}
	*t = read
	return nil
}
