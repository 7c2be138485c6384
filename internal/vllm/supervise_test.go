package vllm_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

const (
	serving    = healthpb.HealthCheckResponse_SERVING
	notServing = healthpb.HealthCheckResponse_NOT_SERVING
)

// How long an engine is silent when it is found gone: two checks, and the time until the first of them begins. A worker has
// two seconds to leave routing.
const (
	silentLeast = 1400 * time.Millisecond
	silentMost  = 1900 * time.Millisecond
)

// firstInstance is what vllmtest.DefaultServer tells.
const firstInstance = "1796041382615192848"

// supervisor runs Supervise and keeps the changes with the time of each. For synctest bubbles.
type supervisor struct {
	t       *testing.T
	stop    context.CancelFunc
	ended   chan error
	changes chan timedChange
}

type timedChange struct {
	vllm.Change

	at time.Time
}

func supervise(t *testing.T, client *vllm.Client) *supervisor {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &supervisor{t: t, stop: cancel, ended: make(chan error, 1), changes: make(chan timedChange, 1000)}
	go func() {
		s.ended <- client.Supervise(ctx, firstInstance, func(change vllm.Change) {
			s.changes <- timedChange{change, time.Now()}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-s.ended; err != nil {
			t.Errorf("supervise: %v", err)
		}
		close(s.changes)
		for change := range s.changes {
			t.Errorf("change that nobody expected: %v: %s", change.State, change.Reason)
		}
	})
	return s
}

// next waits for a change to the state, and holds how long it took since the given time against both bounds.
func (s *supervisor) next(state vllm.EngineState, since time.Time, least, most time.Duration) vllm.Change {
	s.t.Helper()
	select {
	case change := <-s.changes:
		took := change.at.Sub(since)
		s.t.Logf("%v after %v: %s", change.State, took, change.Reason)
		if change.State != state || took < least || took > most {
			s.t.Errorf("%v after %v, want %v after %v to %v: %s", change.State, took, state, least, most, change.Reason)
		}
		return change.Change
	case <-time.After(most + time.Minute):
		s.t.Fatalf("no change within %v", most+time.Minute)
		return vllm.Change{}
	}
}

func (s *supervisor) none(d time.Duration) {
	s.t.Helper()
	select {
	case change := <-s.changes:
		s.t.Errorf("unexpected change %v: %s", change.State, change.Reason)
	case <-time.After(d):
	}
}

// kinds runs a test against engines with and without Watch, with one connection and with several.
func kinds(t *testing.T, test func(t *testing.T, engine *vllmtest.Engine, client *vllm.Client, watch bool)) {
	t.Helper()
	for _, connections := range []int{1, 4} {
		for _, watch := range []bool{true, false} {
			t.Run(fmt.Sprintf("connections %d, watch %v", connections, watch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var options []vllmtest.Option
					if !watch {
						options = append(options, vllmtest.WithoutWatch())
					}
					engine := vllmtest.New(t, options...)
					client := dial(t, engine, func(c *vllm.Config) { c.Connections = connections })
					test(t, engine, client, watch)
				})
			})
		}
	}
}

// within is at once with Watch, and by the next check without.
func within(watch bool) time.Duration {
	if watch {
		return 0
	}
	return 500 * time.Millisecond
}

