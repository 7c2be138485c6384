package routing

import (
	"net"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/eventplane"
	"remora/internal/zmq"
)

// feed tells routers what one rank's cache holds, as the engine's events say: a socket, a publisher, an endpoint at which
// routers ask, and three records by which they find both. All fields are set once.
type feed struct {
	rank      uint32
	id        uint64 // of the publisher: a new one for each, because routers do not follow a second under the same id
	at        string // where the socket is reached
	socket    *zmq.Pub
	publisher *eventplane.Publisher
	records   []record // in the order in which they are published
}

// openFeed makes a feed. Nobody knows of it before its records are published.
func openFeed(cfg *Config, rank uint32, turns chan struct{}) (*feed, error) {
	listener, at, err := listen(cfg)
	if err != nil {
		return nil, err
	}
	f := &feed{rank: rank, id: discovery.NewID(), at: at, socket: zmq.NewPub(listener, zmq.PubConfig{})}
	worker := cfg.Instance.InstanceID
	f.publisher = eventplane.NewPublisher(eventplane.Config{WorkerID: worker, Rank: rank, PublisherID: f.id, Socket: f.socket})
	query := cfg.address()
	query.Endpoint = eventplane.QueryEndpoint(f.id)
	transport, err := cfg.Attach(query, worker, &queries{
		publisher: f.publisher, dialer: cfg.Dialer, turns: turns, log: cfg.Log.With("dp_rank", rank),
	})
	if err == nil {
		f.records, err = f.encode(cfg, query, transport)
	}
	if err != nil {
		f.socket.Close()
		return nil, err
	}
	return f, nil
}

// encode makes the records: the channel, where routers hear of changes; the endpoint at which they ask; and the source, which
// says whose cache it is and names that endpoint. A router asks as soon as it sees the source, so that comes last.
func (f *feed) encode(cfg *Config, query discovery.Address, transport discovery.Transport) ([]record, error) {
	a := cfg.address()
	channel, err := channelRecord(a, eventplane.TopicKVEvents, f.id, f.at)
	if err != nil {
		return nil, err
	}
	target := cfg.Instance
	target.Endpoint, target.Transport = query.Endpoint, transport
	instance, err := target.Encode()
	if err != nil {
		return nil, err
	}
	metadata, err := discovery.KVSource{
		StateEndpoint: discovery.EndpointName{Namespace: a.Namespace, Component: a.Component, Name: a.Endpoint},
		Worker:        discovery.WorkerRank{WorkerID: target.InstanceID, DPRank: f.rank}, PublisherID: f.id, RecoveryTarget: target,
	}.Encode()
	if err != nil {
		return nil, err
	}
	source, err := discovery.EventSource{
		Scope: discovery.Scope(a), Topic: eventplane.TopicKVEvents, PublisherID: f.id, Metadata: metadata,
	}.Encode()
	if err != nil {
		return nil, err
	}
	return []record{
		channel,
		{discovery.Instances, query.Key(target.InstanceID), instance},
		{discovery.EventSources, channel.key, source},
	}, nil
}

// close ends the feed, when its records are gone.
func (f *feed) close() {
	f.publisher.Close()
	f.socket.Close()
}

// listen gives a listener and the tcp:// address of its socket.
func listen(cfg *Config) (net.Listener, string, error) {
	listener, at, err := cfg.Listen()
	return listener, "tcp://" + at, err
}

// channelRecord says where a publisher is heard.
func channelRecord(a discovery.Address, topic string, id uint64, at string) (record, error) {
	scope := discovery.Scope(a)
	value, err := discovery.EventChannel{
		Scope: scope, Topic: topic, PublisherID: id, Transport: discovery.EventTransport{ZMQ: at},
	}.Encode()
	return record{discovery.EventChannels, discovery.ChannelKey(scope, topic, id), value}, err
}
