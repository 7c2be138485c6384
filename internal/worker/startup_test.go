package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// TestNothingBeforeTheEngine: no record and no readiness until the engine serves, whatever keeps it.
func TestNothingBeforeTheEngine(t *testing.T) {
	for name, row := range map[string]struct{ away, back func(e *vllmtest.Engine) }{
		"absent": {(*vllmtest.Engine).Down, (*vllmtest.Engine).Up},
		"not serving": {
			func(e *vllmtest.Engine) {
				e.SetHealth(vllmtest.InferenceService, healthpb.HealthCheckResponse_NOT_SERVING)
			},
			func(e *vllmtest.Engine) {
				e.SetHealth(vllmtest.InferenceService, healthpb.HealthCheckResponse_SERVING)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, protocol.Aggregated, func(w *whole) { row.away(w.engine) }, func(w *whole) {
				<-after(20 * time.Second)
				if got := w.published(discovery.Instances) + w.published(discovery.ModelCards); got != "" {
					t.Errorf("published: %s", got)
				}
				if code, _ := w.get("/health"); code != 503 {
					t.Errorf("/health says %d", code)
				}
				if code, _ := w.get("/live"); code != 200 {
					t.Errorf("/live says %d", code)
				}
				row.back(w.engine)
				target := w.target()
				if code, _ := w.get("/health"); code != 200 {
					t.Errorf("/health says %d after the registration", code)
				}
				if got := w.mustSend(target, "x").read(); got != "1 2 3 length final" {
					t.Errorf("read %q", got)
				}
			})
		})
	}
}

// TestStopDuringStart returns promptly and without an error, in each phase of the start.
func TestStopDuringStart(t *testing.T) {
	for name, prepare := range map[string]func(w *whole){
		"engine absent": func(w *whole) { w.engine.Down() },
		"not serving": func(w *whole) {
			w.engine.SetHealth(vllmtest.ControlService, healthpb.HealthCheckResponse_NOT_SERVING)
		},
		"discovery hangs": func(w *whole) {
			w.engine.Set(func(b *vllmtest.Behaviour) {
				b.Control = func(ctx context.Context, _ string) error {
					<-ctx.Done()
					return ctx.Err()
				}
			})
		},
		"second look": func(w *whole) {
			w.engine.SetHealth(vllmtest.InferenceService, healthpb.HealthCheckResponse_NOT_SERVING)
		},
		"frozen": func(w *whole) { w.engine.Freeze() },
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, protocol.Aggregated, prepare, func(w *whole) {
				<-after(3 * time.Second)
				began := time.Now()
				w.stop()
				w.ends(nil, began, 0, time.Second)
				w.engine.Thaw()
			})
		})
	}
}

// TestStartFails: each reason gives an error that names what to do, nothing stays published, nothing stays open.
func TestStartFails(t *testing.T) {
	model := func(change func(m *pb.ModelInfo)) func(w *whole) {
		return func(w *whole) { w.engine.Set(func(b *vllmtest.Behaviour) { change(b.Model) }) }
	}
	for name, row := range map[string]struct {
		prepare func(w *whole)
		want    []string // parts of the error
	}{
		"engine absent": {func(w *whole) { w.engine.Down() }, []string{"127.0.0.1:1", "1m0s", "refused"}},
		"engine not serving": {
			func(w *whole) {
				w.engine.SetHealth(vllmtest.ControlService, healthpb.HealthCheckResponse_NOT_SERVING)
			},
			[]string{"vllm.Control", "127.0.0.1:1", "NOT_SERVING"},
		},
		"discovery fails": {func(w *whole) {
			w.engine.Set(func(b *vllmtest.Behaviour) {
				b.Control = func(context.Context, string) error { return status.Error(codes.Internal, "no model yet") }
			})
		}, []string{"GetModelInfo", "no model yet"}},
		"another model at the second look": {func(w *whole) {
			looks := 0
			w.engine.Set(func(b *vllmtest.Behaviour) {
				b.Control = func(_ context.Context, method string) error {
					if method == "GetModelInfo" {
						if looks++; looks == 2 {
							w.engine.Set(func(b *vllmtest.Behaviour) { b.Model.ServedModelName = "other" })
						}
					}
					return nil
				}
			})
		}, []string{"changed during the start", "served_model_name", "tiny", "other"}},
		"model folder missing":  {model(func(m *pb.ModelInfo) { m.ModelId = "/no/such/model" }), []string{"/no/such/model", "mount the model"}},
		"hub id not in cache":   {model(func(m *pb.ModelInfo) { m.ModelId = "acme/none-of-these" }), []string{"acme/none-of-these", "hf download"}},
		"tokenizer missing":     {func(w *whole) { w.strip("tokenizer.json") }, []string{"tokenizer"}},
		"config missing":        {func(w *whole) { w.strip("config.json") }, []string{"config.json"}},
		"request plane is busy": {func(w *whole) { w.cfg.Listen = busyPort }, []string{"127.0.0.1:0", "DYN_TCP_RPC_PORT", "in use"}},
		"bad name":              {func(w *whole) { w.cfg.Address.Namespace = "Not This" }, []string{"namespace", "Not This"}},
		"bad paths":             {func(w *whole) { w.cfg.HealthPath = "/metrics" }, []string{"/metrics"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, protocol.Aggregated, row.prepare, func(w *whole) {
				<-w.done
				for _, part := range row.want {
					if w.err == nil || !strings.Contains(w.err.Error(), part) {
						t.Fatalf("got %v, want it to say %q", w.err, part)
					}
				}
				if strings.Contains(w.err.Error(), "\n") {
					t.Errorf("more than a line: %v", w.err)
				}
				if _, err := w.system.Dial(); err == nil {
					t.Error("the status server's listener is still open")
				}
				if err := w.cfg.Store.Create(t.Context(), discovery.Instances, "a/b/c/1", []byte("{}")); !errors.Is(err, discovery.ErrClosed) {
					t.Errorf("the store is still open: %v", err)
				}
			})
		})
	}
}

