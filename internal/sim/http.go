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
		if s.dead() || s.faults.on(NotServing) {
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
	mux.HandleFunc("POST /sim/restart", s.restartPage)
	return mux
}

// listFaults writes one line for each fault: its name, and on or off. No real engine has this page.
func (s *Server) listFaults(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	for _, f := range Faults() {
		fmt.Fprintf(w, "%s %s\n", f, map[bool]string{false: "off", true: "on"}[s.faults.on(f)])
	}
}

// switchFault is POST /sim/fault?name=read-stall&on=true, or POST /sim/fault?name=events-lost&times=3. What cannot be is a 400
// with the reason.
func (s *Server) switchFault(w http.ResponseWriter, r *http.Request) {
	name := Fault(r.FormValue("name"))
	if times := r.FormValue("times"); times != "" {
		if n, err := strconv.Atoi(times); err != nil || name != EventsLost || s.LoseEvents(n) != nil {
			http.Error(w, "times is a number from 1 on, of "+string(EventsLost), http.StatusBadRequest)
			return
		}
		return
	}
	on, err := strconv.ParseBool(r.FormValue("on"))
	if err != nil {
		http.Error(w, "on must be true or false", http.StatusBadRequest)
		return
	}
	switch err := s.SetFault(r.Context(), name, on); {
	case errors.Is(err, ErrFault):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

func (s *Server) httpServer() *http.Server {
	return &http.Server{Handler: s.httpHandler(), ReadHeaderTimeout: 5 * time.Second, ErrorLog: nil}
}

// metrics writes vLLM's metrics, as far as the simulator has them, in Prometheus' text format: a sample for each local rank,
// whose number is the label engine.
func (s *Server) metrics() string {
	w := &metricWriter{stats: s.RankStats()}
	for _, r := range s.ranks {
		w.labels = append(w.labels, fmt.Sprintf("engine=\"%d\",model_name=%q", r.number, escapeLabel(s.cfg.ServedName)))
	}
	count := func(n func(core.Stats) int) func(core.Stats) float64 {
		return func(st core.Stats) float64 { return float64(n(st)) }
	}
	w.family("vllm:num_requests_running", "gauge", "Requests in the running batch.")
	w.sample("", count(func(st core.Stats) int { return st.Running }))
	w.family("vllm:num_requests_waiting", "gauge", "Requests that are queued, for whatever reason.")
	w.sample("", count(func(st core.Stats) int { return st.Waiting }))
	w.family("vllm:num_requests_waiting_by_reason", "gauge", "Queued requests: capacity, or deferred while their KV is fetched.")
	w.sample(`reason="capacity"`, count(func(st core.Stats) int { return st.Waiting - st.Deferred }))
	w.sample(`reason="deferred"`, count(func(st core.Stats) int { return st.Deferred }))
	w.family("vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, held ones included; 1 is all.")
	w.sample("", core.Stats.Usage)
	for _, c := range []struct {
		name, help string
		value      func(core.Stats) int
	}{
		{"prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", func(st core.Stats) int { return st.CacheQueries }},
		{"prefix_cache_hits", "Prompt tokens found in the prefix cache.", func(st core.Stats) int { return st.CacheHits }},
		{"external_prefix_cache_queries", "Prompt tokens asked of another engine.", func(st core.Stats) int { return st.ExternalQueries }},
		{"external_prefix_cache_hits", "Prompt tokens received from another engine.", func(st core.Stats) int { return st.ExternalHits }},
		{"prompt_tokens", "Prompt tokens of started requests.", func(st core.Stats) int { return st.PromptTokens }},
		{"generation_tokens", "Generated tokens.", func(st core.Stats) int { return st.GeneratedTokens }},
		{"num_preemptions", "Running requests that lost their blocks.", func(st core.Stats) int { return st.Preemptions }},
	} {
		w.family("vllm:"+c.name+"_total", "counter", c.help)
		w.sample("", count(c.value))
	}
	w.family("vllm:request_success_total", "counter", "Ended requests by reason.")
	w.sample(`finished_reason="stop"`, count(func(st core.Stats) int { return st.Finished[core.Stop] }))
	w.sample(`finished_reason="length"`, count(func(st core.Stats) int { return st.Finished[core.Length] }))
	w.sample(`finished_reason="abort"`, count(func(st core.Stats) int { return st.Finished[core.Aborted] }))
	w.sample(`finished_reason="error"`, count(func(st core.Stats) int { return st.Finished[core.Failed] + st.Finished[core.Fatal] }))
	return w.text.String()
}

// metricWriter writes families with a sample for each rank.
type metricWriter struct {
	text   strings.Builder
	name   string
	labels []string     // by rank
	stats  []core.Stats // likewise
}

func (w *metricWriter) family(name, kind, help string) {
	w.name = name
	fmt.Fprintf(&w.text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (w *metricWriter) sample(label string, value func(core.Stats) float64) {
	for i, labels := range w.labels {
		if label != "" {
			labels += "," + label
		}
		fmt.Fprintf(&w.text, "%s{%s} %v\n", w.name, labels, value(w.stats[i]))
	}
}

// escapeLabel drops what the text format cannot carry in a quoted value; quoting itself does the rest.
func escapeLabel(s string) string { return strings.ToValidUTF8(s, "?") }