func TestSuperviseTransitions(t *testing.T) {
	tests := []struct {
		name   string
		breaks func(engine *vllmtest.Engine)
		heal   func(engine *vllmtest.Engine)
		state  vllm.EngineState
		least  time.Duration
		most   func(watch bool) time.Duration
		why    string
		back   time.Duration // at most
	}{
		{
			"not serving",
			func(engine *vllmtest.Engine) { engine.SetAllHealth(notServing) },
			func(engine *vllmtest.Engine) { engine.SetAllHealth(serving) },
			vllm.EngineNotServing, 0, within, "NOT_SERVING", 1500 * time.Millisecond,
		},
		{
			"a health that nobody knows",
			func(engine *vllmtest.Engine) { engine.SetAllHealth(77) },
			func(engine *vllmtest.Engine) { engine.SetAllHealth(serving) },
			vllm.EngineNotServing, 0, within, "77", 1500 * time.Millisecond,
		},
		{
			"killed",
			func(engine *vllmtest.Engine) { engine.Down() },
			func(engine *vllmtest.Engine) { engine.Up() },
			// The connection is tried again each second, more or less.
			vllm.EngineGone, 0, within, "connection refused", 2700 * time.Millisecond,
		},
		{
			"frozen",
			func(engine *vllmtest.Engine) { engine.Freeze() },
			func(engine *vllmtest.Engine) { engine.Thaw() },
			vllm.EngineGone, silentLeast, func(bool) time.Duration { return silentMost }, "DeadlineExceeded",
			2 * time.Second,
		},
		{
			"killed behind a listener that stays",
			func(engine *vllmtest.Engine) { engine.Freeze(); engine.Kill() },
			func(engine *vllmtest.Engine) { engine.Thaw() },
			vllm.EngineGone, silentLeast, func(bool) time.Duration { return silentMost }, "DeadlineExceeded",
			2 * time.Second,
		},
		{
			"restarted faster than anyone can see",
			func(engine *vllmtest.Engine) { engine.Restart("second") },
			nil,
			vllm.EngineGone, 0, within, `instance_id was "` + firstInstance + `" and is "second"`, 1500 * time.Millisecond,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			kinds(t, func(t *testing.T, engine *vllmtest.Engine, client *vllm.Client, watch bool) {
				s := supervise(t, client)
				s.none(20*time.Second + 123*time.Millisecond)
				start := time.Now()
				test.breaks(engine)
				change := s.next(test.state, start, test.least, test.most(watch))
				if silent := test.least == silentLeast; change.Silent != silent {
					t.Errorf("silent %v, want %v", change.Silent, silent)
				}
				if !strings.Contains(change.Reason, test.why) || change.Instance != "" {
					t.Errorf("change %+v, want reason %q", change, test.why)
				}
				start = time.Now()
				instance := "second"
				if test.heal != nil {
					instance = firstInstance
					s.none(100*time.Second + 77*time.Millisecond)
					start = time.Now()
					test.heal(engine)
				}
				change = s.next(vllm.EngineServing, start, time.Second, test.back)
				if change.Instance != instance {
					t.Errorf("instance %q", change.Instance)
				}
				s.none(10 * time.Minute)
			})
		})
	}
}

// The two ways in which vLLM 0.32.0 ends: its core dies and the process follows half a minute later, or it is told to stop.
func TestSuperviseEndOfAnEngine(t *testing.T) {
	kinds(t, func(t *testing.T, engine *vllmtest.Engine, client *vllm.Client, watch bool) {
		s := supervise(t, client)
		s.none(time.Minute)
		start := time.Now()
		engine.SetAllHealth(notServing)
		s.next(vllm.EngineNotServing, start, 0, within(watch))
		s.none(30 * time.Second)
		start = time.Now()
		engine.Down()
		s.next(vllm.EngineGone, start, 0, within(watch))
		s.none(time.Minute)

		engine.SetAllHealth(serving)
		start = time.Now()
		engine.Restart("second")
		if change := s.next(vllm.EngineServing, start, time.Second, 3*time.Second); change.Instance != "second" {
			t.Errorf("instance %q", change.Instance)
		}
		s.none(time.Minute)
		start = time.Now()
		engine.SetAllHealth(notServing)
		engine.GoAway()
		s.next(vllm.EngineNotServing, start, 0, within(watch))
		s.none(5 * time.Second)
		start = time.Now()
		engine.Down()
		s.next(vllm.EngineGone, start, 0, within(watch))
	})
}

// What is no change: connections that break or are sent away while the process lives, and silence of less than two checks,
// whatever its phase.
func TestSuperviseKeepsCalm(t *testing.T) {
	kinds(t, func(t *testing.T, engine *vllmtest.Engine, client *vllm.Client, _ bool) {
		s := supervise(t, client)
		s.none(time.Second)
		for i := range 20 {
			engine.Kill()
			s.none(time.Duration(i) * 97 * time.Millisecond)
			engine.GoAway()
			s.none(time.Duration(i) * 89 * time.Millisecond)
		}
		for i := range 20 {
			engine.Freeze()
			s.none(silentLeast - 10*time.Millisecond)
			engine.Thaw()
			s.none(time.Second + time.Duration(i)*51*time.Millisecond)
		}
	})
}

