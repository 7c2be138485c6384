package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"remora/internal/dynamo/discovery"
	"remora/internal/sleep"
)

const (
	// retryAfter is the pause after a keep-alive that failed.
	retryAfter = time.Second
	// remindAfter is how often a lasting outage is logged.
	remindAfter = 30 * time.Second
)

// grant takes out the lease. One that is there already is ours: an answer was lost.
func (s *Store) grant(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(s.lease), TTL: int64(s.cfg.TTL / time.Second)})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take out a lease: %w", brief(err))
	}
	return nil
}

// keep is the keeper.
func (s *Store) keep() {
	k := keeper{store: s, lived: time.Now()}
	defer k.hangUp()
	for after := s.cfg.TTL / 3; sleep.For(s.ctx, after); {
		after = k.beat()
	}
}

// keeper is the state of the keeper's goroutine.
type keeper struct {
	store *Store

	stream pb.Lease_LeaseKeepAliveClient // nil: none
	cut    context.CancelFunc

	lived time.Time // the last sign of life that etcd confirmed
	away  bool      // etcd did not answer since
	told  time.Time // when that was logged last
}

func (k *keeper) hangUp() {
	if k.stream != nil {
		k.cut()
		k.stream = nil
	}
}

// beat tells etcd that we live, and returns when to do so again.
func (k *keeper) beat() time.Duration {
	s := k.store
	err := k.ping()
	lost := errors.Is(err, errLeaseLost)
	if lost {
		s.cfg.Meter.DiscoveryLeaseLost()
		s.log.Error("the lease in etcd is lost, and with it our records: frontends have forgotten this worker; registering again",
			"lease", s.leaseName(), "since_last_sign", time.Since(k.lived))
	}
	if err == nil && (k.away || s.wrong.Load()) || lost {
		err = s.putRight()
	}
	if s.ctx.Err() != nil {
		return 0
	}
	if err != nil {
		k.failed(err)
		return retryAfter
	}
	if k.away || lost {
		s.log.Info("etcd is back and has our records", "after", time.Since(k.lived).Round(time.Millisecond), "lease", s.leaseName())
		s.cfg.Meter.SetDiscoveryUp(true)
	}
	k.away, k.lived = false, time.Now()
	return s.cfg.TTL / 3
}

func (k *keeper) failed(err error) {
	s := k.store
	if !k.away {
		s.cfg.Meter.SetDiscoveryUp(false)
	}
	if !k.away || time.Since(k.told) >= remindAfter {
		s.log.Warn("etcd does not answer; requests go on, but frontends forget this worker when its lease ends",
			"endpoints", strings.Join(s.cfg.Endpoints, ","), "error", err, "since_last_sign", time.Since(k.lived).Round(time.Millisecond), "ttl", s.cfg.TTL)
		k.told = time.Now()
	}
	k.away = true
}

// ping renews the lease; errLeaseLost where there is none any more. The stream is kept, because each new one may cost etcd a
// login.
func (k *keeper) ping() error {
	s := k.store
	limit := max(s.cfg.TTL/3, time.Second)
	if k.stream == nil {
		ctx, cancel := context.WithCancel(s.ctx)
		patience := time.AfterFunc(limit, cancel) // a login may be part of it
		stream, err := s.leases.LeaseKeepAlive(ctx)
		if !patience.Stop() && err == nil {
			err = context.DeadlineExceeded
		}
		if err != nil {
			cancel()
			return fmt.Errorf("keep the lease alive: %w", brief(err))
		}
		k.stream, k.cut = stream, cancel
	}
	patience := time.AfterFunc(limit, k.cut)
	defer patience.Stop()
	err := k.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.lease)})
	var answer *pb.LeaseKeepAliveResponse
	if err == nil {
		answer, err = k.stream.Recv()
	} else {
		_, err = k.stream.Recv() // Send says no more than that the stream is over
	}
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
		k.hangUp()
		return errLeaseLost
	case err != nil:
		k.hangUp()
		return fmt.Errorf("keep the lease alive: %w", brief(err))
	case answer.GetTTL() <= 0:
		return errLeaseLost
	}
	return nil
}

// putRight brings etcd to what it should hold: our lease, all that we own, nothing that is doomed.
func (s *Store) putRight() error {
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	release, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	return s.renew(ctx)
}

// renew is putRight with busy held.
func (s *Store) renew(ctx context.Context) error {
	if err := s.grant(ctx); err != nil {
		return err
	}
	there, err := s.leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: int64(s.lease), Keys: true})
	if err != nil {
		return fmt.Errorf("look at the lease: %w", brief(err))
	}
	bound := make(map[string]struct{}, len(there.GetKeys()))
	for _, key := range there.GetKeys() {
		bound[string(key)] = struct{}{}
	}
	for _, path := range s.inOrder() {
		if _, ok := bound[path]; ok {
			continue
		}
		if _, err = s.client.Put(ctx, path, string(s.owned[path]), clientv3.WithLease(s.lease)); err != nil {
			return fmt.Errorf("write %s again: %w", path, brief(err))
		}
		s.log.Warn("our discovery record had vanished; it is written again", "key", path)
	}
	for path := range s.doomed {
		if err = s.remove(ctx, path); err != nil {
			return fmt.Errorf("remove %s: %w", path, brief(err))
		}
	}
	s.wrong.Store(false)
	return nil
}

// inOrder gives what we own, instances last: whoever sees one may call it, and needs its card.
func (s *Store) inOrder() []string {
	last := string(discovery.Instances) + "/"
	return slices.SortedFunc(maps.Keys(s.owned), func(a, b string) int {
		if x, y := strings.HasPrefix(a, last), strings.HasPrefix(b, last); x != y {
			if x {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
}

func (s *Store) leaseName() string { return fmt.Sprintf("%x", int64(s.lease)) }
