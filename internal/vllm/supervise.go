package vllm

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "remora/proto/vllm"
)

const (
	// checkInterval is between the starts of health checks, unless one takes longer.
	checkInterval = 500 * time.Millisecond
	// checkTimeout is long because a front end that computes nothing answers in a millisecond, but may have to wait for a
	// CPU like everybody else. Two of them and an interval are less than the two seconds within which a worker whose engine
	// stands still must be out of routing.
	checkTimeout = 700 * time.Millisecond
	// watchRetryMost bounds the pause before Watch is tried again, which begins with checkInterval.
	watchRetryMost = 30 * time.Second
)

// Supervise watches over the engine until the context ends, and then returns nil. It takes the engine to be serving, as the
// process with that instance (Discovery.InstanceID), and calls notify for each change from then on:
//
//   - EngineNotServing as soon as the engine says so, at the latest 0.5 s after it began to;
//   - EngineGone at once when the process ends and its port refuses connections; 1.4 to 1.9 s after the engine has stopped to
//     answer (stopped process, dead host: two checks in a row, 0.7 s each, while nothing else came from it either; see ear); and
//     when another process answers, however quickly it took the place of the first;
//   - EngineServing when all checks of at least a second were good, more of an engine that has come and gone before (up to
//     32 s). The engine may be another one now: Rediscover tells.
//
// So an engine that is silent for less than 1.4 s is never reported, and changes to EngineServing cannot follow each
// other quickly. A connection that breaks is no change as long as the same process answers on a new one.
//
// The calls of notify never overlap, and none comes after Supervise has returned. Nothing is observed while one runs, so it
// should return soon. Errors are mistakes of the caller alone: a nil notify, or a client that is closed while supervised.
//
// How it works: Health.Watch tells a NOT_SERVING at once, and its end is the moment for a check; but a verdict of absence
// comes from Health.Check alone, twice a second. Both use the connection that carries no GenerateStream. An engine without
// Watch is only checked. One service is enough, because an engine's services change their health together. The process is
// told by the instance_id in its server info: vLLM makes one for each start.
func (c *Client) Supervise(ctx context.Context, instance string, notify func(Change)) error {
	if notify == nil {
		return invalid("supervise engine: notify is nil")
	}
	s := &supervision{client: c, notify: notify, wake: make(chan struct{}, 1), verdict: newVerdict(instance)}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx) })
	err := s.poll(ctx)
	cancel()
	watching.Wait()
	return err
}

// supervision is one call of Supervise: a goroutine that polls and one that watches.
type supervision struct {
	client *Client
	notify func(Change)  // called under mu
	wake   chan struct{} // asks for a check now

	mu      sync.Mutex
	verdict verdict // guarded by mu
	streams uint64  // guarded by mu; Watch streams that were answered so far
	current uint64  // guarded by mu; number of the one that is open, 0 without one
	known   uint64  // guarded by mu; number of the one during which the instance was asked for
}

// poll checks until the context ends, or fails when the client is closed.
func (s *supervision) poll(ctx context.Context) error {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	failures := retryLog{log: s.client.config.Log}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-ticker.C:
		}
		heard := s.client.heard.Load()
		s.client.ear.attend()
		result := s.check(ctx)
		if result.err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if KindOfError(result.err) == Timeout && (s.client.heard.Load() != heard || s.client.ear.excuses()) {
				continue // it lives; too busy for us is no verdict
			}
			if s.client.isClosed() {
				return invalid("supervise engine: the client was closed meanwhile")
			}
			failures.note(ctx, slog.LevelDebug, result.err.Error(), "engine health check failed",
				"peer", s.client.config.Endpoint.String())
		}
		if KindOfError(result.err) != Timeout {
			s.client.ear.answered()
		}
		s.observe(ctx, func(v *verdict, now time.Time) (Change, bool) { return v.checked(now, result) })
	}
}

// brokenTries is how often a check that fails with its connection is repeated.
const brokenTries = 3

// check is one health check. A call that fails with its connection says little of the engine, so it is repeated: at once, and
// then after the pause that grpc-go makes before it connects again. A refused connection needs no second look: nobody listens.
func (s *supervision) check(ctx context.Context) checkResult {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for broken := 0; ; broken++ {
		result := s.ask(ctx)
		kind := KindOfError(result.err)
		if kind != Disconnected && kind != CannotConnect || broken == brokenTries || ctx.Err() != nil {
			return result
		}
		if strings.Contains(result.err.Error(), "connection refused") {
			return result
		}
		if broken > 0 && !pause(ctx, reconnectFirst+reconnectFirst/2) {
			return result
		}
	}
}

// ask asks for the health, and for the instance too unless that cannot have changed: the same Watch stream has been open
// since it was asked last.
func (s *supervision) ask(ctx context.Context) checkResult {
	s.mu.Lock()
	current := s.current
	identify := current == 0 || current != s.known || s.verdict.state != EngineServing
	s.mu.Unlock()

	health, err := s.client.Check(ctx, InferenceService)
	if err != nil || health != Serving || !identify {
		return checkResult{health: health, err: err}
	}
	server, err := pb.NewControlClient(s.client.aside()).GetServerInfo(ctx, &pb.GetServerInfoRequest{})
	if err != nil {
		return checkResult{err: statusOf("GetServerInfo", err).Err()}
	}
	s.mu.Lock()
	s.known = current
	s.mu.Unlock()
	return checkResult{health: health, identified: true, instance: server.GetInstanceId()}
}

// watch keeps a Watch stream open. Where that fails again and again it is tried less and less often.
func (s *supervision) watch(ctx context.Context) {
	retry := checkInterval
	for {
		if s.watchOnce(ctx) {
			retry = checkInterval
		} else {
			retry = min(2*retry, watchRetryMost)
		}
		s.checkNow()
		if !pause(ctx, retry) {
			return
		}
	}
}

// watchOnce reads one stream to its end, and reports whether it was answered.
func (s *supervision) watchOnce(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := healthpb.NewHealthClient(s.client.aside()).Watch(ctx, &healthpb.HealthCheckRequest{Service: InferenceService})
	if err != nil {
		return false
	}
	for answers := 0; ; answers++ {
		answer, err := stream.Recv()
		if err != nil {
			s.mu.Lock()
			s.current = 0
			s.mu.Unlock()
			return answers > 0
		}
		if answers == 0 {
			s.mu.Lock()
			s.streams++
			s.current = s.streams
			s.mu.Unlock()
		}
		health := Health(answer.GetStatus().String())
		s.observe(ctx, func(v *verdict, now time.Time) (Change, bool) { return v.told(now, health) })
	}
}

// observe hands something seen to the verdict, and the change that it makes to the caller.
func (s *supervision) observe(ctx context.Context, see func(v *verdict, now time.Time) (Change, bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if change, changed := see(&s.verdict, time.Now()); changed {
		s.notify(change)
	}
	if s.verdict.state != EngineGone && s.verdict.misses > 0 {
		s.checkNow() // the check that decides
	}
}

func (s *supervision) checkNow() {
	select {
	case s.wake <- struct{}{}:
	default: // one is asked for already
	}
}
