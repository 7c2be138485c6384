package h2_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"remora/internal/vllm/h2"
)

func TestRequestHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := make(chan string, 2)
		peer := newPeer(t, func(l *link) {
			for range 2 {
				f, ok := l.next().(*http2.MetaHeadersFrame)
				for !ok {
					f, ok = l.next().(*http2.MetaHeadersFrame)
				}
				seen <- fmt.Sprint(f.Fields)
				l.request()
				l.answer(f.StreamID)
			}
			l.drain()
		})
		pool := peer.pool(1, nil)
		rank := uint32(7)
		const common = `[header field ":method" = "POST" header field ":scheme" = "http" header field ":path" = "/vllm.Inference/GenerateStream"` +
			` header field ":authority" = "engine.test:50051" header field "content-type" = "application/grpc"` +
			` header field "user-agent" = "remora" header field "te" = "trailers"`
		for _, test := range []struct {
			rank *uint32
			want string
		}{{nil, common + "]"}, {&rank, common + ` header field "x-data-parallel-rank" = "7"]`}} {
			out := newSink(t)
			pool.Open(new(h2.Stream), small(), test.rank, out)
			if got := <-seen; got != test.want {
				t.Errorf("headers %s, want %s", got, test.want)
			}
			if end := out.wait(); end != ok {
				t.Error(end)
			}
		}
	})
}

// What has arrived together is handed on together, however it was cut into frames.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			stream, _ := l.request()
			l.good(stream)
			var block []byte
			for id := range byte(10) {
				block = append(block, token(id)...)
			}
			// One system call: 10 messages in one frame, then 12 in frames that cut through them.
			framer := http2.NewFramer(collect{&block}, nil)
			whole := slices.Clone(block)
			block = nil
			l.do(framer.WriteData(stream, false, whole))
			more := whole[:96]
			for len(more) > 0 {
				n := min(7, len(more))
				l.do(framer.WriteData(stream, false, more[:n]))
				more = more[n:]
			}
			_, err := l.conn.Write(block)
			l.do(err)
			l.trailers(stream)
			l.drain()
		})
		out, _ := run(t, peer.pool(1, nil), small())
		if end := out.wait(); end != ok {
			t.Error(end)
		}
		if ids, batches := out.got(); len(ids) != 18 || len(batches) != 1 {
			t.Errorf("ids %v in batches of %v", ids, batches)
		}
	})
}

// collect is a writer to a slice.
type collect struct{ into *[]byte }

func (c collect) Write(p []byte) (int, error) {
	*c.into = append(*c.into, p...)
	return len(p), nil
}

// A long prompt keeps to the windows and the frame size of the peer, and another request passes it.
func TestLongPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		request := prompt(128_000)
		size := proto.Size(request) + 5
		const window, frameSize = 1000, 20_000
		peer := newPeer(t, func(l *link) {
			sizes, done, passed := map[uint32]int{}, 0, false
			l.do(l.WriteWindowUpdate(0, 1<<30))
			for done < 2 {
				switch f := l.next().(type) {
				case nil:
					return
				case *http2.MetaHeadersFrame:
					if passed = f.StreamID == 3; passed { // the short one comes although the long one has no window
						if sizes[1] != window {
							t.Errorf("%d bytes came before there was window for them", sizes[1])
						}
						l.do(l.WriteWindowUpdate(1, 70_000))
					}
				case *http2.DataFrame:
					sizes[f.StreamID] += int(f.Length)
					if f.Length > frameSize {
						t.Errorf("a frame of %d bytes", f.Length)
					}
					if !f.StreamEnded() {
						if passed {
							l.do(l.WriteWindowUpdate(1, 70_000))
						}
						continue
					}
					if f.StreamID == 1 && sizes[1] != size {
						t.Errorf("%d bytes arrived, %d were sent", sizes[1], size)
					}
					l.answer(f.StreamID, 1)
					done++
				}
			}
			l.drain()
		}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: frameSize})
		pool := peer.pool(1, nil)
		long, _ := run(t, pool, request)
		synctest.Wait()
		short, _ := run(t, pool, small())
		if end := short.wait(); end != ok {
			t.Error(end)
		}
		if end := long.wait(); end != ok {
			t.Error(end)
		}
	})
}

// A peer that changes its mind about windows in mid-stream, below what was sent already, is obeyed.
func TestWindowTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			got := 0
			for got < 65535 {
				f, isData := l.next().(*http2.DataFrame)
				if isData {
					got += int(f.Length)
				}
			}
			l.do(l.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})) // 65,525 below zero
			l.do(l.WriteWindowUpdate(0, 1<<20))
			l.do(l.WriteWindowUpdate(1, 65535))
			f, _ := l.next().(*http2.DataFrame)
			if f == nil || f.Length != 10 {
				t.Errorf("%v, want 10 bytes", f)
			}
			l.do(l.WriteWindowUpdate(1, 1<<20))
			stream, _ := l.request()
			l.answer(stream, 1)
			l.drain()
		})
		out, _ := run(t, peer.pool(1, nil), prompt(100_000))
		if end := out.wait(); end != ok {
			t.Error(end)
		}
	})
}

