package harness

import (
	"path/filepath"

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
	p.PrefillEngine.WaitReady(t)
	t.Logf("prefill engine ready: HTTP %s, gRPC port %d", p.PrefillEngine.URL, p.PrefillEngine.GRPCPort())
	p.DecodeEngine.WaitReady(t)
	t.Logf("decode engine ready: HTTP %s, gRPC port %d", p.DecodeEngine.URL, p.DecodeEngine.GRPCPort())

	c := NewCluster(t)
	p.PrefillSidecar = c.Sidecar(t, kind, Prefill, p.PrefillEngine)
	p.DecodeSidecar = c.Sidecar(t, kind, Decode, p.DecodeEngine)
	t.Logf("two %s sidecars ready, discovery in %s", kind, c.Discovery)
	p.Frontend = c.Frontend(t)
	p.WaitServing(t, p.Model)
	t.Logf("stock Dynamo frontend ready: %s", p.Frontend.URL)
	return p
}

// Processes returns everything that was started.
func (p *Pair) Processes() []*Process {
	return []*Process{
		p.PrefillEngine.Process, p.DecodeEngine.Process, p.PrefillSidecar.Process, p.DecodeSidecar.Process, p.Frontend.Process,
	}
}
