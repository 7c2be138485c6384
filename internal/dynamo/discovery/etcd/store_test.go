package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"remora/internal/dynamo/discovery"
)

// meter is a Meter that remembers.
type meter struct {
	mu   sync.Mutex
	up   bool
	lost int
}

func (m *meter) SetDiscoveryUp(up bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.up = up
}

func (m *meter) DiscoveryLeaseLost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost++
}

func (m *meter) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("up %v, lost %d", m.up, m.lost)
}

const leaseID = 0x1a2b

func (f *fake) config(m *meter) Config {
	return Config{Endpoints: []string{"http://etcd.test:2379"}, LeaseID: leaseID, Dial: f.dial, Meter: m}
}

// opened gives a store with a card and an instance, which is closed at the test's end.
func opened(t *testing.T, f *fake) (*Store, *meter) {
	t.Helper()
	m := new(meter)
	s, err := Open(t.Context(), f.config(m))
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, discovery.Instances, "n/c/e/1a2b", `{"i":1}`)
	create(t, s, discovery.ModelCards, "n/c/e/1a2b", `{"m":1}`)
	return s, m
}

func create(t *testing.T, s *Store, bucket discovery.Bucket, key, value string) {
	t.Helper()
	if err := s.Create(t.Context(), bucket, key, []byte(value)); err != nil {
		t.Fatalf("create %s: %v", key, err)
	}
}

const both = "v1/instances/n/c/e/1a2b {\"i\":1} 6699\nv1/mdc/n/c/e/1a2b {\"m\":1} 6699"

func (f *fake) wants(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	if got := f.state(); got != want {
		t.Errorf("etcd has\n%s\nwant\n%s", got, want)
	}
}

// quiet waits for everything that is due within d.
func quiet(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestKeysAreBoundToALeaseOfOurID(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, m := opened(t, f)
		f.wants(t, both)
		quiet(time.Minute)
		f.wants(t, both)
		if f.set(func(f *fake) {
			if f.pings < 15 || f.pings > 20 {
				t.Errorf("%d signs of life in a minute, want three each ten seconds", f.pings)
			}
		}); m.said() != "up true, lost 0" {
			t.Error(m.said())
		}
		if err := s.Create(t.Context(), discovery.Instances, "n/c/e/1a2b", []byte(`{}`)); !errors.Is(err, discovery.ErrExists) {
			t.Errorf("a second time: %v", err)
		}
		if err := s.Delete(t.Context(), discovery.Instances, "n/c/e/1a2b"); err != nil {
			t.Error(err)
		}
		f.wants(t, `v1/mdc/n/c/e/1a2b {"m":1} 6699`)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		f.wants(t, "")
		if err := s.Create(t.Context(), discovery.Instances, "n/c/e/2", []byte(`{}`)); !errors.Is(err, discovery.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("Close again: %v", err)
		}
	})
}

// TestAShortOutage: the lease outlives it, and so do the records.
func TestAShortOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, m := opened(t, f)
		defer s.Close(t.Context())
		f.stop()
		quiet(4 * time.Second)
		if m.said() != "up false, lost 0" {
			t.Error(m.said())
		}
		f.start()
		quiet(5 * time.Second)
		if m.said() != "up true, lost 0" {
			t.Error(m.said())
		}
		f.wants(t, both)
	})
}

// TestALongOutage: the worker is back soon after etcd is, however long it was away.
func TestALongOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, m := opened(t, f)
		defer s.Close(t.Context())
		f.stop()
		quiet(time.Hour)
		if f.wants(t, ""); m.said() != "up false, lost 0" {
			t.Error(m.said())
		}
		f.start()
		quiet(5 * time.Second)
		if f.wants(t, both); m.said() != "up true, lost 1" {
			t.Error(m.said())
		}
	})
}

// TestTheLeaseEnds in an outage, or the data is lost with the server: the same records come back under the same lease, the
// instance last.
func TestTheLeaseEnds(t *testing.T) {
	for name, lose := range map[string]func(f *fake){
		"in an outage":  func(f *fake) { f.stop(); time.Sleep(time.Minute); f.start() },
		"with the data": func(f *fake) { f.stop(); f.forget(); f.start() },
		"by hand":       func(f *fake) { f.set(func(f *fake) { f.end(leaseID) }) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fake) {
				s, m := opened(t, f)
				defer s.Close(t.Context())
				quiet(time.Second)
				lose(f)
				quiet(20 * time.Second)
				f.wants(t, both)
				if m.said() != "up true, lost 1" {
					t.Error(m.said())
				}
				f.set(func(f *fake) {
					last := f.history[len(f.history)-1]
					if !strings.HasPrefix(string(last.GetKv().GetKey()), "v1/instances/") {
						t.Errorf("written last: %s", last.GetKv().GetKey())
					}
				})
				quiet(time.Minute)
				f.wants(t, both)
			})
		})
	}
}

