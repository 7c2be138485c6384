package sim

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"remora/internal/sim/core"
)

// httpHandler serves what the real engine's HTTP side has and a sidecar or a test may look at.
func (s *Server) httpHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if s.loop.snapshot().Dead || s.faults.on(NotServing) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, "{\"version\":%q}\n", s.cfg.EngineVersion)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		fmt.Fprint(w, s.metrics())
	})
	mux.HandleFunc("GET /sim/fault", s.listFaults)
	mux.HandleFunc("POST /sim/fault", s.switchFault)
	return mux
}

// listFaults writes one line for each fault: its name, and on or off. No real engine has this page.
func (s *Server) listFaults(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	for _, f := range Faults() {
		fmt.Fprintf(w, "%s %s\n", f, map[bool]string{false: "off", true: "on"}[s.faults.on(f)])
	}
}

// switchFault is POST /sim/fault?name=read-stall&on=true. What cannot be is a 400 with the reason.
func (s *Server) switchFault(w http.ResponseWriter, r *http.Request) {
	on, err := strconv.ParseBool(r.FormValue("on"))
	if err != nil {
		http.Error(w, "on must be true or false", http.StatusBadRequest)
		return
	}
	switch err := s.SetFault(r.Context(), Fault(r.FormValue("name")), on); {
	case errors.Is(err, ErrFault):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

func (s *Server) httpServer() *http.Server {
	return &http.Server{Handler: s.httpHandler(), ReadHeaderTimeout: 5 * time.Second, ErrorLog: nil}
}

// metrics writes vLLM's metrics, as far as the simulator has them, in Prometheus' text format.
func (s *Server) metrics() string {
	st := s.loop.snapshot()
	w := &metricWriter{labels: fmt.Sprintf("engine=\"0\",model_name=%q", escapeLabel(s.cfg.ServedName))}
	w.family("vllm:num_requests_running", "gauge", "Requests in the running batch.")
	w.sample("", float64(st.Running))
	w.family("vllm:num_requests_waiting", "gauge", "Requests that are queued, for whatever reason.")
	w.sample("", float64(st.Waiting))
	w.family("vllm:num_requests_waiting_by_reason", "gauge", "Queued requests: capacity, or deferred while their KV is fetched.")
	w.sample(`reason="capacity"`, float64(st.Waiting-st.Deferred))
	w.sample(`reason="deferred"`, float64(st.Deferred))
	w.family("vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, held ones included; 1 is all.")
	w.sample("", st.Usage())
	w.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", st.CacheQueries)
	w.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", st.CacheHits)
	w.counter("vllm:external_prefix_cache_queries_total", "Prompt tokens asked of another engine.", st.ExternalQueries)
	w.counter("vllm:external_prefix_cache_hits_total", "Prompt tokens received from another engine.", st.ExternalHits)
	w.counter("vllm:prompt_tokens_total", "Prompt tokens of started requests.", st.PromptTokens)
	w.counter("vllm:generation_tokens_total", "Generated tokens.", st.GeneratedTokens)
	w.counter("vllm:num_preemptions_total", "Running requests that lost their blocks.", st.Preemptions)
	w.family("vllm:request_success_total", "counter", "Ended requests by reason.")
	w.sample(`finished_reason="stop"`, float64(st.Finished[core.Stop]))
	w.sample(`finished_reason="length"`, float64(st.Finished[core.Length]))
	w.sample(`finished_reason="abort"`, float64(st.Finished[core.Aborted]))
	w.sample(`finished_reason="error"`, float64(st.Finished[core.Failed]+st.Finished[core.Fatal]))
	return w.text.String()
}

type metricWriter struct {
	text   strings.Builder
	name   string
	labels string
}

func (w *metricWriter) family(name, kind, help string) {
	w.name = name
	fmt.Fprintf(&w.text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (w *metricWriter) sample(label string, value float64) {
	labels := w.labels
	if label != "" {
		labels += "," + label
	}
	fmt.Fprintf(&w.text, "%s{%s} %v\n", w.name, labels, value)
}

func (w *metricWriter) counter(name, help string, value int) {
	w.family(name, "counter", help)
	w.sample("", float64(value))
}

// escapeLabel drops what the text format cannot carry in a quoted value; quoting itself does the rest.
func escapeLabel(s string) string { return strings.ToValidUTF8(s, "?") }
