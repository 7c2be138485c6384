package h2_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"remora/internal/vllm/h2"
)

// Streams that the peer has not taken before its GOAWAY start again elsewhere; those that it has run on.
func TestGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns atomic.Int32
		peer := newPeer(t, func(l *link) {
			if conns.Add(1) > 1 {
				for {
					stream, _ := l.request()
					if stream == 0 {
						return
					}
					l.answer(stream, 2)
				}
			}
			first, _ := l.request()
			l.good(first)
			second, _ := l.request()
			l.do(l.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil))
			l.do(l.WriteGoAway(first, http2.ErrCodeNo, nil))
			time.Sleep(time.Second)
			l.data(first, token(1)...)
			l.trailers(first)
			if f := l.next(); f == nil || f.Header().Type != http2.FrameGoAway {
				t.Errorf("%v after the last stream (%d), want GOAWAY", f, second)
			}
			if f := l.next(); f != nil {
				t.Errorf("%v on a connection that is over", f)
			}
		})
		pool := peer.pool(1, nil)
		old, _ := run(t, pool, small())
		synctest.Wait()
		rejected, _ := run(t, pool, small())
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		fresh, _ := run(t, pool, small())
		for name, out := range map[string]*sink{"rejected": rejected, "fresh": fresh} {
			if end := out.wait(); end != ok {
				t.Errorf("%s: %+v", name, end)
			}
			if ids, _ := out.got(); len(ids) != 1 || ids[0] != 2 {
				t.Errorf("%s: %v", name, ids)
			}
		}
		if end := old.wait(); end != ok {
			t.Errorf("old: %+v", end)
		}
		synctest.Wait()
		if conns.Load() != 2 || pool.Connections() != 1 {
			t.Errorf("%d connections made, %d ready", conns.Load(), pool.Connections())
		}
	})
}

// A stream is started once more, not for ever.
func TestRejectedTwice(t *testing.T) {
	for _, reject := range []string{"GOAWAY", "REFUSED_STREAM"} {
		t.Run(reject, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var requests atomic.Int32
				peer := newPeer(t, func(l *link) {
					for {
						stream, _ := l.request()
						if stream == 0 {
							return
						}
						requests.Add(1)
						if reject == "GOAWAY" {
							l.do(l.WriteGoAway(0, http2.ErrCodeNo, nil))
						} else {
							l.do(l.WriteRSTStream(stream, http2.ErrCodeRefusedStream))
						}
					}
				})
				out, _ := run(t, peer.pool(2, nil), small())
				end := out.wait()
				if end.Code != codes.Unavailable || !end.Transport || !end.NotSent || end.Dropped || requests.Load() != 2 {
					t.Errorf("%+v after %d requests", end, requests.Load())
				}
			})
		})
	}
}

// The peer's limit of streams is kept on each connection: the next request goes to another connection while the pool may
// grow, and else waits for its turn, in order.
func TestStreamLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, connections = 2, 3
		hold := make(chan struct{})
		peer := newPeer(t, func(l *link) {
			open := map[uint32]bool{}
			for {
				f := l.next()
				switch f := f.(type) {
				case nil:
					return
				case *http2.MetaHeadersFrame:
					if open[f.StreamID] = true; len(open) > limit {
						t.Errorf("%d streams open", len(open))
					}
				case *http2.DataFrame:
					<-hold
					l.answer(f.StreamID, 1)
					delete(open, f.StreamID)
				}
			}
		}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: limit})
		pool := peer.pool(1, func(c *h2.Config) { c.MaxConnections = connections })
		var sinks []*sink
		var handles []*h2.Stream
		for range 20 {
			out, stream := run(t, pool, small())
			sinks, handles = append(sinks, out), append(handles, stream)
			synctest.Wait()
		}
		if pool.Connections() != connections {
			t.Errorf("%d connections", pool.Connections())
		}
		handles[19].Drop()
		if end := sinks[19].wait(); !end.Dropped || !end.NotSent {
			t.Errorf("dropped in the line: %+v", end)
		}
		close(hold)
		for i, out := range sinks[:19] {
			if end := out.wait(); end != ok {
				t.Errorf("%d: %+v", i, end)
			}
		}
		if synctest.Wait(); pool.Connections() != 1 {
			t.Errorf("%d connections when all is quiet", pool.Connections())
		}
	})
}

// Streams fill the first connections before they use the others, and many of them make the pool grow.
func TestPoolGrowsWithStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		peer := newPeer(t, func(l *link) {
			var open []uint32
			closing := make(chan struct{})
			defer close(closing)
			go func() {
				select {
				case <-hold:
					l.do(http2.NewFramer(l.conn, nil).WritePing(false, [8]byte{1})) // its answer wakes the script
				case <-closing:
				}
			}()
			for {
				switch f := l.next().(type) {
				case nil:
					return
				case *http2.DataFrame:
					open = append(open, f.StreamID)
				case *http2.PingFrame:
					for _, stream := range open {
						l.answer(stream, 1)
					}
					open = nil
				}
			}
		})
		pool := peer.pool(2, func(c *h2.Config) { c.MaxConnections = 4 })
		var sinks []*sink
		for range 2000 {
			out, _ := run(t, pool, small())
			sinks = append(sinks, out)
		}
		synctest.Wait()
		if pool.Connections() != 4 {
			t.Errorf("%d connections for 2000 streams", pool.Connections())
		}
		close(hold)
		for _, out := range sinks {
			if end := out.wait(); end != ok {
				t.Fatalf("%+v", end)
			}
		}
		if synctest.Wait(); pool.Connections() != 2 {
			t.Errorf("%d connections when all is quiet", pool.Connections())
		}
	})
}