// strip removes a file from the model's folder.
func (w *whole) strip(name string) {
	w.engine.Set(func(b *vllmtest.Behaviour) {
		if err := os.Remove(filepath.Join(b.Model.GetModelId(), name)); err != nil {
			w.t.Error(err)
		}
	})
}

func busyPort(network, _ string) (net.Listener, error) {
	return nil, &net.OpError{Op: "listen", Net: network, Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
}

// failingStore fails to create in one bucket.
type failingStore struct {
	discovery.Store

	bucket discovery.Bucket
}

func (s failingStore) Create(ctx context.Context, bucket discovery.Bucket, key string, value []byte) error {
	if bucket == s.bucket {
		return errors.New("read-only file system")
	}
	return s.Store.Create(ctx, bucket, key, value)
}

// TestPublishFails: half a registration is taken back.
func TestPublishFails(t *testing.T) {
	for _, bucket := range []discovery.Bucket{discovery.ModelCards, discovery.Instances} {
		t.Run(filepath.Base(string(bucket)), func(t *testing.T) {
			inWhole(t, protocol.Aggregated, func(w *whole) { w.cfg.Store = failingStore{w.cfg.Store, bucket} }, func(w *whole) {
				<-w.done
				if w.err == nil || !strings.Contains(w.err.Error(), "publish the ") || !strings.Contains(w.err.Error(), "read-only file system") {
					t.Errorf("got %v", w.err)
				}
			})
		})
	}
}

// TestListenerBreaks: a request plane that can't accept any more ends the worker, which says why.
func TestListenerBreaks(t *testing.T) {
	var plane net.Listener
	inWhole(t, protocol.Aggregated, func(w *whole) {
		listen := w.cfg.Listen
		w.cfg.Listen = func(network, address string) (net.Listener, error) {
			l, err := listen(network, address)
			if plane == nil {
				plane = l
			}
			return l, err
		}
	}, func(w *whole) {
		w.target()
		if err := plane.Close(); err != nil {
			t.Fatal(err)
		}
		<-w.done
		if w.err == nil || !strings.Contains(w.err.Error(), "closed") {
			t.Errorf("got %v", w.err)
		}
	})
}

// TestAdvertisedAddress: a host that stands for all of them is bound; what is advertised can be dialled.
func TestAdvertisedAddress(t *testing.T) {
	for bound, want := range map[string]string{
		"127.0.0.1:3": "127.0.0.1:3/", "[::1]:3": "[::1]:3/", "0.0.0.0:3": net.JoinHostPort(localHost(), "3") + "/", "[::]:3": net.JoinHostPort(localHost(), "3") + "/",
	} {
		t.Run(bound, func(t *testing.T) {
			inWhole(t, protocol.Aggregated, func(w *whole) {
				host, _, err := net.SplitHostPort(bound)
				if err != nil {
					t.Fatal(err)
				}
				w.cfg.Host = host
				listen := w.cfg.Listen
				w.cfg.Listen = func(network, address string) (net.Listener, error) {
					if address != net.JoinHostPort(host, "0") {
						t.Errorf("listens on %s", address)
					}
					l, err := listen(network, address)
					plane, ok := l.(addressed)
					if !ok {
						return nil, errors.New("another listener")
					}
					plane.addr = bound
					return plane, err
				}
			}, func(w *whole) {
				if got := w.target(); !strings.HasPrefix(got, want) {
					t.Errorf("advertised %s, want %s...", got, want)
				}
			})
		})
	}
}

// TestMetricsAreServed after requests of several ends, under their stock names.
func TestMetricsAreServed(t *testing.T) {
	inWhole(t, protocol.Aggregated, nil, func(w *whole) {
		target := w.target()
		w.mustSend(target, "good").read()
		w.engine.Script("bad", vllmtest.Status(codes.Internal, "no"))
		w.mustSend(target, "bad").read()
		w.engine.Script("left", vllmtest.Silence())
		left := w.mustSend(target, "left")
		synctest.Wait()
		left.Kill()
		synctest.Wait()
		code, body := w.get("/metrics")
		if code != 200 {
			t.Fatalf("status %d", code)
		}
		labels := `{dynamo_component="c",dynamo_endpoint="e",`
		for _, want := range []string{
			"dynamo_component_requests_total" + labels, "dynamo_component_request_bytes_total" + labels, "dynamo_component_response_bytes_total" + labels,
			"dynamo_component_cancellation_total" + labels, "dynamo_component_errors_total" + labels, "dynamo_component_inflight_requests" + labels,
			"dynamo_component_request_duration_seconds_bucket" + labels, "dynamo_component_uptime_seconds{", "dynamo_component_model_load_time_seconds{",
			"dynamo_work_handler_network_transit_seconds_bucket{", "dynamo_work_handler_time_to_first_response_seconds_count 2",
			"dynamo_work_handler_pool_capacity 20", "dynamo_work_handler_queue_capacity 20",
			`remora_requests_terminal_total{terminal="finished"} 1`, `remora_requests_terminal_total{terminal="error"} 1`,
			`remora_requests_terminal_total{terminal="cancelled"} 1`, "remora_engine_up 1",
		} {
			if !strings.Contains(body, "\n"+want) {
				t.Errorf("no %s", want)
			}
		}
	})
}

// TestLogLines: each abnormal thing is logged once with its request, a good answer not at all, and nothing for each token.
func TestLogLines(t *testing.T) {
	lines := func(tokens int, script ...vllmtest.Step) (loud []string, all int) {
		bubble(t, protocol.Decode, func(r *rig) {
			logs := r.watchLog()
			steps := append([]vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4)}, make([]vllmtest.Step, 0, tokens)...)
			for i := range tokens {
				steps = append(steps, vllmtest.Tokens(uint32(i)))
			}
			r.engine.Script("x", append(steps, script...)...)
			r.send("x").read()
			r.wg.Wait()
			loud, all = logs.above("DEBUG"), len(logs.above("DEBUG-4"))
		})
		return loud, all
	}
	finish := vllmtest.FinishToken(pb.FinishInfo_LENGTH, 1)
	loud, few := lines(2, finish)
	_, many := lines(300, finish)
	if len(loud) != 0 || few != many {
		t.Errorf("a good answer: %q; %d lines for 2 tokens, %d for 300", loud, few, many)
	}
	nonsense := vllmtest.Message(&pb.GenerateResponse{Outputs: &pb.SequenceOutput{Index: 3}})
	for name, script := range map[string][]vllmtest.Step{
		"engine error": {vllmtest.Status(codes.Internal, "no")}, "early end": {vllmtest.EOF()},
		"nonsense": {nonsense, nonsense, nonsense, vllmtest.EOF()},
	} {
		for tokens := range 2 {
			loud, _ := lines(tokens, script...)
			want := 1
			if name == "nonsense" && tokens == 0 {
				want = 2 // the failure, and the drain that ended without a release
			}
			if len(loud) != want || !strings.HasPrefix(loud[0], "WARN ") || !strings.Contains(loud[0], "request_id=x") {
				t.Errorf("%s after %d tokens: %q", name, tokens, loud)
			}
		}
	}
}