// TestARecordVanishedInAnOutage comes back although the lease is there; one that vanishes while all is well stays away: somebody
// wanted that.
func TestARecordVanishedInAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := opened(t, f)
		defer s.Close(t.Context())
		f.stop()
		quiet(4 * time.Second)
		f.set(func(f *fake) { _ = f.write("v1/mdc/n/c/e/1a2b", nil, 0) })
		f.start()
		quiet(5 * time.Second)
		f.wants(t, both)
		f.set(func(f *fake) { _ = f.write("v1/mdc/n/c/e/1a2b", nil, 0) })
		quiet(time.Minute)
		f.wants(t, `v1/instances/n/c/e/1a2b {"i":1} 6699`)
	})
}

// TestDeleteInAnOutage fails, and is made good when etcd is back; the record can be written again before that, too.
func TestDeleteInAnOutage(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("again ", again), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fake) {
				s, _ := opened(t, f)
				defer s.Close(t.Context())
				f.stop()
				began := time.Now()
				err := s.Delete(t.Context(), discovery.Instances, "n/c/e/1a2b")
				if err == nil || time.Since(began) > callTimeout {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				f.start()
				if again {
					create(t, s, discovery.Instances, "n/c/e/1a2b", `{"i":2}`)
				}
				quiet(10 * time.Second)
				want := `v1/mdc/n/c/e/1a2b {"m":1} 6699`
				if again {
					want = "v1/instances/n/c/e/1a2b {\"i\":2} 6699\n" + want
				}
				f.wants(t, want)
			})
		})
	}
}

// TestALostAnswer: what a failed Create has left behind is taken over by a second one, or else removed.
func TestALostAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := opened(t, f)
		defer s.Close(t.Context())
		f.set(func(f *fake) { f.swallow = true })
		if err := s.Create(t.Context(), discovery.Instances, "n/c/e/9", []byte(`{"lost":1}`)); err == nil {
			t.Fatal("no error")
		}
		create(t, s, discovery.Instances, "n/c/e/9", `{"lost":2}`)
		f.set(func(f *fake) { f.swallow = true })
		if err := s.Create(t.Context(), discovery.Instances, "n/c/e/10", []byte(`{"lost":3}`)); err == nil {
			t.Fatal("no error")
		}
		quiet(10 * time.Second)
		f.wants(t, "v1/instances/n/c/e/1a2b {\"i\":1} 6699\nv1/instances/n/c/e/9 {\"lost\":2} 6699\nv1/mdc/n/c/e/1a2b {\"m\":1} 6699")
	})
}

// TestCreateWithoutALease: whoever finds out first takes it out again.
func TestCreateWithoutALease(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := opened(t, f)
		defer s.Close(t.Context())
		f.set(func(f *fake) { f.end(leaseID) })
		create(t, s, discovery.EventChannels, "k", `{"e":1}`)
		f.wants(t, "v1/event_channels/k {\"e\":1} 6699\n"+both)
	})
}

func TestCloseInAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := opened(t, f)
		f.stop()
		began := time.Now()
		err := s.Close(t.Context())
		if err == nil || !strings.Contains(err.Error(), "ends by itself 10s after") || time.Since(began) > callTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		quiet(11 * time.Second)
		f.wants(t, "")
	})
}

// TestCloseIsCutShort: a context that ends while etcd is waited for ends the wait.
func TestCloseIsCutShort(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := opened(t, f)
		f.stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := s.Close(ctx); err == nil || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		quiet(11 * time.Second)
		f.wants(t, "")
	})
}

// TestOpenWaits for an etcd that comes late, with a bound, and not for one that refuses.
func TestOpenWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.stop()
		late := time.AfterFunc(20*time.Second, f.start)
		defer late.Stop()
		s, err := Open(t.Context(), f.config(new(meter)))
		if err != nil {
			t.Fatal(err)
		}
		if err = s.Close(t.Context()); err != nil {
			t.Error(err)
		}

		f.stop()
		began := time.Now()
		if _, err = Open(t.Context(), f.config(new(meter))); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "http://etcd.test:2379 within 2m0s") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took < defaultStartTimeout || took > defaultStartTimeout+2*callTimeout {
			t.Errorf("took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err = Open(ctx, f.config(new(meter))); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}

		f.start()
		f.set(func(f *fake) { f.refuse = status.Error(codes.PermissionDenied, "etcdserver: permission denied") })
		began = time.Now()
		if _, err = Open(t.Context(), f.config(new(meter))); !errors.Is(err, ErrRefused) || time.Since(began) > time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}

func TestRecordsAreChecked(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := opened(t, f)
		defer s.Close(t.Context())
		if err := s.Create(t.Context(), "v1/else", "k", []byte(`{}`)); !errors.Is(err, discovery.ErrKey) {
			t.Error(err)
		}
		if err := s.Create(t.Context(), discovery.Instances, "k", []byte(`[]`)); !errors.Is(err, discovery.ErrRecord) {
			t.Error(err)
		}
		if err := s.Delete(t.Context(), "v1/else", "k"); !errors.Is(err, discovery.ErrKey) {
			t.Error(err)
		}
		if _, err := s.Watch(t.Context(), "v1/else"); !errors.Is(err, discovery.ErrKey) {
			t.Error(err)
		}
	})
}
