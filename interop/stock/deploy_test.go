// Package stock tests Remora and its simulator against the stock Dynamo 1.6.1: the frontend above both kinds of sidecar,
// alone and mixed, in front of simulated engines. The Rust sidecar's tests prove the simulator, so that what Remora's show
// in front of it counts.
package stock

import (
	"strings"
	"testing"

	"remora/interop/harness"
)

func TestMain(m *testing.M) { harness.Main(m.Run) }

const model = harness.SimModel

// story is long enough for many blocks; prompts are its beginnings.
var story = strings.Repeat("Once there was a fish that travelled on other fish, and it never asked them where they were going. ", 10)

func prompt(words string) harness.Request {
	return harness.Request{Model: model, Prompt: words, MaxTokens: 32}
}

func chat(words string) harness.Request {
	return harness.Request{
		Model: model, MaxTokens: 32,
		Messages: []harness.Message{{Role: "system", Content: "Answer."}, {Role: "user", Content: words}},
	}
}

// deployment is a frontend above workers above simulated engines.
type deployment struct {
	*harness.Cluster
	*harness.Frontend

	engines  []harness.Engine
	sims     []*harness.Sim
	sidecars []*harness.Sidecar
}

// aggregated starts one engine and one worker under a frontend that was there first.
func aggregated(t *testing.T, kind harness.Kind, args ...string) *deployment {
	t.Helper()
	d := &deployment{Cluster: harness.NewCluster(t)}
	d.Frontend = d.Cluster.Frontend(t)
	d.add(t, kind, harness.Aggregated, harness.StartSim(t, args...))
	d.WaitServing(t, model)
	return d
}

// pair starts a prefill and a decode engine, their workers, and then the frontend.
func pair(t *testing.T, prefill, decode harness.Kind, args ...string) *deployment {
	t.Helper()
	return pairOn(t, prefill, decode, harness.StartSim(t, args...), harness.StartSim(t, args...))
}

func pairOn(t *testing.T, prefill, decode harness.Kind, p, d *harness.Sim) *deployment {
	t.Helper()
	all := &deployment{Cluster: harness.NewCluster(t)}
	all.add(t, prefill, harness.Prefill, p)
	all.add(t, decode, harness.Decode, d)
	all.Frontend = all.Cluster.Frontend(t)
	all.WaitServing(t, model)
	return all
}

// add puts a worker in front of an engine.
func (d *deployment) add(t *testing.T, kind harness.Kind, role harness.Role, engine *harness.Sim) *harness.Sidecar {
	t.Helper()
	s := d.Cluster.Sidecar(t, kind, role, engine)
	d.engines, d.sims, d.sidecars = append(d.engines, engine), append(d.sims, engine), append(d.sidecars, s)
	return s
}
