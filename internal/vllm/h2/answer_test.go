package h2_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"remora/internal/vllm/h2"
)

// Whatever a peer answers ends the stream once, with the code that a gRPC library gives it.
func TestAnswers(t *testing.T) {
	const grpc = "application/grpc"
	open := func(l *link, s uint32) { l.good(s) }
	tests := []struct {
		name    string
		answer  func(l *link, s uint32)
		want    h2.End // the message is a part of the real one
		headers bool
	}{
		{"ok", func(l *link, s uint32) { l.answer(s, 1) }, h2.End{}, true},
		{"trailers only", func(l *link, s uint32) {
			l.headers(s, true, ":status", "200", "content-type", grpc, "grpc-status", "3", "grpc-message", "caf%C3%A9 %zz 100%25 %")
		}, h2.End{Code: codes.InvalidArgument, Message: "café %zz 100% %"}, false},
		{"trailers", func(l *link, s uint32) {
			open(l, s)
			l.headers(s, true, "grpc-status", "13", "grpc-message", "no")
		}, h2.End{Code: codes.Internal, Message: "no"}, true},
		{"a code that nobody knows", func(l *link, s uint32) {
			open(l, s)
			l.headers(s, true, "grpc-status", "99")
		}, h2.End{Code: 99}, true},
		{"a status that is none", func(l *link, s uint32) {
			open(l, s)
			l.headers(s, true, "grpc-status", "x")
		}, h2.End{Code: codes.Unknown, Message: "malformed grpc-status"}, true},
		{"no status", func(l *link, s uint32) {
			open(l, s)
			l.headers(s, true, "x-other", "1")
		}, h2.End{Code: codes.Unknown}, true},
		{"end without trailers", func(l *link, s uint32) {
			open(l, s)
			l.do(l.WriteData(s, true, token(1)))
		}, h2.End{Code: codes.Internal, Message: "without sending trailers"}, true},
		{"end within a message", func(l *link, s uint32) {
			open(l, s)
			l.data(s, token(1)[:9]...)
			l.trailers(s)
		}, h2.End{Code: codes.Internal, Message: "within a message"}, true},
		{"message compressed", func(l *link, s uint32) {
			open(l, s)
			l.data(s, 1, 0, 0, 0, 0)
		}, h2.End{Code: codes.Internal, Message: "compressed"}, true},
		{"message compressed as announced", func(l *link, s uint32) {
			l.headers(s, false, ":status", "200", "content-type", grpc, "grpc-encoding", "gzip")
			l.data(s, 1, 0, 0, 0, 0)
		}, h2.End{Code: codes.Unimplemented, Message: "gzip"}, true},
		{"data first", func(l *link, s uint32) { l.data(s, token(1)...) },
			h2.End{Code: codes.Internal, Message: "before the response headers"}, false},
		{"headers twice", func(l *link, s uint32) { open(l, s); open(l, s) },
			h2.End{Code: codes.Internal, Message: "middle of a stream"}, true},
		{"informational headers before", func(l *link, s uint32) {
			l.headers(s, false, ":status", "103")
			l.answer(s, 1)
		}, h2.End{}, true},
		{"informational headers alone", func(l *link, s uint32) { l.headers(s, true, ":status", "103") },
			h2.End{Code: codes.Internal, Message: "informational"}, false},
		{"not found by a web server", func(l *link, s uint32) { l.headers(s, false, ":status", "404", "content-type", "text/html") },
			h2.End{Code: codes.Unimplemented, Message: `404 (Not Found); transport: received unexpected content-type "text/html"`}, false},
		{"bad gateway", func(l *link, s uint32) { l.headers(s, true, ":status", "502") },
			h2.End{Code: codes.Unavailable, Message: "502", Transport: true}, false},
		{"good answer of another kind", func(l *link, s uint32) { l.headers(s, false, ":status", "200", "content-type", "application/json") },
			h2.End{Code: codes.Unknown, Message: "application/json"}, false},
		{"no HTTP status", func(l *link, s uint32) { l.headers(s, false, "x-a", "b") },
			h2.End{Code: codes.Internal, Message: "missing HTTP status"}, false},
		{"content type with a suffix", func(l *link, s uint32) {
			l.headers(s, false, ":status", "200", "content-type", "application/grpc+proto")
			l.trailers(s)
		}, h2.End{}, true},
		{"long error text", func(l *link, s uint32) {
			open(l, s)
			l.continued(s, "grpc-status", "3", "grpc-message", strings.Repeat("x", 500_000))
		}, h2.End{Code: codes.InvalidArgument, Message: strings.Repeat("x", 500_000)}, true},
		{"window of nothing", func(l *link, s uint32) {
			l.AllowIllegalWrites = true
			l.do(l.WriteWindowUpdate(s, 0))
		}, h2.End{Code: codes.Internal}, false},
		{"window too wide", func(l *link, s uint32) { l.do(l.WriteWindowUpdate(s, 1<<31-1)) },
			h2.End{Code: codes.Internal, Message: "more window"}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				peer := newPeer(t, func(l *link) {
					stream, _ := l.request()
					test.answer(l, stream)
					l.AllowIllegalWrites = false
					stream, _ = l.request() // the connection is as good as before
					l.answer(stream, 5)
					l.drain()
				})
				pool := peer.pool(1, nil)
				out, _ := run(t, pool, small())
				end := out.wait()
				if !strings.Contains(end.Message, test.want.Message) || (test.want.Message == "" && end.Message != "" && end.Code != codes.Internal) {
					t.Errorf("message %.200q, want %.200q", end.Message, test.want.Message)
				}
				end.Message, test.want.Message = "", ""
				if end != test.want || out.headers != test.headers {
					t.Errorf("end %+v, headers %v, want %+v, %v", end, out.headers, test.want, test.headers)
				}
				next, _ := run(t, pool, small())
				if end = next.wait(); end != ok || peer.count() != 1 {
					t.Errorf("the next request: %+v, on %d connections", end, peer.count())
				}
			})
		})
	}
}

