package worker

import (
	"context"
	"errors"
	"testing"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
)

// fakePlane is a Plane that brings nothing.
type fakePlane struct {
	attached []discovery.Address
	closed   int
}

func (p *fakePlane) Attach(a discovery.Address, id uint64, _ requestplane.Handler) (discovery.Transport, error) {
	p.attached = append(p.attached, a)
	return discovery.Transport{NATS: a.Subject(id)}, nil
}

func (p *fakePlane) Close() { p.closed++ }

// TestOpenedPlane: the instance record says what the plane says, under the id that was given, and the plane is closed.
func TestOpenedPlane(t *testing.T) {
	plane := new(fakePlane)
	inWhole(t, protocol.Aggregated, func(w *whole) {
		w.cfg.InstanceID = 0xabc
		w.cfg.OpenPlane = func(context.Context) (Plane, error) { return plane, nil }
		store := w.cfg.Store
		w.cfg.Store, w.cfg.OpenStore = nil, func(context.Context) (discovery.Store, error) { return store, nil }
	}, func(w *whole) {
		ready := <-w.ready
		if ready.InstanceID != 0xabc || ready.Address != "n_c.e-abc" || len(plane.attached) != 1 {
			t.Errorf("%+v, attached %v", ready, plane.attached)
		}
	})
	if plane.closed == 0 {
		t.Error("the plane is open")
	}
}

// TestServicesFail: what was opened before is closed, and the error says what it is about.
func TestServicesFail(t *testing.T) {
	away := errors.New("the service is away")
	for name, prepare := range map[string]func(w *whole){
		"discovery": func(w *whole) {
			w.cfg.Store, w.cfg.OpenStore = nil, func(context.Context) (discovery.Store, error) { return nil, away }
		},
		"request plane": func(w *whole) { w.cfg.OpenPlane = func(context.Context) (Plane, error) { return nil, away } },
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, protocol.Aggregated, prepare, func(w *whole) {
				if <-w.done; !errors.Is(w.err, away) || w.err.Error() != away.Error() {
					t.Errorf("got %v", w.err)
				}
				if _, err := w.system.Dial(); err == nil {
					t.Error("the status server's listener is still open")
				}
			})
		})
	}
}

// TestStoppedWhileServicesAreLate: a stop ends the wait, as asked.
func TestStoppedWhileServicesAreLate(t *testing.T) {
	var waiting chan struct{}
	inWhole(t, protocol.Aggregated, func(w *whole) {
		waiting = make(chan struct{}) // of the bubble
		w.cfg.Store, w.cfg.OpenStore = nil, func(ctx context.Context) (discovery.Store, error) {
			close(waiting)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}, func(w *whole) {
		<-waiting
		w.stop()
		if <-w.done; w.err != nil {
			t.Errorf("got %v", w.err)
		}
	})
}