// TestLifecycleLog: a run without trouble says what an operator wants to know, and warns of nothing.
func TestLifecycleLog(t *testing.T) {
	book := new(logBook)
	inWhole(t, protocol.Aggregated, func(w *whole) { w.cfg.Log = slog.New(bookWriter{book: book}) }, func(w *whole) {
		w.mustSend(w.target(), "x").read()
		w.stop()
		<-w.done
	})
	if got := book.above("INFO"); len(got) != 0 {
		t.Errorf("warnings: %q", got)
	}
	var said []string
	for _, line := range book.above("DEBUG") {
		said = append(said, strings.SplitN(line, " engine", 2)[0])
	}
	text := strings.Join(said, "\n")
	for _, want := range []string{"waiting for the", "worker registered", "shutting down", "shut down"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing about %q in\n%s", want, text)
		}
	}
}

// TestReadyOnce: OnReady is called once, with what discovery says.
func TestReadyOnce(t *testing.T) {
	var calls atomic.Int32
	inWhole(t, protocol.Prefill, func(w *whole) {
		w.cfg.OnReady = func(r Ready) {
			calls.Add(1)
			w.ready <- r
		}
	}, func(w *whole) {
		ready := <-w.ready
		if ready.Model != "tiny" || ready.Address != "127.0.0.1:3" || !strings.Contains(w.published(discovery.Instances), fmt.Sprint(ready.InstanceID)) {
			t.Errorf("%+v; %s", ready, w.published(discovery.Instances))
		}
	})
	if n := calls.Load(); n != 1 {
		t.Errorf("called %d times", n)
	}
}