// continued writes a header block that needs continuations, and ends the stream.
func (l *link) continued(stream uint32, fields ...string) {
	l.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		l.do(l.fields.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	block := bytes.Clone(l.block.Bytes())
	n := min(len(block), 16000)
	l.do(l.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:n], EndStream: true, EndHeaders: n == len(block)}))
	for block = block[n:]; len(block) > 0; block = block[n:] {
		n = min(len(block), 16000)
		l.do(l.WriteContinuation(stream, n == len(block), block[:n]))
	}
}

// What breaks the rules of the connection ends it, with the code that says why; the streams are told.
// A sink that writes puts together what arrived together, and keeps nothing back that nothing follows.
func TestMore(t *testing.T) {
	for _, tc := range []struct {
		name   string
		pieces []func(l *link, s uint32)
		want   []bool
	}{
		{"all at once", []func(l *link, s uint32){func(l *link, s uint32) { l.answer(s, 1, 2) }}, []bool{true, true}},
		{"headers first", []func(l *link, s uint32){
			func(l *link, s uint32) { l.good(s) },
			func(l *link, s uint32) { l.data(s, token(1)...); l.trailers(s) },
		}, []bool{false, true}},
		{"trailers last", []func(l *link, s uint32){
			func(l *link, s uint32) { l.good(s); l.data(s, token(1)...) },
			func(l *link, s uint32) { l.trailers(s) },
		}, []bool{true, false}},
		{"headers and the beginning of a message", []func(l *link, s uint32){
			func(l *link, s uint32) { l.good(s); l.data(s, token(1)[:9]...) },
			func(l *link, s uint32) { l.data(s, token(1)[9:]...); l.trailers(s) },
		}, []bool{false, true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, func(l *link) {
					stream, _ := l.request()
					for _, piece := range tc.pieces {
						synctest.Wait()
						l.together(func() { piece(l, stream) })
					}
					l.drain()
				})
				s := newSink(t)
				p.pool(1, nil).Open(new(h2.Stream), small(), nil, s)
				if end := s.wait(); end != (h2.End{}) {
					t.Errorf("ended %+v", end)
				}
				if !slices.Equal(s.more, tc.want) {
					t.Errorf("more: %v, want %v", s.more, tc.want)
				}
			})
		})
	}
}

func TestBrokenConnection(t *testing.T) {
	tests := []struct {
		name string
		do   func(l *link, s uint32)
		code http2.ErrCode
	}{
		{"data of a stream that never was", func(l *link, s uint32) { l.data(s+2, 0) }, http2.ErrCodeProtocol},
		{"data of a stream of the server", func(l *link, _ uint32) { l.data(2, 0) }, http2.ErrCodeProtocol},
		{"headers of a stream that never was", func(l *link, s uint32) { l.good(s + 4) }, http2.ErrCodeProtocol},
		{"push", func(l *link, s uint32) {
			l.do(l.WritePushPromise(http2.PushPromiseParam{StreamID: s, PromiseID: 2, EndHeaders: true}))
		}, http2.ErrCodeProtocol},
		{"window of the connection too wide", func(l *link, _ uint32) { l.do(l.WriteWindowUpdate(0, 1<<31-1)) }, http2.ErrCodeFlowControl},
		{"initial window too wide", func(l *link, s uint32) {
			l.do(l.WriteWindowUpdate(s, 1<<30))
			l.do(l.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}))
		}, http2.ErrCodeFlowControl},
		{"settings out of range", func(l *link, _ uint32) {
			l.do(l.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}))
		}, http2.ErrCodeProtocol},
		{"frame too large", func(l *link, s uint32) { l.data(s, make([]byte, 16385)...) }, http2.ErrCodeFrameSize},
		{"header block that is none", func(l *link, s uint32) {
			l.do(l.WriteHeaders(http2.HeadersFrameParam{StreamID: s, BlockFragment: []byte{0xff, 0xff, 0xff}, EndHeaders: true}))
		}, http2.ErrCodeCompression},
		{"GOAWAY that takes back its word", func(l *link, s uint32) {
			l.do(l.WriteGoAway(s, http2.ErrCodeNo, nil))
			l.do(l.WriteGoAway(s+2, http2.ErrCodeNo, nil))
		}, http2.ErrCodeProtocol},
		{"headers without end", func(l *link, s uint32) {
			l.block.Reset()
			for i := range 100_000 {
				l.do(l.fields.WriteField(hpack.HeaderField{Name: fmt.Sprint("x-", i), Value: strings.Repeat("y", 50)}))
			}
			block := bytes.Clone(l.block.Bytes())
			_ = l.WriteHeaders(http2.HeadersFrameParam{StreamID: s, BlockFragment: block[:16000]})
			for block = block[16000:]; len(block) > 16000; block = block[16000:] {
				if l.WriteContinuation(s, false, block[:16000]) != nil {
					return // it has been cut off, as it should
				}
			}
			t.Error("five megabytes of headers were taken")
		}, http2.ErrCodeProtocol},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				codeSeen := make(chan http2.ErrCode, 1)
				peer := newPeer(t, func(l *link) {
					stream, _ := l.request()
					if stream == 0 {
						return
					}
					reading := make(chan struct{})
					go func() {
						defer close(reading)
						for f := l.next(); f != nil; f = l.next() {
							if f, isGoAway := f.(*http2.GoAwayFrame); isGoAway {
								codeSeen <- f.ErrCode
							}
						}
					}()
					test.do(l, stream)
					<-reading
				})
				out, _ := run(t, peer.pool(1, nil), small())
				if end := out.wait(); end.Code != codes.Unavailable || !end.Transport || end.NotSent || end.Dropped {
					t.Errorf("%+v", end)
				}
				if code := <-codeSeen; code != test.code {
					t.Errorf("the peer was told %v, want %v", code, test.code)
				}
			})
		})
	}
}

