package calibration

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	pb "remora/proto/vllm"
)

// Settings that both engines of a pair must have: sizes and the lease of scenario.txt are counted on them.
const (
	BlockSize   = 32
	Blocks      = 65 // one of them is never used
	MaxModelLen = 512
	MaxSeqs     = 4
	Lease       = 12 * time.Second
)

// Engine is one engine of a pair, as a client sees it.
type Engine struct {
	Conn *grpc.ClientConn
	HTTP *http.Client
	URL  string // of the HTTP port
}

// Pair is a prefill and a decode engine with what can be done to them from outside.
type Pair struct {
	P, D *Engine

	// Stall stops all transfers of P's blocks, or lets them go on.
	Stall func(ctx context.Context, on bool) error
	// KillP ends P at once; its clients see the connection break.
	KillP func(ctx context.Context) error
	// RestartP starts a new engine where P was and returns when it serves. The side channel has the port that it had.
	RestartP func(ctx context.Context) (*Engine, error)
}

func (p *Pair) engine(name string) (*Engine, error) {
	switch name {
	case "P":
		return p.P, nil
	case "D":
		return p.D, nil
	default:
		return nil, fmt.Errorf("%w: engine %q is neither P nor D", ErrScenario, name)
	}
}

func (e *Engine) inference() pb.InferenceClient { return pb.NewInferenceClient(e.Conn) }
func (e *Engine) control() pb.ControlClient     { return pb.NewControlClient(e.Conn) }

// Names of the metrics that rows look at.
const (
	usage   = "vllm:kv_cache_usage_perc"
	waiting = "vllm:num_requests_waiting"
	running = "vllm:num_requests_running"
)

// metric scrapes the engine for one gauge.
func (e *Engine) metric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	res, err := e.HTTP.Do(req)
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if labels, ok := strings.CutPrefix(line, name); ok && strings.HasPrefix(labels, "{") {
			return strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		}
	}
	return 0, fmt.Errorf("metrics: no %s", name)
}

// used counts the engine's KV blocks that are in use.
func (e *Engine) used(ctx context.Context) (int, error) {
	share, err := e.metric(ctx, usage)
	return int(math.Round(share * (Blocks - 1))), err
}

// count is what a look step names: blocks, or requests.
func (e *Engine) count(ctx context.Context, what string) (int, error) {
	gauge, ok := map[string]string{"waiting": waiting, "running": running}[what]
	if !ok {
		return e.used(ctx)
	}
	n, err := e.metric(ctx, gauge)
	return int(n), err
}
