package differential

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"remora/internal/vllm/vllmtest"
	"remora/interop/harness"
)

// TestCommandLines starts both with the same command lines and environments. Compared is whether they are taken, the exit code,
// which arguments and flags the complaint names, and of those that serve the records: what they have made of it.
func TestCommandLines(t *testing.T) {
	engine := vllmtest.New(t)
	folder := model(t)
	engine.Set(func(b *vllmtest.Behaviour) { b.Model.ModelId = folder })
	address := engine.Loopback(t)
	for i, c := range commandLines() {
		if !*full && i%25 != 0 {
			continue // two processes a case
		}
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			rust, remora := c.start(t, harness.Rust, address), c.start(t, harness.Remora, address)
			if rust["start"] != remora["start"] { // then nothing else can be compared
				rust, remora = observation{"start": rust["start"]}, observation{"start": remora["start"]}
			}
			judge(t, "agg/command line/"+c.String(), rust, remora)
		})
	}
}

// commandLine is one way to start a sidecar. engine in it stands for the engine's address.
type commandLine struct{ args, env []string }

// String is how the listed differences know the case.
func (c commandLine) String() string {
	var words []string
	for _, w := range slices.Concat(c.env, c.args) {
		words = append(words, strings.Trim(strconv.QuoteToASCII(w), `"`))
	}
	return strings.Join(words, " ")
}

const engineArg, discoveryArg = "--grpc-endpoint=engine", "--discovery-backend=file"

// started is a command line that starts, with more.
func started(more ...string) commandLine {
	return commandLine{args: append([]string{engineArg, discoveryArg}, more...)}
}

// option is a flag that takes a value: what it takes, and what it does not.
type option struct {
	name, env string
	good, bad []string
}

// size is a number from one on.
func size(name, env string) option {
	return option{name, env, []string{"2", "+3", "04"}, []string{"0", "-0", "-1", "1.5", "1e3", "0x1", "1_0", " 1", "1 ", "1,0", "+", "99999999999999999999999"}}
}

func options() []option {
	words := func(name, env string, good ...string) option {
		return option{name, env, good, []string{strings.ToUpper(good[0]), " " + good[0], good[0] + "x", "\u00fc"}}
	}
	names := []string{"x", "my-ns", "Team.A", "n\u00fc1", "a:b%c", "__x", "", " ", "a b", "a\nb", "a/b", "-", "_-", "\u00fc"}
	return []option{
		{"namespace", "DYN_NAMESPACE", names, nil},
		{"component", "DYN_COMPONENT", names, nil},
		{"endpoint", "DYN_ENDPOINT", names, nil},
		{"endpoint-types", "DYN_ENDPOINT_TYPES", []string{"chat", "Completions,,", " chat , completions"}, []string{"", ",", "chat;completions", "prefill", "embedding"}},
		{"custom-jinja-template", "DYN_CUSTOM_JINJA_TEMPLATE", nil, []string{"", "/no/such", "/etc"}},
		{"dyn-tool-call-parser", "DYN_TOOL_CALL_PARSER", []string{"hermes", "deepseek-v4"}, []string{"", "Hermes", "hermes ", "x"}},
		{"dyn-reasoning-parser", "DYN_REASONING_PARSER", []string{"qwen3", "x"}, []string{""}},
		words("exclude-tools-when-tool-choice-none", "DYN_EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE", "false", "true"),
		words("disaggregation-mode", "DYN_DISAGGREGATION_MODE", "prefill", "decode", "agg", "aggregated"),
		{"request-plane", "DYN_REQUEST_PLANE", []string{"tcp", "TCP"}, []string{"http", " tcp", ""}},
		words("response-plane", "DYN_RESPONSE_PLANE", "tcp", "quic"),
		{"event-plane", "DYN_EVENT_PLANE", []string{"zmq", ""}, []string{"ZMQ", "x"}},
		size("grpc-connections", "DYN_SIDECAR_GRPC_CONNECTIONS"),
		size("grpc-connect-attempt-timeout-secs", "DYN_SIDECAR_GRPC_CONNECT_ATTEMPT_TIMEOUT_SECS"),
		size("grpc-retry-interval-secs", "DYN_SIDECAR_GRPC_RETRY_INTERVAL_SECS"),
		{"grpc-retry-interval-secs", "", []string{"18446744073709551615"}, []string{"18446744073709551616"}},
		{"grpc-startup-deadline-secs", "DYN_SIDECAR_GRPC_STARTUP_DEADLINE_SECS", []string{"30", "9000000000000000000"}, []string{"0", "9223372036854775807"}},
		{"vllm-http-endpoint", "VLLM_HTTP_ENDPOINT", []string{"http://a:1", "https://a/b", " http://a "}, []string{
			"", "a:1", "ftp://a", "http://", "http://u@a", "http://a?q", "http://a#f", "http://a b", "http://a/%zz",
		}},
		{"vllm-rl-world-size", "DYN_VLLM_RL_WORLD_SIZE", []string{"1"}, []string{"0", "4294967296"}},
	}
}

