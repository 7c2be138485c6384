package flags

import (
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

// bound is what the test table writes to.
type bound struct {
	endpoint string
	mode     int
	rl       bool
	exclude  bool
	conns    uint64
	plane    string
	space    string
	template string
	protocol string
	port     uint16
	host     bool
}

// table is a small copy of the sidecar's shapes: a required flag, words with a hidden one, a switch, a number, a text.
func table(b *bound) *Set {
	return &Set{
		Command: "tool run",
		Summary: "Runs the tool.",
		Groups: []Group{{
			Title: "Options",
			Flags: []Flag{
				{Name: "mode", Env: "T_MODE", Default: "agg", Help: "What it does", Value: OneOf(&b.mode,
					Choice[int]{Word: "agg", Value: 1}, Choice[int]{Word: "aggregated", Value: 1, Hidden: true},
					Choice[int]{Word: "prefill", Value: 2}, Choice[int]{Word: "decode", Value: 3})},
				{Name: "enable-rl", Env: "T_RL", Value: Switch(&b.rl), Help: "A switch"},
				{Name: "exclude", Env: "T_EXCLUDE", Default: "true", Value: Bool(&b.exclude), Help: "A bool with a value"},
				{Name: "grpc-endpoint", Env: "T_ENDPOINT", Required: true, Help: "Where", Value: Func(func(s string) error {
					if s == "" {
						return errors.New("an address is needed")
					}
					b.endpoint = s
					return nil
				})},
				{Name: "grpc-connections", Env: "T_CONNS", Default: "8", Value: Number(&b.conns, 1, math.MaxUint64), Help: "How many"},
				{Name: "event-plane", Env: "T_PLANE", Help: "An empty word is one of its words", Value: OneOf(&b.plane,
					Choice[string]{Word: "zmq", Value: "zmq"}, Choice[string]{Word: "nats", Value: "nats"}, Choice[string]{Hidden: true})},
				{Name: "template", Env: "T_TEMPLATE", Value: Path(&b.template), Help: "A file"},
				{Name: "protocol", Value: OneOf(&b.protocol, Choice[string]{Word: "tcp", Value: "tcp"}).AnyCase(), Help: "Words in any case"},
				{Name: "namespace", Env: "T_SPACE", Default: "dynamo", Value: Text(&b.space), Help: "Any text"},
			},
		}, {
			Title: "Variables",
			Variables: []Variable{
				{Name: "T_PORT", Default: "7", Value: Number(&b.port, 0, math.MaxUint16), Help: "A port"},
				{Name: "T_HOST", Value: Truthy(&b.host), Help: "A truthy word"},
			},
		}},
	}
}

// run parses args against a map of variables.
func run(args []string, env map[string]string) (bound, Sources, error) {
	var b bound
	from, err := table(&b).Parse(args, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	return b, from, err
}

func TestAccepted(t *testing.T) {
	base := bound{endpoint: "a:1", mode: 1, exclude: true, conns: 8, space: "dynamo", port: 7}
	with := func(change func(*bound)) bound { b := base; change(&b); return b }
	for name, c := range map[string]struct {
		args string
		env  map[string]string
		want bound
	}{
		"equals":                     {args: "--grpc-endpoint=a:1", want: base},
		"separate":                   {args: "--grpc-endpoint a:1", want: base},
		"trailing separator":         {args: "--grpc-endpoint a:1 --", want: base},
		"value holds an equals sign": {args: "--grpc-endpoint=a:1 --namespace=a=b", want: with(func(b *bound) { b.space = "a=b" })},
		"empty text":                 {args: "--grpc-endpoint=a:1 --namespace=", want: with(func(b *bound) { b.space = "" })},
		"dash after equals":          {args: "--grpc-endpoint=a:1 --namespace=-x", want: with(func(b *bound) { b.space = "-x" })},
		"lone dash is a value":       {args: "--grpc-endpoint=a:1 --namespace -", want: with(func(b *bound) { b.space = "-" })},
		"switch":                     {args: "--enable-rl --grpc-endpoint=a:1", want: with(func(b *bound) { b.rl = true })},
		"hidden word":                {args: "--grpc-endpoint=a:1 --mode aggregated", want: base},
		"word":                       {args: "--grpc-endpoint=a:1 --mode=decode", want: with(func(b *bound) { b.mode = 3 })},
		"bool with value":            {args: "--grpc-endpoint=a:1 --exclude false", want: with(func(b *bound) { b.exclude = false })},
		"path":                       {args: "--grpc-endpoint=a:1 --template=x", want: with(func(b *bound) { b.template = "x" })},
		"word in any case":           {args: "--grpc-endpoint=a:1 --protocol=TcP", want: with(func(b *bound) { b.protocol = "tcp" })},
		"plus sign and zeros":        {args: "--grpc-endpoint=a:1 --grpc-connections +03", want: with(func(b *bound) { b.conns = 3 })},
		"largest number":             {args: "--grpc-endpoint=a:1 --grpc-connections=18446744073709551615", want: with(func(b *bound) { b.conns = math.MaxUint64 })},
		"empty word":                 {args: "--grpc-endpoint=a:1 --event-plane=", want: base},
		"empty word from env":        {args: "--grpc-endpoint=a:1", env: map[string]string{"T_PLANE": ""}, want: base},
		"env":                        {env: map[string]string{"T_ENDPOINT": "a:1", "T_MODE": "prefill"}, want: with(func(b *bound) { b.mode = 2 })},
		"switch from env":            {args: "--grpc-endpoint=a:1", env: map[string]string{"T_RL": "true"}, want: with(func(b *bound) { b.rl = true })},
		"switch off in env":          {args: "--grpc-endpoint=a:1", env: map[string]string{"T_RL": "false"}, want: base},
		"empty env text":             {args: "--grpc-endpoint=a:1", env: map[string]string{"T_SPACE": ""}, want: with(func(b *bound) { b.space = "" })},
		"argument beats env":         {args: "--grpc-endpoint=a:1 --mode=decode", env: map[string]string{"T_MODE": "prefill"}, want: with(func(b *bound) { b.mode = 3 })},
		"argument hides a bad env":   {args: "--grpc-endpoint=a:1 --mode=agg --enable-rl", env: map[string]string{"T_MODE": "zz", "T_RL": "1"}, want: with(func(b *bound) { b.rl = true })},
		"variable":                   {args: "--grpc-endpoint=a:1", env: map[string]string{"T_PORT": "9", "T_HOST": "Yes"}, want: with(func(b *bound) { b.port, b.host = 9, true })},
		"empty variable is unset":    {args: "--grpc-endpoint=a:1", env: map[string]string{"T_PORT": "", "T_HOST": ""}, want: base},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := run(strings.Fields(c.args), c.env)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Fatalf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	ok := []string{"--grpc-endpoint=a:1"}
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want string // the whole message
	}{
		"nothing":                    {want: "the following required arguments were not provided:\n  --grpc-endpoint <GRPC_ENDPOINT>"},
		"no value at the end":        {args: []string{"--grpc-endpoint"}, want: "a value is required for '--grpc-endpoint <GRPC_ENDPOINT>' but none was supplied"},
		"no value, flag follows":     {args: []string{"--grpc-endpoint", "--enable-rl"}, want: "a value is required for '--grpc-endpoint <GRPC_ENDPOINT>' but none was supplied"},
		"no value, flag=v follows":   {args: []string{"--grpc-endpoint", "--mode=agg"}, want: "a value is required for '--grpc-endpoint <GRPC_ENDPOINT>' but none was supplied"},
		"no value, switch=v follows": {args: []string{"--grpc-endpoint", "--enable-rl=x"}, want: "unexpected value 'x' for '--enable-rl' found; no more were expected"},
		"no value, help=v follows":   {args: []string{"--grpc-endpoint", "--help=x"}, want: "unexpected value 'x' for '--help' found; no more were expected"},
		"no path":                    {args: append(ok, "--template="), want: "a value is required for '--template <TEMPLATE>' but none was supplied"},
		"no path in env":             {args: ok, env: map[string]string{"T_TEMPLATE": ""}, want: "a value is required for '--template <TEMPLATE>' (from T_TEMPLATE) but none was supplied"},
		"no value, help follows":     {args: []string{"--grpc-endpoint", "--help"}, want: "a value is required for '--grpc-endpoint <GRPC_ENDPOINT>' but none was supplied"},
		"no value, -h follows":       {args: []string{"--grpc-endpoint", "-h"}, want: "a value is required for '--grpc-endpoint <GRPC_ENDPOINT>' but none was supplied"},
		"no value, -- follows":       {args: []string{"--grpc-endpoint", "--"}, want: "a value is required for '--grpc-endpoint <GRPC_ENDPOINT>' but none was supplied"},
		"no name as value":           {args: []string{"--grpc-endpoint", "--=x"}, want: "unexpected argument '--' found"},
		"dash value":                 {args: []string{"--grpc-endpoint", "-x"}, want: "unexpected argument '-x' found"},
		"negative value":             {args: append(ok, "--grpc-connections", "-5"), want: "unexpected argument '-5' found"},
		"unknown as value":           {args: []string{"--grpc-endpoint", "--bogus"}, want: "unexpected argument '--bogus' found"},
		"empty where text is judged": {args: []string{"--grpc-endpoint="}, want: "invalid value '' for '--grpc-endpoint <GRPC_ENDPOINT>': an address is needed"},
		"empty argument as value":    {args: []string{"--grpc-endpoint", ""}, want: "invalid value '' for '--grpc-endpoint <GRPC_ENDPOINT>': an address is needed"},
		"minus after equals":         {args: append(ok, "--grpc-connections=-5"), want: "invalid value '-5' for '--grpc-connections <GRPC_CONNECTIONS>': not a whole number"},
		"zero":                       {args: append(ok, "--grpc-connections", "0"), want: "invalid value '0' for '--grpc-connections <GRPC_CONNECTIONS>': 0 is below the minimum of 1"},
		"hex":                        {args: append(ok, "--grpc-connections", "0x8"), want: "invalid value '0x8' for '--grpc-connections <GRPC_CONNECTIONS>': not a whole number"},
		"underscore":                 {args: append(ok, "--grpc-connections", "1_0"), want: "invalid value '1_0' for '--grpc-connections <GRPC_CONNECTIONS>': not a whole number"},
		"two signs":                  {args: append(ok, "--grpc-connections", "++1"), want: "invalid value '++1' for '--grpc-connections <GRPC_CONNECTIONS>': not a whole number"},
		"blank in number":            {args: append(ok, "--grpc-connections", " 1"), want: "invalid value ' 1' for '--grpc-connections <GRPC_CONNECTIONS>': not a whole number"},
		"fraction":                   {args: append(ok, "--grpc-connections", "1.5"), want: "invalid value '1.5' for '--grpc-connections <GRPC_CONNECTIONS>': not a whole number"},
		"empty number":               {args: append(ok, "--grpc-connections="), want: "invalid value '' for '--grpc-connections <GRPC_CONNECTIONS>': cannot parse a number from an empty text"},
		"too large":                  {args: append(ok, "--grpc-connections=18446744073709551616"), want: "invalid value '18446744073709551616' for '--grpc-connections <GRPC_CONNECTIONS>': the number is too large; at most 18446744073709551615"},
		"switch with value":          {args: append(ok, "--enable-rl=true"), want: "unexpected value 'true' for '--enable-rl' found; no more were expected"},
		"switch and a word":          {args: append(ok, "--enable-rl", "true"), want: "unexpected argument 'true' found"},
		"switch twice":               {args: append(ok, "--enable-rl", "--enable-rl"), want: "the argument '--enable-rl' cannot be used multiple times"},
		"flag twice":                 {args: append(ok, ok...), want: "the argument '--grpc-endpoint <GRPC_ENDPOINT>' cannot be used multiple times"},
		"twice, second without one":  {args: append(ok, "--mode=agg", "--mode"), want: "the argument '--mode <MODE>' cannot be used multiple times"},
		"word in capitals":           {args: append(ok, "--mode=PREFILL"), want: "invalid value 'PREFILL' for '--mode <MODE>'\n  [possible values: agg, prefill, decode]"},
		"word, nearly":               {args: append(ok, "--mode", "prefil"), want: "invalid value 'prefil' for '--mode <MODE>'\n  [possible values: agg, prefill, decode]\n\n  tip: a similar value exists: 'prefill'"},
		"word, empty":                {args: append(ok, "--mode="), want: "a value is required for '--mode <MODE>' but none was supplied\n  [possible values: agg, prefill, decode]"},
		"word, none":                 {args: append(ok, "--mode"), want: "a value is required for '--mode <MODE>' but none was supplied\n  [possible values: agg, prefill, decode]"},
		"bool in other words":        {args: append(ok, "--exclude=yes"), want: "invalid value 'yes' for '--exclude <EXCLUDE>'\n  [possible values: true, false]"},
		"abbreviation":               {args: append(ok, "--grpc-conn=3"), want: "unexpected argument '--grpc-conn' found\n\n  tip: a similar argument exists: '--grpc-connections'"},
		"transposed":                 {args: []string{"--grpc-endpiont", "x"}, want: "unexpected argument '--grpc-endpiont' found\n\n  tip: a similar argument exists: '--grpc-endpoint'"},
		"unknown":                    {args: append(ok, "--zzzz=5"), want: "unexpected argument '--zzzz' found"},
		"unknown before help":        {args: []string{"--zzzz", "--help"}, want: "unexpected argument '--zzzz' found"},
		"bad value before help":      {args: []string{"--grpc-connections=0", "--help"}, want: "invalid value '0' for '--grpc-connections <GRPC_CONNECTIONS>': 0 is below the minimum of 1"},
		"single dash":                {args: append(ok, "-x"), want: "unexpected argument '-x' found"},
		"cluster":                    {args: append(ok, "-xh"), want: "unexpected argument '-x' found"},
		"three dashes":               {args: append(ok, "---x"), want: "unexpected argument '---x' found"},
		"no name":                    {args: append(ok, "--=x"), want: "unexpected argument '--' found"},
		"positional":                 {args: append(ok, "foo"), want: "unexpected argument 'foo' found"},
		"empty positional":           {args: append(ok, ""), want: "unexpected argument '' found"},
		"lone dash":                  {args: append(ok, "-"), want: "unexpected argument '-' found"},
		"after the separator":        {args: append(ok, "--", "foo"), want: "unexpected argument 'foo' found"},
		"flag after the separator":   {args: append(ok, "--", "--mode=agg"), want: "unexpected argument '--mode=agg' found"},
		"help with a value":          {args: append(ok, "--help=foo"), want: "unexpected value 'foo' for '--help' found; no more were expected"},
		"help is no command here":    {args: []string{"help"}, want: "unexpected argument 'help' found"},
		"not UTF-8":                  {args: append(ok, "--namespace", "a\xff"), want: "invalid UTF-8 was detected in one or more arguments"},
		"switch in env, other words": {args: ok, env: map[string]string{"T_RL": "1"}, want: "invalid value '1' for '--enable-rl' (from T_RL)\n  [possible values: true, false]"},
		"switch in env, capitals":    {args: ok, env: map[string]string{"T_RL": "TRUE"}, want: "invalid value 'TRUE' for '--enable-rl' (from T_RL)\n  [possible values: true, false]"},
		"switch in env, empty":       {args: ok, env: map[string]string{"T_RL": ""}, want: "a value is required for '--enable-rl' (from T_RL) but none was supplied\n  [possible values: true, false]"},
		"word in env":                {args: ok, env: map[string]string{"T_MODE": "zz"}, want: "invalid value 'zz' for '--mode <MODE>' (from T_MODE)\n  [possible values: agg, prefill, decode]"},
		"number in env":              {args: ok, env: map[string]string{"T_CONNS": ""}, want: "invalid value '' for '--grpc-connections <GRPC_CONNECTIONS>' (from T_CONNS): cannot parse a number from an empty text"},
		"env not UTF-8":              {args: ok, env: map[string]string{"T_SPACE": "a\xff"}, want: "invalid UTF-8 was detected in T_SPACE"},
		"bad env before missing":     {env: map[string]string{"T_MODE": "zz"}, want: "invalid value 'zz' for '--mode <MODE>' (from T_MODE)\n  [possible values: agg, prefill, decode]"},
		"bad envs in table order":    {env: map[string]string{"T_CONNS": "0", "T_RL": "x"}, want: "invalid value 'x' for '--enable-rl' (from T_RL)\n  [possible values: true, false]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := run(c.args, c.env)
			var usage *UsageError
			if !errors.As(err, &usage) {
				t.Fatalf("got %v, want a usage error", err)
			}
			if usage.Message != c.want {
				t.Fatalf("got  %q\nwant %q", usage.Message, c.want)
			}
			if r := usage.Report(); !strings.HasPrefix(r, "error: ") || !strings.Contains(r, "Usage: tool run [OPTIONS] --grpc-endpoint <GRPC_ENDPOINT>\n") {
				t.Fatalf("report %q", r)
			}
		})
	}
}

func TestHelpAsked(t *testing.T) {
	for _, args := range []string{"-h", "--help", "-hx", "-h5", "--help --bogus", "--grpc-endpoint=a --help", "--help --grpc-endpoint"} {
		// A bad variable does not keep the user from the help.
		if _, _, err := run(strings.Fields(args), map[string]string{"T_MODE": "zz"}); !errors.Is(err, ErrHelp) {
			t.Errorf("%s: got %v", args, err)
		}
	}
}

func TestVariableRefused(t *testing.T) {
	for name, c := range map[string]struct{ name, value, want string }{
		"number": {"T_PORT", "65536", "invalid value '65536' for T_PORT: the number is too large; at most 65535"},
		"truthy": {"T_HOST", "maybe", "invalid value 'maybe' for T_HOST: say true or false"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := run([]string{"--grpc-endpoint=a"}, map[string]string{c.name: c.value})
			var v *VariableError
			if !errors.As(err, &v) || err.Error() != c.want || errors.Unwrap(err) == nil {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestSources(t *testing.T) {
	_, from, err := run([]string{"--grpc-endpoint=a", "--enable-rl"}, map[string]string{"T_MODE": "decode", "T_HOST": "1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Source{
		"grpc-endpoint": FromArgument, "enable-rl": FromArgument, "mode": FromEnvironment, "exclude": FromDefault,
		"event-plane": 0, "T_HOST": FromEnvironment, "T_PORT": FromDefault,
	} {
		if from[name] != want {
			t.Errorf("%s: got %d, want %d", name, from[name], want)
		}
	}
}

func TestHelpText(t *testing.T) {
	var b bound
	got := table(&b).Help()
	for line := range strings.SplitSeq(got, "\n") {
		if utf8.RuneCountInString(line) > width {
			t.Errorf("too wide: %q", line)
		}
	}
	for _, want := range []string{
		"Usage: tool run [OPTIONS] --grpc-endpoint <GRPC_ENDPOINT>\n",
		"      --mode <MODE>\n          What it does\n          [env: T_MODE] [default: agg] [possible values: agg, prefill, decode]\n",
		"      --enable-rl\n          A switch\n          [env: T_RL]\n",
		"      T_PORT\n          A port\n          [default: 7]\n",
		"  -h, --help\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in\n%s", want, got)
		}
	}
}

// FuzzParse: whatever the arguments and variables are, Parse ends in one of its four ways and never half-way.
func FuzzParse(f *testing.F) {
	f.Add("--grpc-endpoint=a:1\n--mode\ndecode", "T_RL=true")
	f.Add("--grpc-endpoint\n-5", "T_MODE=")
	f.Add("--\n--x", "T_PORT=70000")
	f.Add("-h\xff", "T_HOST=on")
	f.Add("--=\n---\n-", "=")
	f.Fuzz(func(t *testing.T, argText, envText string) {
		env := map[string]string{}
		for line := range strings.SplitSeq(envText, "\n") {
			if name, value, ok := strings.Cut(line, "="); ok {
				env[name] = value
			}
		}
		b, from, err := run(strings.Split(argText, "\n"), env)
		var usage *UsageError
		var variable *VariableError
		switch {
		case err == nil:
			if b.endpoint == "" || b.mode == 0 || b.conns == 0 || from["grpc-endpoint"] < FromEnvironment {
				t.Fatalf("accepted without a required or defaulted value: %+v", b)
			}
		case errors.As(err, &usage):
			if usage.Message == "" || usage.Usage == "" {
				t.Fatal("an empty complaint")
			}
		case !errors.Is(err, ErrHelp) && !errors.As(err, &variable):
			t.Fatalf("an error of no kind: %v", err)
		}
	})
}
