package h2_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"remora/internal/vllm/h2"
)

// A peer that keeps no header table is written to without one.
func TestPeerWithoutHeaderTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			l.ReadMetaHeaders = hpack.NewDecoder(0, nil)
			for stream, _ := l.request(); stream != 0; stream, _ = l.request() {
				l.answer(stream, 1)
			}
		}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
		pool := peer.pool(1, nil)
		for range 3 {
			out, _ := run(t, pool, small())
			if end := out.wait(); end != ok {
				t.Errorf("%+v", end)
			}
		}
	})
}

// An answer whose headers are too long ends by itself; the other answers of its connection do not.
func TestHeadersTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			first, _ := l.request()
			second, _ := l.request()
			l.good(second)
			l.good(first)
			l.block.Reset()
			for range 64 { // the last one is too much; what comes in a frame after that costs the connection
				l.do(l.fields.WriteField(hpack.HeaderField{Name: "grpc-message", Value: strings.Repeat("0", 16<<10), Sensitive: true}))
			}
			block := bytes.Clone(l.block.Bytes())
			l.do(l.WriteHeaders(http2.HeadersFrameParam{StreamID: first, BlockFragment: block[:16000], EndStream: true}))
			for block = block[16000:]; len(block) > 0; {
				n := min(16000, len(block))
				l.do(l.WriteContinuation(first, n == len(block), block[:n]))
				block = block[n:]
			}
			l.data(second, token(1)...)
			l.trailers(second)
			l.drain()
		})
		pool := peer.pool(1, nil)
		first, _ := run(t, pool, small())
		synctest.Wait()
		second, _ := run(t, pool, small())
		if end := first.wait(); end.Code != codes.Internal || !strings.Contains(end.Message, "exceeded limit") || end.Transport {
			t.Errorf("the one: %+v", end)
		}
		if end := second.wait(); end != ok {
			t.Errorf("the other: %+v", end)
		}
	})
}

// A peer that takes connections and closes them is not asked in a loop.
func TestPeerThatCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(*link) { time.Sleep(10 * time.Millisecond) })
		peer.pool(1, nil)
		time.Sleep(time.Minute)
		if n := peer.count(); n < 10 || n > 600 {
			t.Errorf("%d connections in a minute", n)
		}
	})
}

// A connection that has used up its stream ids is replaced; what runs on it runs on.
func TestIDsAreSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			stream, _ := l.request()
			if stream == 0 {
				return
			}
			l.good(stream)
			time.Sleep(time.Second)
			l.data(stream, token(1)...)
			l.trailers(stream)
			l.drain()
		})
		pool := peer.pool(1, nil)
		first, _ := run(t, pool, small())
		synctest.Wait()
		pool.SpendIDs()
		second, _ := run(t, pool, small())
		for i, end := range []h2.End{first.wait(), second.wait()} {
			if end != ok {
				t.Errorf("%d: %+v", i, end)
			}
		}
		if n := peer.count(); n != 2 {
			t.Errorf("%d connections", n)
		}
	})
}