// spellings are the ways to give a flag a value, or none.
func (o *option) spellings() (all []commandLine) {
	flag, good := "--"+o.name, append(o.good, "x")[0]
	for _, v := range slices.Concat(o.good, o.bad) {
		all = append(all, started(flag+"="+v))
		if o.env != "" {
			c := started()
			c.env = []string{o.env + "=" + v}
			all = append(all, c)
		}
	}
	if o.env == "" {
		return all // its spellings have been seen
	}
	for _, args := range [][]string{
		{flag, good}, {flag}, {flag, ""}, {flag, "-1"}, {flag, "-"}, {flag, "--"}, {flag, "--=x"}, {flag, "--bogus"}, {flag, "--enable-rl"}, {flag, "--enable-rl=x"},
		{flag, "-h"}, {flag, "--help=x"}, {flag + "=" + good, flag + "=" + good}, {flag + "=" + good, flag}, {flag + "=="}, {flag + " " + good}, {flag + ":" + good},
		{flag[:len(flag)-1] + "=" + good}, {strings.ToUpper(flag) + "=" + good}, {"--" + strings.ReplaceAll(o.name, "-", "_") + "=" + good}, {flag[1:] + "=" + good},
		{"--", flag + "=" + good},
	} {
		all = append(all, started(args...))
	}
	hidden := started(flag + "=" + good) // the flag beats its variable, whatever that says
	hidden.env = []string{o.env + "=\xff"}
	broken := started()
	broken.env = []string{o.env + "=\xff"}
	return append(all, hidden, broken)
}

// switches are the spellings of a flag that takes no value.
func switches(flag, env string) (all []commandLine) {
	for _, args := range [][]string{{flag + "=true"}, {flag + "="}, {flag, "true"}, {flag, flag}, {flag[:len(flag)-1]}, {"--no-" + flag[2:]}, {flag}} {
		all = append(all, started(args...))
	}
	for _, word := range []string{"true", "false", "TRUE", "1", "0", "yes", "", " true"} {
		c := started()
		c.env = []string{env + "=" + word}
		all = append(all, c)
	}
	return all
}

// endpoints are spellings of the engine's address.
func endpoints() (all []commandLine) {
	for _, v := range []string{
		"engine", " engine ", "http://engine", "http://engine/", "grpc://engine", "http://engine//", "http://engine/x", "engine/x", "http://engine?q", "http://engine#f",
		"http://u@engine", "https://engine", "grpcs://engine", "HTTP://engine", "ftp://engine", "unix:///tmp/x", "dns:///engine", "http://", "http:///", ":80", "host:65536",
		"host:-1", "host:abc", "host:80:80", "::1:80", "[::1", "ho st:80", "", " ", "@", "//engine", "/engine", "http://@engine",
	} {
		all = append(all, commandLine{args: []string{"--grpc-endpoint=" + v, discoveryArg}}, commandLine{args: []string{discoveryArg}, env: []string{"DYN_SIDECAR_GRPC_ENDPOINT=" + v}})
	}
	return all
}

