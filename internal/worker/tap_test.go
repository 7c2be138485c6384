package worker

import (
	"bytes"
	"context"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"

	"remora/internal/memnet"
)

// taps is the listener for response connections. It keeps both ends of each, to say and do things on them that the frontend's
// side never does by itself.
type taps struct {
	*memnet.Listener

	dialMu   sync.Mutex // held while a connection is made
	mu       sync.Mutex
	accepted []*tapped // guarded by mu; the frontend's ends
	dialled  []*tapped // guarded by mu; the worker's ends
}

// Accept implements net.Listener.
func (l *taps) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.keep(&l.accepted, conn), nil
}

func (l *taps) dial(ctx context.Context) (net.Conn, error) {
	// One at a time: a new connection in memory starts timers that end at once, and the race detector's part of a bubble does
	// not bear two of those running side by side (Go 1.26 crashes).
	l.dialMu.Lock()
	conn, err := l.DialContext(ctx)
	l.dialMu.Unlock()
	if err != nil {
		return nil, err
	}
	return l.keep(&l.dialled, conn), nil
}

func (l *taps) keep(ends *[]*tapped, conn net.Conn) *tapped {
	end := &tapped{Conn: conn}
	l.mu.Lock()
	defer l.mu.Unlock()
	*ends = append(*ends, end)
	return end
}

// of finds the end that belongs to a subject; nil: nobody has introduced himself with it.
func (l *taps) of(ends *[]*tapped, subject string) *tapped {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range *ends {
		if end.greetedWith(subject) {
			return end
		}
	}
	return nil
}

// tapped is one end of a response connection.
type tapped struct {
	net.Conn

	mu     sync.Mutex
	hello  []byte // guarded by mu; the first bytes, which hold the handshake
	broken error  // guarded by mu; what every write says from now on
}

// maxHello is more than a handshake has.
const maxHello = 256

func (c *tapped) note(p []byte) {
	if room := maxHello - len(c.hello); room > 0 {
		c.hello = append(c.hello, p[:min(len(p), room)]...)
	}
}

func (c *tapped) greetedWith(subject string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.hello, []byte(subject))
}

// breakWrites makes the next write fail, as it does after a reset.
func (c *tapped) breakWrites(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = err
}

// Read implements net.Conn.
func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(p[:n])
	return n, err
}

// Write implements net.Conn.
func (c *tapped) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.note(p)
	err := c.broken
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// count sums the samples of a metric whose labels contain all the given pairs, such as `outcome="released"`.
func (r *rig) count(name string, labels ...string) float64 {
	r.t.Helper()
	answer := httptest.NewRecorder()
	r.svc.metrics.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(r.t.Context(), "GET", "/metrics", nil))
	sum := 0.0
samples:
	for line := range strings.Lines(answer.Body.String()) {
		sample, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if sample != name && !strings.HasPrefix(sample, name+"{") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(sample, label) {
				continue samples
			}
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			r.t.Fatalf("metric line %q: %v", line, err)
		}
		sum += value
	}
	return sum
}

// gone makes one of what an engine may see of an Abort that a drop follows: which is first to end the stream there is a race.
var gone = strings.NewReplacer("aborted sent ended", "aborted gone", "aborted sent dropped", "aborted gone", "aborted dropped", "aborted gone", "aborted ended", "aborted gone")

// saw gives what the engine saw of a request, in order.
func (r *rig) saw(id string) string { return gone.Replace(r.engine.Of(id)) }