// An engine that was not what it was taken for when supervision began.
func TestSuperviseFromABadStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dial(t, engine, nil)
		engine.Restart("second")
		engine.SetAllHealth(notServing)
		start := time.Now()
		s := supervise(t, client)
		s.next(vllm.EngineNotServing, start, 0, 500*time.Millisecond)
		start = time.Now()
		engine.SetAllHealth(serving)
		s.next(vllm.EngineServing, start, time.Second, 2*time.Second)
		s.none(time.Minute)
	})
}

// Dials that hang, and servers of another kind on the same port.
func TestSuperviseSomethingElseInItsPlace(t *testing.T) {
	t.Run("no answer to dials", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			engine := vllmtest.New(t)
			var hole atomic.Bool
			client := dial(t, engine, func(c *vllm.Config) {
				c.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
					if hole.Load() {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return engine.Dial(ctx, address)
				}
			})
			s := supervise(t, client)
			s.none(time.Minute)
			start := time.Now()
			hole.Store(true)
			engine.Kill()
			s.next(vllm.EngineGone, start, silentLeast, silentLeast)
			s.none(10 * time.Minute)
			start = time.Now()
			hole.Store(false)
			// The attempt under way is given 30 s.
			s.next(vllm.EngineServing, start, time.Second, 34*time.Second)
		})
	})
	t.Run("no health service", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			engine, other := vllmtest.New(t), vllmtest.New(t, vllmtest.WithoutHealth())
			client := dial(t, engine, func(c *vllm.Config) {
				c.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
					if conn, err := engine.Dial(ctx, address); err == nil {
						return conn, nil
					}
					return other.Dial(ctx, address)
				}
			})
			s := supervise(t, client)
			s.none(time.Minute)
			start := time.Now()
			engine.Down()
			if change := s.next(vllm.EngineGone, start, 0, 0); !strings.Contains(change.Reason, "not a vLLM native gRPC server") {
				t.Error(change.Reason)
			}
		})
	})
	t.Run("an engine that tells nothing of itself", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			engine := vllmtest.New(t)
			client := dial(t, engine, nil)
			s := supervise(t, client)
			s.none(time.Minute)
			engine.Set(func(b *vllmtest.Behaviour) {
				b.Control = func(context.Context, string) error { return status.Error(codes.Internal, "not today") }
			})
			s.none(time.Minute) // nobody asks, as long as the connection holds
			start := time.Now()
			engine.Kill()
			if change := s.next(vllm.EngineGone, start, 0, 0); !strings.Contains(change.Reason, "GetServerInfo: not today") {
				t.Error(change.Reason)
			}
		})
	})
}

// An engine that comes and goes makes few changes, and fewer the longer it does so.
func TestSuperviseFlapping(t *testing.T) {
	tests := []struct {
		name      string
		good, bad time.Duration
		most      int // changes in five minutes, with Watch
	}{
		{"faster than a check", 70 * time.Millisecond, 70 * time.Millisecond, 1},
		{"not long enough to be back", 900 * time.Millisecond, 100 * time.Millisecond, 1},
		// Back after 1 s, perhaps after 2 s, not after 4 s.
		{"two seconds", 2 * time.Second, time.Second, 5},
		{"ten seconds", 10 * time.Second, time.Second, 9},
		{"half a minute", 30 * time.Second, time.Second, 11},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			kinds(t, func(t *testing.T, engine *vllmtest.Engine, client *vllm.Client, watch bool) {
				s := supervise(t, client)
				s.none(time.Minute)
				for start := time.Now(); time.Since(start) < 5*time.Minute; {
					engine.SetAllHealth(notServing)
					<-time.After(test.bad)
					engine.SetAllHealth(serving)
					<-time.After(test.good)
				}
				engine.Down()
				<-time.After(time.Minute)
				count := 0
				last := vllm.EngineServing
				for len(s.changes) > 0 {
					change := <-s.changes
					if change.State == last {
						t.Errorf("%v again", last)
					}
					last = change.State
					count++
				}
				if last != vllm.EngineGone {
					t.Errorf("ends as %v", last)
				}
				t.Logf("%d changes", count)
				most := test.most + 1 // the last one is gone
				if !watch {
					// Checks twice a second miss a short absence or meet it, as the phases fall; the time that it takes to be
					// back, doubled each time up to 32 s, allows six returns.
					most = 12
				}
				if count > most {
					t.Errorf("%d changes, want at most %d", count, most)
				}
			})
		})
	}
}

