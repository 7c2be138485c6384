package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"remora/internal/dynamo/discovery"
	"remora/internal/sleep"
)

// Store keeps records in etcd for as long as its lease lives.
type Store struct {
	cfg    Config           // set once
	log    *slog.Logger     // set once
	client *clientv3.Client // set once
	leases pb.LeaseClient   // set once
	lease  clientv3.LeaseID // set once
	ctx    context.Context  // set once; ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the keeper and the watches; Add only under mu while open

	closing sync.Once
	result  error // of Close

	mu     sync.Mutex
	closed bool // guarded by mu

	// busy holds one token for whoever changes records, so that the keeper never brings back what Delete is taking away. It is
	// a channel because a wait for it must end with a context.
	busy   chan struct{}
	owned  map[string][]byte   // guarded by busy; by path, what we created and did not delete
	doomed map[string]struct{} // guarded by busy; paths that must go, and perhaps have not

	wrong atomic.Bool // something is doomed and stayed: the keeper must put it right
}

var _ discovery.Store = (*Store)(nil)

// Open connects and takes out the lease. It tries again while etcd can't be reached, until StartTimeout or until ctx ends.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	cfg.Meter.SetDiscoveryUp(false)
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(cfg.StartTimeout)
	for delay := time.Second; ; delay = min(2*delay, 5*time.Second) {
		s, err := open(ctx, cfg)
		if err == nil {
			s.wg.Go(s.keep)
			cfg.Meter.SetDiscoveryUp(true)
			return s, nil
		}
		left := time.Until(deadline)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("etcd: %w", ctx.Err())
		case hopeless(err):
			return nil, fmt.Errorf("%w: %s: %w", ErrRefused, strings.Join(cfg.Endpoints, ","), err)
		case errors.Is(err, ErrConfig):
			return nil, err
		case left <= 0:
			return nil, fmt.Errorf("%w at %s within %v: %w", ErrUnreachable, strings.Join(cfg.Endpoints, ","), cfg.StartTimeout, err)
		}
		delay = min(delay, left)
		cfg.Log.Warn("etcd can't be reached yet, trying again (ETCD_ENDPOINTS says where it is; --discovery-backend file needs none)",
			"endpoints", cfg.Endpoints, "error", err, "delay", delay, "left", left.Round(time.Second))
		if !sleep.For(ctx, delay) {
			return nil, fmt.Errorf("etcd: %w", ctx.Err())
		}
	}
}

func open(ctx context.Context, cfg Config) (*Store, error) {
	life, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	client, err := cfg.client(life)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	s := &Store{
		cfg: cfg, log: cfg.Log, client: client, leases: clientv3.RetryLeaseClient(client),
		lease: clientv3.LeaseID(cfg.LeaseID),
		ctx:   life, cancel: cancel, busy: make(chan struct{}, 1),
		owned: make(map[string][]byte), doomed: make(map[string]struct{}),
	}
	if err = s.grant(ctx); err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		stop()
		cancel()
		_ = client.Close() // it has nothing to lose
		return nil, err
	}
	return s, nil
}

// path is the key of a record in etcd.
func path(bucket discovery.Bucket, key string) string { return string(bucket) + "/" + key }

// acquire waits for the right to change records.
func (s *Store) acquire(ctx context.Context) (release func(), err error) {
	if s.ctx.Err() != nil {
		return nil, discovery.ErrClosed
	}
	select {
	case s.busy <- struct{}{}:
		return func() { <-s.busy }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("etcd is busy: %w", ctx.Err())
	case <-s.ctx.Done():
		return nil, discovery.ErrClosed
	}
}

// Create implements discovery.Store.
func (s *Store) Create(ctx context.Context, bucket discovery.Bucket, key string, value []byte) error {
	if err := discovery.CheckRecord(ctx, bucket, key, value); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	release, err := s.acquire(ctx)
	if err != nil {
		return fmt.Errorf("create %s: %w", path(bucket, key), brief(err))
	}
	defer release()
	if err = s.create(ctx, path(bucket, key), value); err != nil {
		return fmt.Errorf("create %s: %w", path(bucket, key), brief(err))
	}
	return nil
}

// create is called with busy held.
func (s *Store) create(ctx context.Context, path string, value []byte) error {
	created, err := s.put(ctx, path, value)
	if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) { // the keeper has not noticed yet
		if err = s.renew(ctx); err == nil {
			created, err = s.put(ctx, path, value)
		}
	}
	switch {
	case err != nil:
		s.doomed[path] = struct{}{} // the answer may have been lost, not the call
		s.wrong.Store(true)
		return err
	case !created:
		return discovery.ErrExists
	}
	delete(s.doomed, path)
	s.owned[path] = slices.Clone(value)
	return nil
}

// put writes a record that is not there, or one of ours that should not be. It is called with busy held.
func (s *Store) put(ctx context.Context, path string, value []byte) (created bool, err error) {
	op := clientv3.OpPut(path, string(value), clientv3.WithLease(s.lease))
	if _, ours := s.doomed[path]; ours {
		_, err = s.client.Do(ctx, op)
		return err == nil, err
	}
	answer, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.Version(path), "=", 0)).Then(op).Commit()
	if err != nil {
		return false, err
	}
	return answer.Succeeded, nil
}

// Delete implements discovery.Store.
func (s *Store) Delete(ctx context.Context, bucket discovery.Bucket, key string) error {
	if err := discovery.CheckBucket(ctx, bucket); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	release, err := s.acquire(ctx)
	if err != nil {
		return fmt.Errorf("delete %s: %w", path(bucket, key), brief(err))
	}
	defer release()
	delete(s.owned, path(bucket, key)) // whatever comes of the call, it must not be brought back
	if err = s.remove(ctx, path(bucket, key)); err != nil {
		return fmt.Errorf("delete %s: %w", path(bucket, key), brief(err))
	}
	return nil
}

// remove is called with busy held.
func (s *Store) remove(ctx context.Context, path string) error {
	s.doomed[path] = struct{}{}
	if _, err := s.client.Delete(ctx, path); err != nil {
		s.wrong.Store(true)
		return err
	}
	delete(s.doomed, path)
	return nil
}

// Close implements discovery.Store.
func (s *Store) Close(ctx context.Context) error {
	s.closing.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.cancel()
		s.wg.Wait()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		if ctx.Err() == nil { // one that has ended before does not keep the records from being removed
			defer context.AfterFunc(ctx, cancel)()
		}
		select {
		case s.busy <- struct{}{}: // for good: who would write now would write behind the lease's end
		case <-last.Done(): // calls have the same bound, so this is a matter of microseconds
		}
		_, err := s.leases.LeaseRevoke(last, &pb.LeaseRevokeRequest{ID: int64(s.lease)})
		if err != nil && !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
			s.result = fmt.Errorf("give up the lease in etcd, which ends by itself %v after the last sign of life: %w", s.cfg.TTL, brief(err))
		}
		_ = s.client.Close() // it says that its context has ended
	})
	return s.result
}
