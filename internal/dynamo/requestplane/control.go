package requestplane

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"remora/internal/dynamo/protocol"
)

// maxControl bounds the control header.
const maxControl = 128 << 10

// Headers are the parts of a frame's header object that somebody reads; the zero value of each means that it was not given.
type Headers struct {
	RequestID      string // request-id
	TraceParent    string
	TraceState     string
	FrontendSendNS int64 // x-frontend-send-ts-ns, the frontend's clock; 0 also where it was no integer
}

// Control is the control header of a request.
type Control struct {
	ID           string // request id, unique among the running requests of a frontend
	RequestType  string // "single_in" or "many_in"
	ResponseType string // "many_out" or "single_out"
	Codec        protocol.Codec
	Connection   ConnectionInfo
	Metadata     map[string]string
}

// ConnectionInfo says where the response is awaited.
type ConnectionInfo struct {
	Transport  string // "tcp_server"
	Address    string // literal ip:port
	Subject    string // names the pending stream
	Context    string // equals the request id
	StreamType string // "response"
}

const (
	transportTCP   = "tcp_server"
	streamResponse = "response"
)

// parseHeaders reads the header object of a frame. Nothing of it decides how a request is served, so what is not understood,
// the whole object or a member, is as good as not given: a later frontend may write more than texts.
func parseHeaders(b []byte) (Headers, error) {
	v, err := protocol.ParseValue(protocol.JSON, b)
	if err != nil {
		return Headers{}, err
	}
	if v.Kind != protocol.KindMap {
		return Headers{}, errors.New("not an object")
	}
	var h Headers
	for _, m := range v.Map {
		if m.Value.Kind == protocol.KindString {
			h.Set(m.Key, m.Value.Str)
		}
	}
	return h, nil
}

// Set takes one header as it stands on the wire, lower-case; one that nobody reads is left out.
func (h *Headers) Set(name, value string) {
	switch name {
	case "request-id":
		h.RequestID = value
	case "traceparent":
		h.TraceParent = value
	case "tracestate":
		h.TraceState = value
	case "x-frontend-send-ts-ns":
		ns, err := strconv.ParseInt(value, 10, 64)
		if err == nil {
			h.FrontendSendNS = ns
		}
	}
}

// encodeHeaders is the frontend's side of parseHeaders.
func encodeHeaders(path string, h *Headers) []byte {
	members := []protocol.Member{
		{Key: "request-id", Value: protocol.String(h.RequestID)},
		{Key: "x-endpoint-path", Value: protocol.String(path)},
	}
	if h.FrontendSendNS != 0 {
		send := protocol.String(strconv.FormatInt(h.FrontendSendNS, 10))
		members = append(members, protocol.Member{Key: "x-frontend-send-ts-ns", Value: send})
	}
	if h.TraceParent != "" {
		members = append(members, protocol.Member{Key: "traceparent", Value: protocol.String(h.TraceParent)})
	}
	if h.TraceState != "" {
		members = append(members, protocol.Member{Key: "tracestate", Value: protocol.String(h.TraceState)})
	}
	return protocol.Map(members...).AppendJSON(nil)
}

// parseControl reads a control header. refusal is set where nobody can be dialled, so that only the acknowledgement can tell;
// malformed, where the response connection can. Every word of the header is untrusted.
func parseControl(b []byte) (c Control, malformed, refusal error) {
	if len(b) > maxControl {
		return c, nil, fmt.Errorf("control header of %d bytes", len(b))
	}
	v, err := protocol.ParseValue(protocol.JSON, b)
	if err != nil {
		return c, nil, fmt.Errorf("control header: %w", err)
	}
	if v.Kind != protocol.KindMap {
		return c, nil, errors.New("control header is no object")
	}
	connection, ok := v.Get("connection_info")
	if !ok {
		return c, nil, errors.New("control header without connection_info")
	}
	if c.Connection, err = parseConnection(connection); err != nil {
		return c, nil, fmt.Errorf("connection_info: %w", err)
	}
	return c, c.fill(v), nil
}

// fill reads what does not keep the response from being delivered, and returns the first thing that is wrong with it.
func (c *Control) fill(v protocol.Value) error {
	var err error
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	c.Codec = protocol.JSON
	for _, field := range []struct {
		key string
		dst *string
	}{
		{"id", &c.ID}, {"request_type", &c.RequestType}, {"response_type", &c.ResponseType},
	} {
		keep(optionalText(v, field.key, field.dst))
	}
	var codec string
	keep(optionalText(v, "payload_codec", &codec))
	if codec != "" {
		known, ok := protocol.ParseCodec(codec)
		if c.Codec = known; !ok {
			keep(fmt.Errorf("unknown payload_codec %q", codec))
		}
	}
	switch {
	case c.ID == "":
		keep(errors.New("no id"))
	case c.Connection.Context != c.ID:
		keep(errors.New("id differs from the context of connection_info"))
	}
	if c.RequestType != "" && c.RequestType != "single_in" && c.RequestType != "many_in" {
		keep(fmt.Errorf("unknown request_type %q", c.RequestType))
	}
	if c.ResponseType != "" && c.ResponseType != "many_out" && c.ResponseType != "single_out" {
		keep(fmt.Errorf("unknown response_type %q", c.ResponseType))
	}
	if s := c.Connection.StreamType; s != "" && s != streamResponse {
		keep(fmt.Errorf("unknown stream_type %q", s))
	}
	keep(c.fillMetadata(v))
	return err
}