// A peer that sends more than a stream's window loses the stream, and the connection lives.
func TestStreamWindowOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		peer := newPeer(t, func(l *link) {
			stream, _ := l.request()
			l.good(stream)
			for range 17 {
				l.data(stream, make([]byte, 16384)...)
			}
			if f, isReset := l.next().(*http2.RSTStreamFrame); !isReset || f.ErrCode != http2.ErrCodeFlowControl {
				t.Errorf("%v, want a reset", f)
			}
			close(block)
			l.drain()
		})
		out := newSink(t)
		stream := new(h2.Stream)
		out.on = func(int) {
			stream.Yield()
			<-block
		}
		peer.pool(1, nil).Open(stream, small(), nil, out)
		if end := out.wait(); end.Code != codes.Internal || end.Transport || !strings.Contains(end.Message, "window") {
			t.Errorf("%+v", end)
		}
	})
}

// A peer that answers before it has the whole request gets no more of it, and what it said counts.
func TestAnswerBeforeTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			f := l.next()
			for f != nil && f.Header().Type != http2.FrameHeaders {
				f = l.next()
			}
			if f == nil {
				return
			}
			l.headers(f.Header().StreamID, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "8", "grpc-message", "full")
			for f != nil {
				if reset, isReset := f.(*http2.RSTStreamFrame); isReset {
					if reset.ErrCode != http2.ErrCodeNo {
						t.Errorf("reset with %v", reset.ErrCode)
					}
					break
				}
				if data, isData := f.(*http2.DataFrame); isData && data.StreamEnded() {
					t.Error("the whole request came, without window for it")
				}
				f = l.next()
			}
			l.do(l.WriteWindowUpdate(0, 1<<20)) // of the connection: what was sent has used it up
			stream, _ := l.request()
			l.answer(stream, 1)
			l.drain()
		})
		pool := peer.pool(1, nil)
		out, _ := run(t, pool, prompt(100_000))
		if end := out.wait(); end != (h2.End{Code: codes.ResourceExhausted, Message: "full"}) {
			t.Errorf("%+v", end)
		}
		next, _ := run(t, pool, small())
		if end := next.wait(); end != ok {
			t.Errorf("the next request: %+v", end)
		}
	})
}

// What the peer takes back after it has answered is not sent again, and may have been done.
func TestRefusedAfterTheHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			stream, _ := l.request()
			l.good(stream)
			l.do(l.WriteRSTStream(stream, http2.ErrCodeRefusedStream))
			if stream, _ = l.request(); stream != 0 {
				t.Error("the request came twice")
			}
		})
		out, _ := run(t, peer.pool(1, nil), small())
		if end := out.wait(); end.Code != codes.Unavailable || !end.Transport || end.NotSent {
			t.Errorf("%+v", end)
		}
	})
}

// A peer that makes us answer and does not read is left.
func TestPingFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newPeer(t, func(l *link) {
			l.request()
			for range 1 << 20 {
				if l.WritePing(false, [8]byte{}) != nil {
					return
				}
			}
			t.Error("a million pings were taken")
		})
		out, _ := run(t, peer.pool(1, nil), small())
		if end := out.wait(); end.Code != codes.Unavailable || !strings.Contains(end.Message, "does not read") {
			t.Errorf("%+v", end)
		}
	})
}
