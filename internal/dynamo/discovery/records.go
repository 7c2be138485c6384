package discovery

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Instance says that an endpoint can be called. On the wire: {"type":"Endpoint", ...}, the keys in this order.
type Instance struct {
	Component  string    `json:"component"`
	Endpoint   string    `json:"endpoint"`
	Namespace  string    `json:"namespace"`
	InstanceID uint64    `json:"instance_id"`
	Transport  Transport `json:"transport"`
	// DeviceType is DeviceCPU or DeviceCUDA; a reader drops the whole record over another word. Empty: not written.
	DeviceType string `json:"device_type,omitempty"`
	// RequestPlaneCodec is CodecJSON or CodecMsgPack, with the same strictness. Empty: not written, which means JSON.
	RequestPlaneCodec string `json:"request_plane_codec,omitempty"`
}

// The words that readers accept in an Instance.
const (
	DeviceCPU    = "cpu"
	DeviceCUDA   = "cuda"
	CodecJSON    = "json"
	CodecMsgPack = "msgpack"
)

// Transport says how an instance is called; exactly one field is set.
type Transport struct {
	TCP  string `json:"tcp,omitempty"`      // host:port/path, see Address.TCP
	NATS string `json:"nats_tcp,omitempty"` // subject
}

// Model says which model an endpoint serves. On the wire: {"type":"Model", ...}.
type Model struct {
	Namespace  string `json:"namespace"`
	Component  string `json:"component"`
	Endpoint   string `json:"endpoint"`
	InstanceID uint64 `json:"instance_id"`
	// Card is the model deployment card, a JSON object.
	Card json.RawMessage `json:"card_json"`
	// Suffix is the slug of a LoRA adapter, which the key then ends with too.
	Suffix string `json:"model_suffix,omitempty"`
}

// EventChannel says where a publisher sends its events. On the wire: {"type":"EventChannel", ...}.
type EventChannel struct {
	Scope Scope  `json:"scope"`
	Topic string `json:"topic"`
	// PublisherID is a random id of the publisher, not the worker's instance id, despite its name on the wire.
	PublisherID uint64         `json:"instance_id"`
	Transport   EventTransport `json:"transport"`
}

// EventSource identifies a stream of events and how to recover it. On the wire: {"type":"EventSource", ...}.
type EventSource struct {
	Scope       Scope           `json:"scope"`
	Topic       string          `json:"topic"`
	PublisherID uint64          `json:"publisher_id"`
	Metadata    json.RawMessage `json:"metadata"` // KVSource for the topic kv-events
}

// KVSource is the metadata of a KV event stream: whose cache it mirrors, and which instance answers recovery queries.
type KVSource struct {
	StateEndpoint  EndpointName `json:"kv_state_endpoint"`
	Worker         WorkerRank   `json:"worker"`
	PublisherID    uint64       `json:"publisher_id"`
	RecoveryTarget Instance     `json:"recovery_target"`
}

// EndpointName is an Address in the form that event records use.
type EndpointName struct {
	Namespace string `json:"namespace"`
	Component string `json:"component"`
	Name      string `json:"name"`
}

// WorkerRank is one data-parallel rank of a worker.
type WorkerRank struct {
	WorkerID uint64 `json:"worker_id"`
	DPRank   uint32 `json:"dp_rank"`
}

// The discriminators of the records.
const (
	typeInstance     = "Endpoint"
	typeModel        = "Model"
	typeEventChannel = "EventChannel"
	typeEventSource  = "EventSource"
)

// tag goes before a record's own keys.
type tag struct {
	Type string `json:"type"`
}

// Encode gives the record's JSON, or an error where a reader could not read it.
func (r Instance) Encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	return encode(struct {
		tag
		Instance
	}{tag{typeInstance}, r})
}

// Encode gives the record's JSON, or an error where a reader could not read it.
func (r Model) Encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	return encode(struct {
		tag
		Model
	}{tag{typeModel}, r})
}

// Encode gives the record's JSON, or an error where a reader could not read it.
func (r EventChannel) Encode() ([]byte, error) {
	return encode(struct {
		tag
		EventChannel
	}{tag{typeEventChannel}, r})
}

// Encode gives the record's JSON, or an error where a reader could not read it.
func (r EventSource) Encode() ([]byte, error) {
	return encode(struct {
		tag
		EventSource
	}{tag{typeEventSource}, r})
}

// Encode gives the metadata's JSON.
func (s KVSource) Encode() (json.RawMessage, error) {
	if err := s.RecoveryTarget.check(); err != nil {
		return nil, err
	}
	return encode(s)
}

// DecodeInstance reads a value of the Instances bucket. Unknown keys are ignored.
func DecodeInstance(value []byte) (Instance, error) {
	var r Instance
	if err := decode(value, typeInstance, &r); err != nil {
		return Instance{}, err
	}
	return r, r.check()
}

// DecodeModel reads a value of the ModelCards bucket. Unknown keys are ignored; the card itself is not looked into.
func DecodeModel(value []byte) (Model, error) {
	var r Model
	if err := decode(value, typeModel, &r); err != nil {
		return Model{}, err
	}
	return r, r.check()
}

// DecodeEventChannel reads a value of the EventChannels bucket. Unknown keys are ignored.
func DecodeEventChannel(value []byte) (EventChannel, error) {
	var r EventChannel
	err := decode(value, typeEventChannel, &r)
	return r, err
}

// DecodeEventSource reads a value of the EventSources bucket. Unknown keys are ignored.
func DecodeEventSource(value []byte) (EventSource, error) {
	var r EventSource
	err := decode(value, typeEventSource, &r)
	return r, err
}

// DecodeKVSource reads the metadata of a KV event source.
func DecodeKVSource(metadata []byte) (KVSource, error) {
	var s KVSource
	if err := json.Unmarshal(metadata, &s); err != nil {
		return KVSource{}, fmt.Errorf("%w: KV source: %w", ErrRecord, err)
	}
	return s, s.RecoveryTarget.check()
}

func (r Instance) check() error {
	if r.Namespace == "" || r.Component == "" || r.Endpoint == "" {
		return fmt.Errorf("%w: instance without namespace, component or endpoint", ErrRecord)
	}
	if (r.Transport.TCP == "") == (r.Transport.NATS == "") {
		return fmt.Errorf("%w: instance needs exactly one of the transports tcp and nats_tcp", ErrRecord)
	}
	switch r.DeviceType {
	case "", DeviceCPU, DeviceCUDA:
	default:
		return fmt.Errorf("%w: unknown device_type %q", ErrRecord, r.DeviceType)
	}
	switch r.RequestPlaneCodec {
	case "", CodecJSON, CodecMsgPack:
	default:
		return fmt.Errorf("%w: unknown request_plane_codec %q", ErrRecord, r.RequestPlaneCodec)
	}
	return nil
}

func (r Model) check() error {
	if r.Namespace == "" || r.Component == "" || r.Endpoint == "" {
		return fmt.Errorf("%w: model without namespace, component or endpoint", ErrRecord)
	}
	if !IsObject(r.Card) {
		return fmt.Errorf("%w: card_json is not a JSON object", ErrRecord)
	}
	return nil
}

// encode is json.Marshal without the escapes that protect HTML: nobody puts records into a page, and "<" stays legible.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func decode(value []byte, want string, into any) error {
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(value, &head); err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if head.Type != want {
		return fmt.Errorf("%w: type %q, want %q", ErrRecord, head.Type, want)
	}
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrRecord, want, err)
	}
	return nil
}