// mistakes are several at a time, and help between them: the first one counts.
func mistakes() (all []commandLine) {
	for _, args := range []string{
		"--help", "-h", "-hx", "-xh", "-V", "help", "--help=x", "--help=", "--bogus --help", "--help --bogus", "--grpc-connections=0 --help", "--grpc-connections=0 --bogus",
		"--bogus --grpc-connections=0", "--grpc-connections=0 --grpc-retry-interval-secs=0", "--grpc-connections --grpc-retry-interval-secs=0", "--namespace=a --namespace=b --bogus",
		"-- --help", "--", "-- --", "-- x", "-", "foo", "foo bar", "-x", "-1", "---", "---x", "--=x", "--=", "--grpc-endpiont=x", "--\u00fcn", "--disaggregation-mode=prefil",
		"\xff", "--\xff", "-\xff", "--namespace \xff",
	} {
		for _, line := range [][]string{{engineArg, discoveryArg}, nil} {
			all = append(all, commandLine{args: append(line, strings.Fields(args)...)}, commandLine{args: append(strings.Fields(args), line...)})
		}
	}
	for _, env := range [][]string{
		nil, {"DYN_DISAGGREGATION_MODE=zz"}, {"DYN_SIDECAR_GRPC_CONNECTIONS=0", "DYN_DISAGGREGATION_MODE=zz"}, {"DYN_SIDECAR_GRPC_CONNECTIONS=0", "DYN_SIDECAR_GRPC_RETRY_INTERVAL_SECS=0"},
	} {
		for _, args := range [][]string{{engineArg, discoveryArg}, nil, {"--bogus"}, {"--help"}} {
			all = append(all, commandLine{args, env})
		}
	}
	return all
}

// surroundings are the runtime's variables, and what roles make of names.
func surroundings() (all []commandLine) {
	for _, env := range []string{
		"DYN_NAMESPACE_WORKER_SUFFIX=s", "DYN_NAMESPACE_WORKER_SUFFIX=dynamo", "DYN_NAMESPACE_WORKER_SUFFIX=", "DYN_NAMESPACE_WORKER_SUFFIX=-s", "DYN_NAMESPACE_WORKER_SUFFIX=a/b",
		"DYN_STABLE_ROUTING_ID=pod-3", "DYN_STABLE_ROUTING_ID=", "DYN_TCP_RPC_HOST=lo", "DYN_TCP_RPC_HOST=localhost", "DYN_TCP_RPC_HOST=192.0.2.1", "DYN_TCP_RPC_HOST=",
		"DYN_REQUEST_PLANE_CODEC=json", "DYN_REQUEST_PLANE_CODEC=", "DYN_REQUEST_PLANE_CODEC=Json", "DYN_SYSTEM_PORT=-1", "DYN_SYSTEM_PORT= 0 ", "DYN_SYSTEM_PORT=0",
		"DYN_SYSTEM_PORT=32768", "DYN_SYSTEM_PORT=x", "DYN_SYSTEM_PORT=1.5", "DYN_SYSTEM_PORT=", "DYN_SYSTEM_HOST=x y", "DYN_SYSTEM_STARTING_HEALTH_STATUS=ready",
		"DYN_SYSTEM_STARTING_HEALTH_STATUS=x", "DYN_TCP_RPC_PORT=x", "DYN_TCP_MAX_MESSAGE_SIZE=-1", "DYN_ENGINE_REQUEST_LIMIT=1.5", "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS=x",
		"DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS=-1", "DYN_LOG=off", "DYN_LOG=info,", "DYN_LOG==", "DYN_LOG=a=b", "DYN_LOG=a[b{c=d}]=info", "DYN_LOGGING_CONSOLE_FORMAT=xml",
		"DYN_LORA_ENABLED=no", "DYN_LORA_ENABLED=2", "DYN_TCP_TLS_INSECURE=off", "CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES= -1 ", "CUDA_VISIBLE_DEVICES=NoDevFiles",
		"CUDA_VISIBLE_DEVICES=NONE", "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=", "DYN_FILE_KV=/dev/null/x", "DYN_TOPOLOGY_ENABLED=false",
	} {
		c := started()
		c.env = []string{env}
		all = append(all, c)
	}
	for _, args := range []string{
		"--disaggregation-mode=prefill --component=x", "--disaggregation-mode=decode --component=x", "--disaggregation-mode=aggregated --component=x",
		"--disaggregation-mode=prefill --endpoint-types=embedding", "--disaggregation-mode=prefill --endpoint-types=", "--disaggregation-mode=decode --route-to-encoder",
	} {
		all = append(all, started(strings.Fields(args)...))
	}
	return all
}

