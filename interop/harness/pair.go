package harness

import (
	"path/filepath"
	"syscall"

	"remora/interop/tinyllama"
)

// RealModel is the folder name of the model that real engines serve, and with it the model's name in the API.
const RealModel = "tiny-llama"

// Pair is a real prefill engine and a real decode engine behind sidecars, under a stock frontend.
type Pair struct {
	*Frontend

	Model                         string // the name that the frontend lists
	PrefillEngine, DecodeEngine   *VLLM
	PrefillSidecar, DecodeSidecar *Sidecar
}

// StartPair starts everything, logging its progress, and returns when a request was answered. It takes one to two
// minutes, nearly all of it the engines' loading.
func StartPair(t T, kind Kind) *Pair {
	t.Helper()
	folder := filepath.Join(t.TempDir(), RealModel)
	if err := tinyllama.Write(folder, 7); err != nil {
		t.Fatalf("%v", err)
	}
	p := &Pair{Model: RealModel}
	t.Logf("starting two vLLM engines; they take a minute or two to load")
	p.PrefillEngine = StartVLLM(t, "engine-prefill", folder)
	p.DecodeEngine = StartVLLM(t, "engine-decode", folder)
	t.Cleanup(func() { // both at once: each takes seconds to end
		p.PrefillEngine.Signal(syscall.SIGTERM)
		p.DecodeEngine.Signal(syscall.SIGTERM)
	})
	p.PrefillEngine.WaitReady(t)
	t.Logf("prefill engine ready: HTTP %s, gRPC port %d", p.PrefillEngine.URL, p.PrefillEngine.GRPCPort())
	p.DecodeEngine.WaitReady(t)
	t.Logf("decode engine ready: HTTP %s, gRPC port %d", p.DecodeEngine.URL, p.DecodeEngine.GRPCPort())

	return p.Behind(t, kind, kind)
}

// Behind puts sidecars of the given kinds and a frontend of their own above the same engines.
func (p *Pair) Behind(t T, prefill, decode Kind) *Pair {
	t.Helper()
	c, q := NewCluster(t), *p
	q.PrefillSidecar = c.Sidecar(t, prefill, Prefill, p.PrefillEngine)
	q.DecodeSidecar = c.Sidecar(t, decode, Decode, p.DecodeEngine)
	t.Logf("sidecars ready: %s prefill, %s decode; discovery in %s", prefill, decode, c.Discovery)
	q.Frontend = c.Frontend(t)
	q.WaitServing(t, p.Model)
	t.Logf("stock Dynamo frontend ready: %s", q.Frontend.URL)
	return &q
}

// Processes returns everything that was started.
func (p *Pair) Processes() []*Process {
	return []*Process{
		p.PrefillEngine.Process, p.DecodeEngine.Process, p.PrefillSidecar.Process, p.DecodeSidecar.Process, p.Frontend.Process,
	}
}
