package worker

import (
	"context"
	"fmt"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
	"remora/internal/kvrelay"
	"remora/internal/vllm"
	"remora/internal/zmq"
	pb "remora/proto/vllm"
)

// sources asks the engine where it publishes its KV events: nowhere, or at one socket for each local rank.
func (w *worker) sources(ctx context.Context, engine *vllm.Client, found vllm.Discovery) ([]kvevents.Source, error) {
	ctx, end := context.WithTimeout(ctx, w.cfg.StartupDeadline)
	defer end()
	told, err := engine.KVEventSources(ctx)
	if err != nil {
		return nil, err
	}
	var out []kvevents.Source
	for _, s := range told {
		if s.GetTransport() != "zmq" {
			w.log.Warn("passing over a source of KV events with another transport than zmq", "transport", s.GetTransport())
			continue
		}
		source, err := w.source(s)
		switch {
		case err != nil:
			return nil, err
		case !found.Ranks.Contains(source.Rank):
			return nil, fmt.Errorf("%w: it names KV events of rank %d, and %s are here", errUnfit, source.Rank, found.Ranks)
		case sourceOf(source.Rank, out) >= 0:
			return nil, fmt.Errorf("%w: it names the KV events of rank %d twice", errUnfit, source.Rank)
		}
		out = append(out, source)
	}
	if len(told) > 0 && len(out) != int(found.Ranks.Count) {
		return nil, fmt.Errorf("%w: it names the KV events of %d ranks, and %d are here", errUnfit, len(out), found.Ranks.Count)
	}
	return out, nil
}

// source reads one. Endpoints that stand for all addresses are the engine's own.
func (w *worker) source(s *pb.KvEventSource) (kvevents.Source, error) {
	if s.DataParallelRank == nil {
		return kvevents.Source{}, fmt.Errorf("%w: it names KV events of no rank", errUnfit)
	}
	out := kvevents.Source{Rank: s.GetDataParallelRank(), Topic: s.GetTopic()}
	var err error
	if out.Endpoint, err = zmq.ParseEndpoint(s.GetEndpoint()); err != nil {
		return out, fmt.Errorf("%w: KV events of rank %d: %w", errUnfit, out.Rank, err)
	}
	if s.GetReplayEndpoint() != "" {
		if out.Replay, err = zmq.ParseEndpoint(s.GetReplayEndpoint()); err != nil {
			return out, fmt.Errorf("%w: replay of the KV events of rank %d: %w", errUnfit, out.Rank, err)
		}
	}
	for _, at := range []*zmq.Endpoint{&out.Endpoint, &out.Replay} {
		if at.Network == "tcp" && (at.Host == "" || at.Host == "0.0.0.0" || at.Host == "::") {
			at.Host = w.cfg.Engine.Endpoint.Host
		}
	}
	return out, nil
}

// relay brings the engine's events of one rank to its publisher.
func (w *worker) relay(source kvevents.Source, p *eventplane.Publisher) *kvevents.Reader {
	return kvevents.NewReader(source, kvrelay.New(kvrelay.Config{
		Rank: source.Rank, BlockSize: w.service.translate.BlockSize, Log: w.log,
	}, p), w.log)
}
