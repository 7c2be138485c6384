package vllm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"remora/internal/zmq"
	pb "remora/proto/vllm"
)

// KVSource is where the KV events of one local data-parallel rank are published.
type KVSource struct {
	Rank uint32
	// Endpoint is the PUB socket, one that can be connected to. Topic is the prefix to subscribe to; empty for everything.
	Endpoint zmq.Endpoint
	Topic    string
	// Replay is the ROUTER socket that repeats what was published; the zero Endpoint if there is none.
	Replay zmq.Endpoint
}

// KVSources asks where the engine publishes its KV events. The answer is one source for each of the local ranks, in their
// order, or none at all: then the engine publishes nothing. notes are doubts for the log at WARN. An answer that cannot be
// followed is an error of kind Protocol: a worker that went on without events would never be found by the prefixes it holds,
// and nobody would know why. Workers of the encode role have no KV cache and do not ask.
//
// Engines name their sockets as they were configured, often by a wildcard; that stands for the host of the gRPC server here.
func (c *Client) KVSources(ctx context.Context, ranks LocalRanks) (sources []KVSource, notes []string, err error) {
	answer, err := pb.NewControlClient(c.pick()).GetKvEventSources(ctx, &pb.GetKvEventSourcesRequest{})
	if err != nil {
		return nil, nil, statusOf("GetKvEventSources", err).Err()
	}
	return kvSources(answer.GetSources(), ranks, c.config.Endpoint.Host)
}

func kvSources(told []*pb.KvEventSource, ranks LocalRanks, host string) (sources []KVSource, notes []string, err error) {
	for i, s := range told {
		if s.GetTransport() != "zmq" {
			notes = append(notes, fmt.Sprintf("KV event source %d has the transport %q, not \"zmq\"; it is passed over", i, s.GetTransport()))
			continue
		}
		source, err := kvSource(s, ranks, host)
		if err != nil {
			return nil, nil, &Error{Kind: Protocol, Text: fmt.Sprintf("GetKvEventSources: source %d", i), Err: err}
		}
		if slices.ContainsFunc(sources, func(other KVSource) bool { return other.Rank == source.Rank }) {
			return nil, nil, protocol("GetKvEventSources: two sources for rank %d", source.Rank)
		}
		sources = append(sources, source)
		notes = append(notes, kvDoubts(s, source.Rank)...)
	}
	if len(told) > 0 && len(sources) != int(ranks.Count) {
		return nil, nil, protocol("GetKvEventSources: %d sources that can be used for %s", len(sources), ranks)
	}
	slices.SortFunc(sources, func(a, b KVSource) int { return cmp.Compare(a.Rank, b.Rank) })
	return sources, notes, nil
}

func kvSource(s *pb.KvEventSource, ranks LocalRanks, host string) (out KVSource, err error) {
	if s.DataParallelRank == nil {
		return out, fmt.Errorf("data_parallel_rank is missing")
	}
	out = KVSource{Rank: s.GetDataParallelRank(), Topic: s.GetTopic()}
	if !ranks.Contains(out.Rank) {
		return out, fmt.Errorf("data_parallel_rank %d is not local (%s)", out.Rank, ranks)
	}
	if strings.TrimSpace(s.GetEndpoint()) == "" {
		return out, fmt.Errorf("endpoint of rank %d is blank", out.Rank)
	}
	if out.Endpoint, err = reachable(s.GetEndpoint(), host); err != nil {
		return out, fmt.Errorf("endpoint of rank %d: %w", out.Rank, err)
	}
	if strings.TrimSpace(s.GetReplayEndpoint()) == "" {
		return out, nil
	}
	if out.Replay, err = reachable(s.GetReplayEndpoint(), host); err != nil {
		return out, fmt.Errorf("replay_endpoint of rank %d: %w", out.Rank, err)
	}
	return out, nil
}

// reachable reads an endpoint as one to connect to.
func reachable(text, host string) (zmq.Endpoint, error) {
	out, err := zmq.ParseEndpoint(text)
	if err != nil {
		return out, err
	}
	if out.Network == "tcp" && out.Port == 0 {
		return out, fmt.Errorf("%q has no port to connect to", text)
	}
	if out.Wildcard() {
		out.Host = host
	}
	return out, nil
}

// kvDoubts names what an engine says about its events that is not as known; it is not acted upon, since what counts is what
// the events turn out to be.
func kvDoubts(s *pb.KvEventSource, rank uint32) (notes []string) {
	if encoding := s.GetEncoding(); encoding != "" && encoding != "msgpack" {
		notes = append(notes, fmt.Sprintf("KV events of rank %d are said to be encoded as %q; they are read as msgpack", rank, encoding))
	}
	if version := s.GetSchemaVersion(); version > 1 {
		notes = append(notes, fmt.Sprintf("KV events of rank %d have the schema version %d; version 1 is known", rank, version))
	}
	return notes
}