// The engine is asked little: two checks a second, the instance once for each watched connection, and Watch less and less
// where there is none.
func TestSuperviseCost(t *testing.T) {
	kinds(t, func(t *testing.T, engine *vllmtest.Engine, client *vllm.Client, watch bool) {
		s := supervise(t, client)
		s.none(5*time.Minute + 100*time.Millisecond)
		checked := engine.Count(vllmtest.Checked, vllm.InferenceService)
		watched := engine.Count(vllmtest.Watched, vllm.InferenceService)
		asked := engine.Count(vllmtest.Discovered, "")
		t.Logf("%d checks, %d watches, %d questions", checked, watched, asked)
		if checked < 600 || checked > 700 || checked != engine.Count(vllmtest.Checked, "") {
			t.Errorf("%d checks", checked)
		}
		if watch && (watched != 1 || asked != 1) || !watch && (watched < 10 || watched > 20 || asked != checked) {
			t.Errorf("%d watches, %d questions", watched, asked)
		}
	})
}

// Whenever the context ends, Supervise returns at once, without a change of its own making and without a goroutine.
func TestSuperviseEndsAtAnyMoment(t *testing.T) {
	for _, watch := range []bool{true, false} {
		for moment := time.Duration(0); moment < 7*time.Second; moment += 83 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				var options []vllmtest.Option
				if !watch {
					options = append(options, vllmtest.WithoutWatch())
				}
				engine := vllmtest.New(t, options...)
				client := dial(t, engine, func(c *vllm.Config) { c.Connections = 2 })
				ctx, cancel := context.WithTimeout(t.Context(), moment)
				defer cancel()
				start := time.Now()
				time.AfterFunc(500*time.Millisecond, engine.Down)
				time.AfterFunc(time.Second, engine.Up)
				time.AfterFunc(3*time.Second, engine.Freeze)
				time.AfterFunc(5600*time.Millisecond, engine.Thaw)
				var changes []string
				err := client.Supervise(ctx, firstInstance, func(change vllm.Change) {
					changes = append(changes, change.State.String())
				})
				got := strings.Join(changes, ", ")
				if took := time.Since(start); took != moment || err != nil {
					t.Errorf("ended after %v, want %v: %v", took, moment, err)
				}
				if all := "gone, serving, gone, serving"; !strings.HasPrefix(all, got) {
					t.Errorf("changes %q", got)
				}
				<-time.After(time.Minute)
				if late := strings.Join(changes, ", "); late != got {
					t.Errorf("changes after the end: %q, then %q", got, late)
				}
			})
		}
	}
}

// The first change may be the last thing that the caller wants to know.
func TestSuperviseEndedByItsCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dial(t, engine, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(time.Second, engine.Down)
		count := 0
		if err := client.Supervise(ctx, firstInstance, func(vllm.Change) { count++; cancel() }); err != nil || count != 1 {
			t.Errorf("%d changes, %v", count, err)
		}
	})
}

func TestSuperviseMisuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dial(t, engine, nil)
		if err := client.Supervise(t.Context(), firstInstance, nil); vllm.KindOfError(err) != vllm.InvalidArgument {
			t.Errorf("nil notify: %v", err)
		}
		time.AfterFunc(10*time.Second, func() {
			if err := client.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
		start := time.Now()
		err := client.Supervise(t.Context(), firstInstance, func(change vllm.Change) { t.Errorf("change %v", change) })
		if vllm.KindOfError(err) != vllm.InvalidArgument || !strings.Contains(err.Error(), "client was closed") || time.Since(start) > 11*time.Second {
			t.Errorf("closed client, after %v: %v", time.Since(start), err)
		}
	})
}

func TestRediscover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dial(t, engine, nil)
		before, err := client.Discover(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		engine.SetHealth(vllm.InferenceService, notServing)
		time.AfterFunc(10*time.Second, func() { engine.SetAllHealth(serving); engine.Restart("second") })
		start := time.Now()
		now, err := client.Rediscover(t.Context(), before)
		if err != nil || now.InstanceID != "second" || time.Since(start) < 10*time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(start), now, err)
		}

		engine.Set(func(b *vllmtest.Behaviour) {
			b.Server = vllmtest.DefaultServer()
			b.Server.MaxModelLen = 1024
		})
		now, err = client.Rediscover(t.Context(), before)
		if vllm.KindOfError(err) != vllm.Protocol || !strings.Contains(err.Error(), "max_model_len was 512 and is 1024") || now.ContextLength != 1024 {
			t.Errorf("%+v, %v", now, err)
		}

		engine.Down()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err = client.Rediscover(ctx, before); vllm.KindOfError(err) != vllm.CannotConnect {
			t.Errorf("engine away: %v", err)
		}
	})
}

