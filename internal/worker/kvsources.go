package worker

import (
	"context"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
	"remora/internal/kvrelay"
	"remora/internal/vllm"
)

// sources asks the engine where it publishes its KV events: nowhere, or at one socket for each local rank.
func (w *worker) sources(ctx context.Context, engine *vllm.Client, found vllm.Discovery) ([]kvevents.Source, error) {
	ctx, end := context.WithTimeout(ctx, w.cfg.StartupDeadline)
	defer end()
	told, notes, err := engine.KVSources(ctx, found.Ranks)
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		w.log.Warn(note)
	}
	out := make([]kvevents.Source, 0, len(told))
	for _, s := range told {
		out = append(out, kvevents.Source(s))
	}
	return out, nil
}

// relay brings the engine's events of one rank to its publisher.
func (w *worker) relay(source kvevents.Source, p *eventplane.Publisher) *kvevents.Reader {
	return kvevents.NewReader(source, kvrelay.New(kvrelay.Config{
		Rank: source.Rank, BlockSize: w.service.translate.BlockSize, Log: w.log,
	}, p), w.log)
}