// diary is a discovery that notes what is written and removed, in order. The worker changes its records one by one.
type diary struct {
	discovery.Store

	entries []string
}

func (d *diary) Create(ctx context.Context, bucket discovery.Bucket, key string, value []byte) error {
	d.entries = append(d.entries, "+"+string(bucket))
	return d.Store.Create(ctx, bucket, key, value)
}

func (d *diary) Delete(ctx context.Context, bucket discovery.Bucket, key string) error {
	d.entries = append(d.entries, "-"+string(bucket))
	return d.Store.Delete(ctx, bucket, key)
}

// TestRegistrationOrder: the instance is the last record to come, so that no request finds less than everything, and the first to
// go.
func TestRegistrationOrder(t *testing.T) {
	var store *diary
	inWhole(t, protocol.Decode, func(w *whole) {
		store = &diary{Store: w.cfg.Store}
		w.cfg.Store = store
	}, func(w *whole) {
		<-w.ready
		w.stop()
		<-w.done
	})
	want := "+v1/event_channels +v1/mdc +v1/instances -v1/instances -v1/event_channels"
	if got := strings.Join(store.entries, " "); got != want {
		t.Errorf("order %s, want %s", got, want)
	}
}

// TestKVSourcesAtTheStart: an engine that does not know the call is served without KV events; any other failure ends the start, and
// so does an answer that can't be followed.
func TestKVSourcesAtTheStart(t *testing.T) {
	rank := uint32(7)
	for name, tc := range map[string]struct {
		fail    error
		sources []*pb.KvEventSource
		want    string // part of the error; "": the worker serves
	}{
		"none":         {},
		"unknown":      {fail: status.Error(codes.Unimplemented, "unknown method")},
		"broken":       {fail: status.Error(codes.Internal, "no"), want: "GetKvEventSources: no (Internal)"},
		"of no rank":   {sources: []*pb.KvEventSource{{Transport: "zmq", Endpoint: "tcp://127.0.0.1:5"}}, want: "data_parallel_rank is missing"},
		"of elsewhere": {sources: []*pb.KvEventSource{{Transport: "zmq", Endpoint: "tcp://127.0.0.1:5", DataParallelRank: &rank}}, want: "not local"},
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, protocol.Decode, func(w *whole) {
				w.engine.Set(func(b *vllmtest.Behaviour) {
					b.Sources = tc.sources
					b.Control = func(_ context.Context, method string) error {
						if method == "GetKvEventSources" {
							return tc.fail
						}
						return nil
					}
				})
			}, func(w *whole) {
				if tc.want == "" {
					w.target()
					return
				}
				<-w.done
				if w.err == nil || !strings.Contains(w.err.Error(), tc.want) {
					t.Errorf("got %v, want %q", w.err, tc.want)
				}
			})
		})
	}
}
