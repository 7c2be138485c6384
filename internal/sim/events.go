package sim

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"remora/internal/sim/core"
	"remora/internal/sim/kvpub"
	pb "remora/proto/vllm"
)

// Listen opens the sockets for KV events; Run does so itself, but their ports are known earlier this way. Run closes them.
// Without KV events nothing happens.
func (s *Server) Listen() error {
	if !s.cfg.KVEvents.Publishes() || s.ranks[0].events != nil {
		return nil
	}
	for _, r := range s.ranks {
		publisher, err := kvpub.Open(kvpub.Options{
			Config: s.cfg.KVEvents, Rank: r.number, BlockSize: s.cfg.BlockSize, Host: s.cfg.EventsHost, Network: s.cfg.EventsNetwork,
		})
		if err != nil {
			s.closeEvents()
			return err //nolint:wrapcheck // it names its stage
		}
		publisher.SetLegacyReplay(s.faults.on(ReplayWithoutTopic))
		r.events = publisher
		r.loop.publishEvents = func(events []core.Event) {
			form := kvpub.Form{Arrays: s.faults.on(EventsArrays), Bytes: s.faults.on(EventsBytes)}
			publisher.Publish(events, form, s.faults.spend(EventsLost))
		}
	}
	return nil
}

func (s *Server) closeEvents() {
	for _, r := range s.ranks {
		if r.events != nil {
			r.events.Close()
		}
	}
}

// EventSource says where the KV events of a local rank are found from this machine.
type EventSource struct {
	Rank             uint32 // absolute
	Endpoint, Replay string // Replay is empty without a replay endpoint
}

// EventSources lists them after Listen, lowest rank first; none without KV events.
func (s *Server) EventSources() []EventSource {
	var all []EventSource
	for _, r := range s.ranks {
		if r.events != nil {
			endpoint, replay := r.events.Bound()
			all = append(all, EventSource{Rank: r.number, Endpoint: endpoint, Replay: replay})
		}
	}
	return all
}

// GetKvEventSources lists one source for each local rank; nothing when no events are published. It answers for a dead engine too.
func (c *control) GetKvEventSources(context.Context, *pb.GetKvEventSourcesRequest) (*pb.GetKvEventSourcesResponse, error) {
	out := &pb.GetKvEventSourcesResponse{}
	events := c.s.cfg.KVEvents
	for _, r := range c.s.ranks {
		if r.events == nil {
			continue
		}
		endpoint, replay := r.events.Endpoints()
		if c.s.faults.on(EventsOneEndpoint) {
			endpoint, replay = c.s.ranks[0].events.Endpoints()
		}
		out.Sources = append(out.Sources, &pb.KvEventSource{
			Transport: "zmq", Endpoint: endpoint, Topic: events.Topic, ReplayEndpoint: replay, DataParallelRank: &r.number,
			Encoding: "msgpack", SchemaVersion: 1, BufferSteps: uint64(events.BufferSteps), Hwm: uint64(events.HWM),
			MaxQueueSize: uint64(events.MaxQueueSize),
		})
	}
	return out, nil
}

// RestartEvents closes the event sockets of all local ranks and opens them where they were: sequence numbers begin at 0 again
// and there is nothing to replay, while the engines go on with what they have cached. Of a real engine only a restart does
// this, and empties its cache too.
func (s *Server) RestartEvents(ctx context.Context) error {
	for _, r := range s.ranks {
		if r.events == nil {
			return fmt.Errorf("%w: no KV events are published", ErrFault)
		}
		var failed error
		if err := r.loop.call(ctx, func() { failed = r.events.Restart() }); err != nil {
			return err
		}
		if failed != nil {
			return failed //nolint:wrapcheck // it names its stage
		}
	}
	return nil
}

// Restart makes Run end with ErrRestart as soon as it can, for its caller to start another engine where this one was.
func (s *Server) Restart() { s.restartOnce.Do(func() { close(s.restart) }) }

// restartPage is POST /sim/restart, or POST /sim/restart?only=kv-events. No real engine has this page.
func (s *Server) restartPage(w http.ResponseWriter, r *http.Request) {
	switch only := r.FormValue("only"); only {
	case "":
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush() // the connection does not live much longer
		s.Restart()
	case "kv-events":
		if err := s.RestartEvents(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	default:
		http.Error(w, "only="+strconv.Quote(only)+" is not kv-events", http.StatusBadRequest)
	}
}