// The windows that we give are given back, so that a long answer does not stop; a message larger than the stream's window
// passes, and what is padding counts.
func TestLongAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			stream, _ := l.request()
			l.good(stream)
			text := make([]byte, 1<<20) // one message of a megabyte: an unknown field full of zeros
			message := append([]byte{0, 0, 0x10, 0, 5, 0x1a, 0x80, 0x80, 0x40, 0}, text...)
			message[4] = 4
			message = message[:5+1<<20+4]
			data := slices.Clone(message)
			for range 3 << 10 {
				data = append(data, token(1)...)
			}
			windows := map[uint32]int{0: 4 << 20, stream: 256 << 10}
			for len(data) > 0 {
				n := min(len(data), 1000)
				for windows[0] < n+256 || windows[stream] < n+256 {
					f, isUpdate := l.next().(*http2.WindowUpdateFrame)
					if !isUpdate {
						t.Errorf("waiting for window: %v left, windows %v", len(data), windows)
						return
					}
					windows[f.StreamID] += int(f.Increment)
				}
				l.do(l.WriteDataPadded(stream, false, data[:n], make([]byte, 255)))
				windows[0] -= n + 256
				windows[stream] -= n + 256
				data = data[n:]
			}
			l.trailers(stream)
			l.drain()
		})
		out, _ := run(t, peer.pool(1, nil), small())
		if end := out.wait(); end != ok {
			t.Error(end)
		}
		if ids, _ := out.got(); len(ids) != 3<<10 {
			t.Errorf("%d tokens", len(ids))
		}
	})
}

// A sink that does not return holds back its own stream at its window; what comes for the others passes, also their ends
// and pings, and in the end everything arrives in order.
func TestSlowSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tokens = 100_000 // 1.2 MB
		release := make(chan struct{})
		windows := make(chan int, 1)
		peer := newPeer(t, func(l *link) {
			first, _ := l.request()
			l.good(first)
			conn, window, sent := 4<<20, 256<<10, 0
			for window >= 1200 && sent < tokens {
				var data []byte
				for range 100 {
					data = append(data, token(byte(sent/1000))...)
					sent++
				}
				l.data(first, data...)
				conn, window = conn-len(data), window-len(data)
			}
			windows <- window
			second, _ := l.request() // any window update for the first stream before it would be a mistake
			l.answer(second, 1, 2, 3)
			for sent < tokens {
				for window < 1200 {
					f, isUpdate := l.next().(*http2.WindowUpdateFrame)
					if !isUpdate {
						t.Error("no window")
						return
					}
					if f.StreamID == first {
						window += int(f.Increment)
					}
				}
				var data []byte
				for range 100 {
					data = append(data, token(byte(sent/1000))...)
					sent++
				}
				l.data(first, data...)
				window -= len(data)
			}
			l.trailers(first)
			l.drain()
		})
		pool := peer.pool(1, nil)
		slow := newSink(t)
		stream := new(h2.Stream)
		slow.on = func(int) {
			stream.Yield()
			<-release
		}
		pool.Open(stream, small(), nil, slow)
		if left := <-windows; left > 1200 {
			t.Fatalf("%d bytes of window left", left)
		}
		start := time.Now()
		quick, _ := run(t, pool, small())
		if end := quick.wait(); end != ok {
			t.Error(end)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the neighbour waited for %v", took)
		}
		close(release)
		if end := slow.wait(); end != ok {
			t.Error(end)
		}
		ids, _ := slow.got()
		if len(ids) != tokens {
			t.Fatalf("%d tokens", len(ids))
		}
		for i, id := range ids {
			if id != uint32(byte(i/1000)) {
				t.Fatalf("token %d is %d", i, id)
			}
		}
	})
}

// Sinks that wait in turn stop nobody and lose nothing.
func TestManySlowSinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, tokens = 20, 50
		peer := newPeer(t, func(l *link) {
			for range streams {
				stream, _ := l.request()
				l.good(stream)
			}
			for id := range byte(tokens) {
				for i := range uint32(streams) {
					l.data(1+2*i, token(id)...)
				}
				time.Sleep(time.Millisecond)
			}
			for i := range uint32(streams) {
				l.trailers(1 + 2*i)
			}
			l.drain()
		})
		pool := peer.pool(1, nil)
		var sinks []*sink
		for i := range streams {
			out, stream := newSink(t), new(h2.Stream)
			out.on = func(int) {
				stream.Yield()
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
			}
			sinks = append(sinks, out)
			pool.Open(stream, small(), nil, out)
		}
		for i, out := range sinks {
			if end := out.wait(); end != ok {
				t.Error(i, end)
			}
			ids, _ := out.got()
			for n, id := range ids {
				if id != uint32(n) || len(ids) != tokens {
					t.Fatalf("stream %d: %v", i, ids)
				}
			}
		}
	})
}

// TestRequestIsLetGo: a request may be as large as its media, so it does not stay until its answer is complete, which may take
// minutes.
func TestRequestIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		p := newPeer(t, func(l *link) {
			s, _ := l.request()
			l.good(s)
			<-proceed
			l.trailers(s)
		})
		pool := p.pool(1, nil)
		request := prompt(100)
		held := weak.Make(request)
		got, stream := run(t, pool, request)
		synctest.Wait()
		runtime.GC()
		if held.Value() != nil {
			t.Error("it is still held")
		}
		close(proceed)
		if end := got.wait(); end.Code != codes.OK {
			t.Error(end)
		}
		runtime.KeepAlive(stream)
	})
}