// A peer that is silent is pinged after 30 s and given up after 20 more; its streams are told.
func TestKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns atomic.Int32
		peer := newPeer(t, func(l *link) {
			if conns.Add(1) > 1 {
				l.drain()
				return
			}
			stream, _ := l.request()
			l.good(stream)
			for range 5 { // answered
				if f, isPing := l.nextRaw().(*http2.PingFrame); isPing {
					l.do(l.WritePing(true, f.Data))
				}
			}
			for f := l.nextRaw(); f != nil; f = l.nextRaw() {
				continue // reads on, and answers no more
			}
		})
		start := time.Now()
		var heard atomic.Uint64
		out, _ := run(t, peer.pool(1, func(c *h2.Config) { c.Heard = &heard }), small())
		time.Sleep(100 * time.Second) // the answer, and the answers to some pings
		if n := heard.Load(); n < 3 {
			t.Errorf("%d arrivals were counted", n)
		}
		end := func() h2.End {
			<-out.ended
			return out.end
		}()
		if took := time.Since(start); took < 3*time.Minute || took > 4*time.Minute || (took-50*time.Second)%(30*time.Second) != 0 {
			t.Errorf("after %v", took)
		}
		if end.Code != codes.Unavailable || !end.Transport || end.NotSent || !strings.Contains(end.Message, "keepalive") {
			t.Errorf("%+v", end)
		}
	})
}

// nextRaw reads the next frame whatever it is; settings are acknowledged.
func (l *link) nextRaw() http2.Frame {
	for {
		frame, err := l.ReadFrame()
		if err != nil {
			return nil
		}
		if f, isSettings := frame.(*http2.SettingsFrame); isSettings {
			if !f.IsAck() {
				l.do(l.WriteSettingsAck())
			}
			continue
		}
		return frame
	}
}

// A request of which the end was never written is known not to have reached the engine.
func TestNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			l.next() // headers, or nothing
			l.next() // a window's worth of the body
		}) // and the connection is closed
		out, _ := run(t, peer.pool(1, nil), prompt(100_000))
		if end := out.wait(); end.Code != codes.Unavailable || !end.Transport || !end.NotSent {
			t.Errorf("%+v", end)
		}
	})
}

// A request that waits for a connection gets the one that is being made, or its failure.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		peer := newPeer(t, func(l *link) {
			stream, _ := l.request()
			if stream != 0 {
				l.answer(stream, 1)
			}
		})
		pool := peer.pool(1, func(c *h2.Config) {
			dial := c.Dial
			c.Dial = func(ctx context.Context) (net.Conn, error) {
				switch dials.Add(1) {
				case 2:
					time.Sleep(time.Second)
					return nil, errors.New("the second fails")
				case 3, 4:
					return nil, errors.New("so do others")
				}
				return dial(ctx)
			}
		})
		time.Sleep(2 * time.Second)
		first, _ := run(t, pool, small())
		if end := first.wait(); end != ok {
			t.Errorf("%+v", end)
		}
		synctest.Wait() // the peer has closed, the second dial is under way
		start := time.Now()
		second, _ := run(t, pool, small())
		if end := second.wait(); !end.NotSent || !strings.Contains(end.Message, "second fails") || time.Since(start) != time.Second {
			t.Errorf("after %v: %+v", time.Since(start), end)
		}
		third, _ := run(t, pool, small())
		if end := third.wait(); !end.NotSent || time.Since(start) != time.Second {
			t.Errorf("after %v: %+v", time.Since(start), end)
		}
		time.Sleep(time.Second)
		fourth, _ := run(t, pool, small())
		if end := fourth.wait(); end != ok {
			t.Errorf("%+v", end)
		}
	})
}

func TestConnectFails(t *testing.T) {
	tests := map[string]struct {
		greet func(conn net.Conn)
		want  string
	}{
		"nothing":       {func(net.Conn) {}, "no HTTP/2 settings"},
		"HTTP/1":        {func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }, "HTTP port"},
		"TLS":           {func(c net.Conn) { _, _ = c.Write([]byte{21, 3, 1, 0, 2, 2, 70}); c.Close() }, "TLS"},
		"leaves":        {func(c net.Conn) { c.Close() }, "EOF"},
		"another frame": {func(c net.Conn) { _ = http2.NewFramer(c, nil).WritePing(false, [8]byte{}) }, "not SETTINGS"},
		"ack first":     {func(c net.Conn) { _ = http2.NewFramer(c, nil).WriteSettingsAck() }, "not SETTINGS"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := h2.New(h2.Config{
					AttemptTimeout: time.Second, PingInterval: time.Minute, PingTimeout: time.Minute,
					Dial: func(context.Context) (net.Conn, error) {
						near, far := net.Pipe()
						go func() {
							buffer := make([]byte, 1<<10)
							_, _ = far.Read(buffer)
							test.greet(far)
							for {
								if _, err := far.Read(buffer); err != nil {
									return
								}
							}
						}()
						return near, nil
					},
				})
				err := pool.Connect(t.Context())
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %q", err, test.want)
				}
				pool.Close()
				if err = pool.Connect(t.Context()); !errors.Is(err, h2.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			})
		})
	}
}