// commandLines are all of them, each once.
func commandLines() []commandLine {
	var all []commandLine
	for _, o := range options() {
		all = append(all, o.spellings()...)
	}
	all = slices.Concat(all, switches("--route-to-encoder", "DYN_ROUTE_TO_ENCODER"), switches("--enable-rl", "DYN_ENABLE_RL"), endpoints(), mistakes(), surroundings())
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(c commandLine) bool {
		again := seen[c.String()]
		seen[c.String()] = true
		return again
	})
}

var (
	// mentioned are the words that a complaint quotes.
	mentioned = regexp.MustCompile(`'[^']*'`)
	// explained is what each of them adds in its own words.
	explained = regexp.MustCompile(`'( \(from \w+\))?: .*|' \(from \w+\)`)
	// parserNames is a list of parsers, wherever it stands.
	parserNames = regexp.MustCompile(`deepseek-v4, [\w, -]+\w`)
)

// start starts one of them and says what it came to.
func (c commandLine) start(t *testing.T, kind harness.Kind, engine string) observation {
	t.Helper()
	kv := t.TempDir()
	fill := strings.NewReplacer("engine", engine).Replace
	// Those that go on to an engine that is not there, or to services, give up at once.
	env := []string{
		"DYN_FILE_KV=" + kv, "DYN_TCP_RPC_HOST=127.0.0.1", "DYN_SYSTEM_HOST=127.0.0.1", "ETCD_ENDPOINTS=http://127.0.0.1:1", "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS=1",
	}
	if !slices.Contains(c.args, engineArg) {
		env = append(env, "DYN_SIDECAR_GRPC_STARTUP_DEADLINE_SECS=10")
	}
	var args []string
	for _, a := range c.args {
		args = append(args, fill(a))
	}
	for _, e := range c.env {
		name, value, _ := strings.Cut(e, "=")
		env = append(env, name+"="+fill(value))
	}
	p := harness.StartCommand(t, kind, env, args)
	s := &side{kind: kind, cluster: &harness.Cluster{Discovery: kv}, sidecar: &harness.Sidecar{Process: p}}
	harness.Poll(t, p.Name+" to serve or to give up", 2*time.Minute, func() error {
		if p.Exited() || s.instances() > 0 {
			return nil
		}
		return errNoRecord
	})
	if !p.Exited() {
		defer p.Stop(harness.AtOnce)
		s.find(t)
		return s.recorded(t)
	}
	code := p.WaitExit(t, time.Second)
	o := observation{"start": fmt.Sprintf("ends with %d", code)}
	if code == 2 {
		first, _, _ := strings.Cut(p.Log(), "\n")
		o["complaint mentions"] = strings.Join(mentioned.FindAllString(explained.ReplaceAllString(first, "'"), -1), " ")
	}
	if names := parserNames.FindString(p.Log()); names != "" {
		o["parsers"] = names
	}
	return o
}

// recorded are the instance record and the card of one that serves; TestRegistration looks at the other records.
func (s *side) recorded(t *testing.T) observation {
	t.Helper()
	o, out := observation{}, observation{"start": "serves"}
	for path, record := range s.records(t) {
		if bucket, _, _ := strings.Cut(path, "/"); bucket == "instances" || bucket == "mdc" {
			o.value("record "+anonymous(path, s.id()), record)
		}
	}
	for path, text := range o {
		out[path] = anonymous(text, s.id())
	}
	return out
}