func (c *Control) fillMetadata(v protocol.Value) error {
	metadata, _ := v.Get("metadata")
	if metadata.IsNull() {
		return nil
	}
	if metadata.Kind != protocol.KindMap {
		return errors.New("metadata is no object")
	}
	c.Metadata = make(map[string]string, len(metadata.Map))
	for _, m := range metadata.Map {
		if m.Value.Kind != protocol.KindString {
			return fmt.Errorf("metadata %q is not a string", m.Key)
		}
		c.Metadata[m.Key] = m.Value.Str
	}
	return nil
}

func parseConnection(v protocol.Value) (info ConnectionInfo, err error) {
	if err = optionalText(v, "transport", &info.Transport); err != nil {
		return info, err
	}
	if info.Transport != transportTCP { // the address of another transport is nothing that we could dial
		return info, fmt.Errorf("unknown transport %q", info.Transport)
	}
	var text string
	if err = optionalText(v, "info", &text); err != nil {
		return info, err
	}
	inner, err := protocol.ParseValue(protocol.JSON, []byte(text))
	if err != nil {
		return info, fmt.Errorf("info: %w", err)
	}
	for _, field := range []struct {
		key string
		dst *string
	}{
		{"address", &info.Address}, {"subject", &info.Subject}, {"context", &info.Context}, {"stream_type", &info.StreamType},
	} {
		if err = optionalText(inner, field.key, field.dst); err != nil {
			return info, err
		}
	}
	if info.Subject == "" {
		return info, errors.New("no subject")
	}
	_, err = parseAddress(info.Address)
	return info, err
}

// parseAddress takes literal addresses only: a worker resolves no names that a peer chose.
func parseAddress(address string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil || addr.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%w: %q", ErrBadAddress, address)
	}
	return addr, nil
}

// optionalText leaves dst alone where key is absent or null.
func optionalText(v protocol.Value, key string, dst *string) error {
	field, _ := v.Get(key)
	if field.IsNull() {
		return nil
	}
	if field.Kind != protocol.KindString {
		return fmt.Errorf("%s is not a string", key)
	}
	*dst = field.Str
	return nil
}

// encodeControl is the frontend's side of parseControl.
func encodeControl(c *Control) []byte {
	text := func(key, value string) protocol.Member {
		return protocol.Member{Key: key, Value: protocol.String(value)}
	}
	info := protocol.Map(text("address", c.Connection.Address), text("subject", c.Connection.Subject),
		text("context", c.Connection.Context), text("stream_type", c.Connection.StreamType))
	members := []protocol.Member{
		text("id", c.ID), text("request_type", c.RequestType), text("response_type", c.ResponseType),
		text("payload_codec", c.Codec.String()),
		{Key: "connection_info", Value: protocol.Map(
			text("transport", c.Connection.Transport), text("info", string(info.AppendJSON(nil))))},
	}
	if len(c.Metadata) > 0 {
		var metadata []protocol.Member
		for _, k := range slices.Sorted(maps.Keys(c.Metadata)) {
			metadata = append(metadata, text(k, c.Metadata[k]))
		}
		members = append(members, protocol.Member{Key: "metadata", Value: protocol.Map(metadata...)})
	}
	return protocol.Map(members...).AppendJSON(nil)
}

// encodeHandshake appends the header that names the pending stream to which a response connection belongs.
func encodeHandshake(info *ConnectionInfo) []byte {
	return protocol.Map(
		protocol.Member{Key: "subject", Value: protocol.String(info.Subject)},
		protocol.Member{Key: "stream_type", Value: protocol.String(streamResponse)},
	).AppendJSON(nil)
}

func parseHandshake(b []byte) (subject string, err error) {
	v, err := protocol.ParseValue(protocol.JSON, b)
	if err != nil {
		return "", err
	}
	var stream string
	if err := optionalText(v, "stream_type", &stream); err != nil {
		return "", err
	}
	if stream != streamResponse {
		return "", fmt.Errorf("unknown stream_type %q", stream)
	}
	if err := optionalText(v, "subject", &subject); err != nil {
		return "", err
	}
	return subject, nil
}
