package etcd

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"remora/internal/memnet"
)

// fake is an etcd of one member as far as a store needs it: keys, leases that end, and watches.
type fake struct {
	etcdserverpb.UnimplementedKVServer
	etcdserverpb.UnimplementedLeaseServer
	etcdserverpb.UnimplementedWatchServer

	mu       sync.Mutex
	up       *member // guarded by mu; nil: away
	refuse   error   // guarded by mu; what every call is answered
	swallow  bool    // guarded by mu; the next change is made, and its answer lost
	revision int64
	compact  int64 // guarded by mu; older revisions can't be watched
	keys     map[string]*mvccpb.KeyValue
	leases   map[int64]*lease
	watches  map[*fakeWatch]struct{}
	history  []*mvccpb.Event
	pings    int
}

type lease struct {
	ttl   int64
	timer *time.Timer
}

// member is one run of the server.
type member struct {
	server   *grpc.Server
	listener *memnet.Listener
	done     chan struct{}
}

type fakeWatch struct {
	prefix string
	events chan *mvccpb.Event
}

// inBubble runs a test with a fake etcd in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, f *fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := new(fake)
		f.forget()
		f.start()
		defer f.stop()
		test(t, f)
	})
}

// forget loses all data.
func (f *fake) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.leases {
		l.timer.Stop()
	}
	f.keys, f.leases = make(map[string]*mvccpb.KeyValue), make(map[int64]*lease)
	f.watches, f.history, f.revision = make(map[*fakeWatch]struct{}), nil, 1
}

func (f *fake) start() {
	m := &member{
		listener: memnet.Listen(64 << 10), done: make(chan struct{}),
		server: grpc.NewServer(grpc.UnaryInterceptor(f.unary)),
	}
	etcdserverpb.RegisterKVServer(m.server, f)
	etcdserverpb.RegisterLeaseServer(m.server, f)
	etcdserverpb.RegisterWatchServer(m.server, f)
	go func() {
		defer close(m.done)
		_ = m.server.Serve(m.listener)
	}()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.up = m
}

// stop ends the server and its connections; leases go on to end.
func (f *fake) stop() {
	f.mu.Lock()
	m := f.up
	f.up = nil
	f.mu.Unlock()
	if m != nil {
		m.server.Stop()
		<-m.done
	}
}

func (f *fake) dial(ctx context.Context, _ string) (net.Conn, error) {
	f.mu.Lock()
	m := f.up
	f.mu.Unlock()
	if m == nil {
		return nil, errors.New("connection refused")
	}
	return m.listener.DialContext(ctx)
}

func (f *fake) unary(ctx context.Context, in any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	f.mu.Lock()
	refuse := f.refuse
	_, reads := in.(*etcdserverpb.RangeRequest)
	swallow := f.swallow && !reads
	if swallow {
		f.swallow = false
	}
	f.mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	out, err := handle(ctx, in)
	if swallow {
		return nil, status.Error(codes.Unknown, "the answer is lost")
	}
	return out, err
}

func (f *fake) header() *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{Revision: f.revision}
}

// write puts or, with a nil value, deletes; called with mu held.
func (f *fake) write(key string, value []byte, lease int64) error {
	if _, ok := f.leases[lease]; lease != 0 && !ok {
		return rpctypes.ErrGRPCLeaseNotFound
	}
	old := f.keys[key]
	if value == nil && old == nil {
		return nil
	}
	f.revision++
	e := &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: f.revision}}
	if value == nil {
		delete(f.keys, key)
	} else {
		e.Type, e.Kv.Value, e.Kv.Lease, e.Kv.Version = mvccpb.Event_PUT, value, lease, 1
		if old != nil {
			e.Kv.Version = old.GetVersion() + 1
		}
		f.keys[key] = e.GetKv()
	}
	f.history = append(f.history, e)
	for w := range f.watches {
		if strings.HasPrefix(key, w.prefix) {
			w.events <- e
		}
	}
	return nil
}

// end ends a lease with its keys; called with mu held.
func (f *fake) end(id int64) {
	if l := f.leases[id]; l != nil {
		l.timer.Stop()
	}
	delete(f.leases, id)
	for _, key := range f.boundTo(id) {
		_ = f.write(key, nil, 0)
	}
}