// TestSuperviseHearsStreams: an engine that streams but has no time for health checks is not gone; when its streams fall silent
// as well, it is.
func TestSuperviseHearsStreams(t *testing.T) {
	kinds(t, func(t *testing.T, engine *vllmtest.Engine, client *vllm.Client, _ bool) {
		const busy = 20 * time.Second
		var steps []vllmtest.Step
		for at := time.Duration(0); at < busy; at += 300 * time.Millisecond {
			steps = append(steps, vllmtest.Tokens(1), vllmtest.Sleep(300*time.Millisecond))
		}
		engine.Script("x", append([]vllmtest.Step{vllmtest.Headers()}, append(steps, vllmtest.Silence())...)...)
		s := supervise(t, client)
		stream := client.Open(&pb.GenerateRequest{RequestId: "x"}, nil, newRecorder(t, nil))
		defer stream.Drop()
		engine.Await(t, vllmtest.Sent, "x")
		start := time.Now()
		engine.SetDeafHealth(true)
		s.none(busy - time.Second)
		s.next(vllm.EngineGone, start, busy, busy+15*time.Second) // a gRPC-Go engine pings whoever asks it, and that is excused for a while
	})
}

// TestSuperviseExcuses: a check that ran out of time because this process got no CPU, or because the engine is at something
// else, is not held against the engine; but nothing is excused for ever.
func TestSuperviseExcuses(t *testing.T) {
	refuse := func(t *testing.T, engine *vllmtest.Engine, client *vllm.Client) {
		t.Helper()
		for i := range 60 {
			id := fmt.Sprint(i)
			engine.Script(id, vllmtest.Status(codes.InvalidArgument, "no"))
			time.AfterFunc(time.Duration(i)*500*time.Millisecond, func() {
				client.Open(&pb.GenerateRequest{RequestId: id}, nil, newRecorder(t, nil))
			})
		}
	}
	tests := []struct {
		name       string
		slow       slowness
		busy       func(t *testing.T, engine *vllmtest.Engine, client *vllm.Client) // nil: idle
		away, back func(engine *vllmtest.Engine)
	}{
		{"the answer waits to be read", slowness{unread: 17}, nil, (*vllmtest.Engine).Freeze, (*vllmtest.Engine).Thaw},
		{"the question leaves late", slowness{delay: 250 * time.Millisecond}, nil, (*vllmtest.Engine).Freeze, (*vllmtest.Engine).Thaw},
		{
			"requests are refused, and nothing else comes", slowness{}, refuse,
			func(engine *vllmtest.Engine) { engine.SetDeafHealth(true) }, func(engine *vllmtest.Engine) { engine.SetDeafHealth(false) },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := vllmtest.New(t)
				var slow atomic.Pointer[slowness]
				slow.Store(&slowness{})
				client := dial(t, engine, func(c *vllm.Config) {
					c.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
						conn, err := engine.Dial(ctx, address)
						return &slowConn{Conn: conn, slow: &slow}, err
					}
				})
				s := supervise(t, client)
				s.none(10 * time.Second)
				if test.busy != nil {
					test.busy(t, engine, client)
				}
				for range 4 { // an answer in between, and all excuses are there again
					slow.Store(&test.slow)
					test.away(engine)
					s.none(5 * time.Second)
					slow.Store(&slowness{})
					test.back(engine)
					s.none(time.Second)
				}
				start := time.Now()
				slow.Store(&test.slow)
				test.away(engine)
				s.next(vllm.EngineGone, start, 5*time.Second, 15*time.Second)
				start = time.Now()
				slow.Store(&slowness{})
				test.back(engine)
				s.next(vllm.EngineServing, start, time.Second, 5*time.Second)
			})
		})
	}
}

// slowness is that of a process without CPU.
type slowness struct {
	unread int           // bytes that nobody reads
	delay  time.Duration // of what is written
}

type slowConn struct {
	net.Conn

	slow *atomic.Pointer[slowness]
}

func (c *slowConn) Unread() int { return c.slow.Load().unread }

func (c *slowConn) Write(p []byte) (int, error) {
	time.Sleep(c.slow.Load().delay)
	return c.Conn.Write(p)
}
