package harness

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func serviceBinary(t T, name string) string {
	t.Helper()
	return filepath.Join(located(t, envServices, "bin", "make services"), name)
}

// lasting is a T whose cleanups run when those of its making do: what is started anew in the middle of a test then still ends
// after the workers that were started before, which say goodbye to it.
type lasting struct {
	T

	cleanups *[]func()
}

func newLasting(t T) lasting {
	l := lasting{T: t, cleanups: new([]func())}
	t.Cleanup(func() {
		for _, f := range slices.Backward(*l.cleanups) {
			f()
		}
	})
	return l
}

// Cleanup implements T.
func (l lasting) Cleanup(f func()) { *l.cleanups = append(*l.cleanups, f) }

// Etcd is a real etcd of one member.
type Etcd struct {
	*Process

	Endpoint string // http://host:port

	life         lasting
	data         string // folder
	client, peer int    // ports
	asks         *clientv3.Client
}

// StartEtcd starts an etcd without data and waits until it answers.
func StartEtcd(t T) *Etcd {
	t.Helper()
	e := &Etcd{life: newLasting(t), client: FreePort(t), peer: FreePort(t)}
	e.Endpoint = "http://127.0.0.1:" + strconv.Itoa(e.client)
	var err error
	e.asks, err = clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = e.asks.Close() })
	e.StartAnew(t)
	return e
}

// StartAnew starts it on the same ports, without data.
func (e *Etcd) StartAnew(t T) {
	t.Helper()
	e.data = filepath.Join(t.TempDir(), "etcd")
	e.Restart(t)
}

// Restart starts it, on the same ports and with the data of before.
func (e *Etcd) Restart(t T) {
	t.Helper()
	peer := "http://127.0.0.1:" + strconv.Itoa(e.peer)
	e.Process = Start(e.life, "etcd", nil, AtOnce, serviceBinary(t, "etcd"),
		"--name=one", "--data-dir="+e.data, "--listen-client-urls="+e.Endpoint, "--advertise-client-urls="+e.Endpoint,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=one="+peer, "--log-level=warn")
	Poll(t, "etcd", startTimeout, func() error {
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if _, err := e.asks.Get(ctx, "nothing"); err != nil {
			return e.because(err)
		}
		return nil
	})
}

// Kill ends it without a word.
func (e *Etcd) Kill() {
	e.Signal(syscall.SIGKILL)
	<-e.Done()
}

// Key is a key in etcd.
type Key struct {
	Value string
	Lease int64
}

// Keys gives everything under a prefix.
func (e *Etcd) Keys(t T, prefix string) map[string]Key {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
	defer end()
	answer, err := e.asks.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatalf("keys of etcd: %v", err)
	}
	keys := make(map[string]Key, len(answer.Kvs))
	for _, kv := range answer.Kvs {
		keys[string(kv.GetKey())] = Key{string(kv.GetValue()), kv.GetLease()}
	}
	return keys
}

// Revoke ends a lease, as its time would.
func (e *Etcd) Revoke(t T, lease int64) {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
	defer end()
	if _, err := e.asks.Revoke(ctx, clientv3.LeaseID(lease)); err != nil {
		t.Fatalf("revoke: %v", err)
	}
}

// NATS is a real NATS server.
type NATS struct {
	*Process

	URL string // nats://host:port

	life lasting
	port int
}

// StartNATS starts a server and waits until it listens.
func StartNATS(t T) *NATS {
	t.Helper()
	n := &NATS{life: newLasting(t), port: FreePort(t)}
	n.URL = "nats://127.0.0.1:" + strconv.Itoa(n.port)
	n.Restart(t)
	return n
}

// Restart starts it again on the same port.
func (n *NATS) Restart(t T) {
	t.Helper()
	n.Process = Start(n.life, "nats", nil, AtOnce, serviceBinary(t, "nats-server"), "--addr=127.0.0.1", "--port="+strconv.Itoa(n.port))
	n.WaitLog(t, "Server is ready", startTimeout)
}

// Kill ends it without a word.
func (n *NATS) Kill() {
	n.Signal(syscall.SIGKILL)
	<-n.Done()
}

// UseEtcd has the programs of the deployment find each other through etcd.
func (c *Cluster) UseEtcd(e *Etcd) {
	c.Setenv("DYN_DISCOVERY_BACKEND=etcd", "ETCD_ENDPOINTS="+e.Endpoint)
}

// UseNATS has requests go over NATS.
func (c *Cluster) UseNATS(n *NATS) { c.Setenv("DYN_REQUEST_PLANE=nats", "NATS_SERVER="+n.URL) }