func (f *fake) boundTo(id int64) (keys []string) {
	for key, kv := range f.keys {
		if kv.GetLease() == id {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// state gives the keys with their values and leases, one a line.
func (f *fake) state() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for key, kv := range f.keys {
		lines = append(lines, key+" "+string(kv.GetValue())+" "+slog.Int64Value(kv.GetLease()).String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (f *fake) set(change func(f *fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// Range implements the reading of a prefix.
func (f *fake) Range(_ context.Context, in *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &etcdserverpb.RangeResponse{Header: f.header()}
	for key, kv := range f.keys {
		if strings.HasPrefix(key, string(in.GetKey())) {
			out.Kvs = append(out.Kvs, kv)
		}
	}
	slices.SortFunc(out.GetKvs(), func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.GetKey(), b.GetKey()) })
	return out, nil
}

// Put implements the write of one key.
func (f *fake) Put(_ context.Context, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.write(string(in.GetKey()), in.GetValue(), in.GetLease()); err != nil {
		return nil, err
	}
	return &etcdserverpb.PutResponse{Header: f.header()}, nil
}

// DeleteRange implements the removal of one key.
func (f *fake) DeleteRange(_ context.Context, in *etcdserverpb.DeleteRangeRequest) (*etcdserverpb.DeleteRangeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.write(string(in.GetKey()), nil, 0)
	return &etcdserverpb.DeleteRangeResponse{Header: f.header()}, nil
}

// Txn implements "if version(key) = 0 then put".
func (f *fake) Txn(_ context.Context, in *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	put := in.GetSuccess()[0].GetRequestPut()
	compare := in.GetCompare()[0]
	if compare.GetTarget() != etcdserverpb.Compare_VERSION || compare.GetVersion() != 0 || !bytes.Equal(compare.GetKey(), put.GetKey()) {
		return nil, status.Error(codes.InvalidArgument, "the fake knows one transaction only")
	}
	if f.keys[string(put.GetKey())] != nil {
		return &etcdserverpb.TxnResponse{Header: f.header()}, nil
	}
	if err := f.write(string(put.GetKey()), put.GetValue(), put.GetLease()); err != nil {
		return nil, err
	}
	return &etcdserverpb.TxnResponse{Header: f.header(), Succeeded: true}, nil
}

// LeaseGrant implements etcdserverpb.LeaseServer.
func (f *fake) LeaseGrant(_ context.Context, in *etcdserverpb.LeaseGrantRequest) (*etcdserverpb.LeaseGrantResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := in.GetID()
	if f.leases[id] != nil {
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	f.leases[id] = &lease{ttl: in.GetTTL(), timer: time.AfterFunc(time.Duration(in.GetTTL())*time.Second, func() {
		f.set(func(f *fake) { f.end(id) })
	})}
	return &etcdserverpb.LeaseGrantResponse{Header: f.header(), ID: id, TTL: in.GetTTL()}, nil
}

// LeaseRevoke implements etcdserverpb.LeaseServer.
func (f *fake) LeaseRevoke(_ context.Context, in *etcdserverpb.LeaseRevokeRequest) (*etcdserverpb.LeaseRevokeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leases[in.GetID()] == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	f.end(in.GetID())
	return &etcdserverpb.LeaseRevokeResponse{Header: f.header()}, nil
}

// LeaseKeepAlive implements etcdserverpb.LeaseServer.
func (f *fake) LeaseKeepAlive(stream grpc.BidiStreamingServer[etcdserverpb.LeaseKeepAliveRequest, etcdserverpb.LeaseKeepAliveResponse]) error {
	for {
		in, err := stream.Recv()
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.pings++
		out := &etcdserverpb.LeaseKeepAliveResponse{Header: f.header(), ID: in.GetID()}
		if l := f.leases[in.GetID()]; l != nil {
			l.timer.Reset(time.Duration(l.ttl) * time.Second)
			out.TTL = l.ttl
		}
		f.mu.Unlock()
		if err = stream.Send(out); err != nil {
			return err
		}
	}
}

// LeaseTimeToLive implements etcdserverpb.LeaseServer.
func (f *fake) LeaseTimeToLive(_ context.Context, in *etcdserverpb.LeaseTimeToLiveRequest) (*etcdserverpb.LeaseTimeToLiveResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &etcdserverpb.LeaseTimeToLiveResponse{Header: f.header(), ID: in.GetID(), TTL: -1}
	if l := f.leases[in.GetID()]; l != nil {
		out.TTL = l.ttl
	}
	for _, key := range f.boundTo(in.GetID()) {
		out.Keys = append(out.Keys, []byte(key))
	}
	return out, nil
}

// Watch implements one watch a stream, from a revision on.
func (f *fake) Watch(stream grpc.BidiStreamingServer[etcdserverpb.WatchRequest, etcdserverpb.WatchResponse]) error {
	in, err := stream.Recv()
	if err != nil {
		return err
	}
	create := in.GetCreateRequest()
	w := &fakeWatch{prefix: string(create.GetKey()), events: make(chan *mvccpb.Event, 1000)}
	f.mu.Lock()
	header, old := f.header(), create.GetStartRevision() < f.compact
	if !old {
		for _, e := range f.history {
			if e.GetKv().GetModRevision() >= create.GetStartRevision() && strings.HasPrefix(string(e.GetKv().GetKey()), w.prefix) {
				w.events <- e
			}
		}
		f.watches[w] = struct{}{}
	}
	f.mu.Unlock()
	defer f.set(func(f *fake) { delete(f.watches, w) })
	if err = stream.Send(&etcdserverpb.WatchResponse{Header: header, Created: true}); err != nil {
		return err
	}
	if old {
		return stream.Send(&etcdserverpb.WatchResponse{Header: header, Canceled: true, CompactRevision: f.compact})
	}
	for {
		select {
		case e := <-w.events:
			if err = stream.Send(&etcdserverpb.WatchResponse{
				Header: &etcdserverpb.ResponseHeader{Revision: e.GetKv().GetModRevision()}, Events: []*mvccpb.Event{e},
			}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}
