package calibration

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// run is a row under way. It belongs to the goroutine of Run.
type run struct {
	row      Row
	pair     *Pair
	logf     func(format string, args ...any)
	mark     time.Time
	calls    map[string]*call
	handOffs map[string]*structpb.Struct
	texts    []textCheck
	gone     map[string]bool // engines that the row has cost
	stalled  bool
	seq      int
}

// textCheck compares what a call said with what the prompt's answer is, once the row is over.
type textCheck struct {
	call  *call
	right bool
	line  int
}

// Run drives the pair through the row. The error names the line that did not hold. What was seen goes to logf.
func (r Row) Run(ctx context.Context, pair *Pair, logf func(format string, args ...any)) error {
	ctx, cancel := context.WithCancel(ctx)
	do := &run{row: r, pair: pair, logf: logf, mark: time.Now(), calls: map[string]*call{}, handOffs: map[string]*structpb.Struct{}, gone: map[string]bool{}}
	defer func() {
		if do.stalled { // the row has failed: the next one needs engines that move
			if err := pair.Stall(context.WithoutCancel(ctx), false); err != nil {
				logf("transfers still stand: %v", err)
			}
		}
		cancel()
		for _, c := range do.calls {
			<-c.done
		}
	}()
	if err := do.base(ctx); err != nil {
		return fmt.Errorf("%s: at the start: %w", r.Name, err)
	}
	for _, s := range r.steps {
		if err := do.step(ctx, s); err != nil {
			return fmt.Errorf("%s: line %d: %s %s: %w", r.Name, s.line, s.verb, strings.Join(s.args, " "), err)
		}
	}
	if err := do.base(ctx); err != nil {
		return fmt.Errorf("%s: at the end: %w", r.Name, err)
	}
	for _, check := range do.texts {
		if err := do.compare(ctx, check); err != nil {
			return fmt.Errorf("%s: line %d: %w", r.Name, check.line, err)
		}
	}
	return nil
}

// base waits until neither engine uses a block, for as long as a lease can hold some. It looks three times, since the gauge of
// a real engine may lag.
func (do *run) base(ctx context.Context) error {
	for name, e := range map[string]*Engine{"P": do.pair.P, "D": do.pair.D} {
		if do.gone[name] {
			continue
		}
		idle := 0
		if _, err := poll(ctx, time.Now(), Lease+3*time.Second, func() (bool, error) {
			n, err := e.used(ctx)
			if idle++; n != 0 {
				idle = 0
			}
			return idle == 3, err
		}); err != nil {
			return fmt.Errorf("%s does not come to its base: %w", name, err)
		}
	}
	return nil
}

func (do *run) step(ctx context.Context, s step) error {
	a := s.args
	switch s.verb {
	case "prefill":
		return do.prefill(ctx, a)
	case "open":
		return do.open(ctx, a[0], a[1], a[2:])
	case "edit":
		return do.edit(a[0], a[1], a[2:])
	case "wait":
		return wait(ctx, a[0])
	case "mark":
		do.mark = time.Now()
		return nil
	case "headers", "tokens", "drop", "end":
		c, ok := do.calls[a[0]]
		if !ok {
			return fmt.Errorf("%w: no call %q", ErrScenario, a[0])
		}
		return do.onCall(ctx, s, c)
	case "abort":
		return do.abort(ctx, a[0], a[1])
	case "free", "used", "waiting", "running":
		return do.look(ctx, s.verb, a)
	case "reuse":
		return do.reuse(ctx, a[0])
	case "release":
		return do.release(ctx, a[0])
	case "stall":
		do.stalled = a[0] == "on"
		return do.pair.Stall(ctx, do.stalled)
	case "kill":
		return do.kill(ctx, a[0])
	case "restart":
		p, err := do.pair.RestartP(ctx)
		if err == nil {
			do.pair.P = p
			delete(do.gone, "P")
		}
		return err
	default:
		return fmt.Errorf("%w: step %q", ErrScenario, s.verb)
	}
}

// open sends a request under a name; its external id is the row's and the name's unless the words say otherwise.
func (do *run) open(ctx context.Context, name, at string, words []string) error {
	e, err := do.pair.engine(at)
	if err != nil {
		return err
	}
	req, unary, lazy, err := request(do.row.Name, words, do.handOffs)
	if err != nil {
		return err
	}
	if req.GetRequestId() == "" {
		req.RequestId = do.row.Name + "-" + name
	}
	if old, ok := do.calls[name]; ok { // a name may be used again when its call is over
		<-old.done
	}
	do.calls[name] = begin(ctx, e, req, unary, lazy)
	return nil
}

// prefill runs one on P and keeps its hand-off.
func (do *run) prefill(ctx context.Context, a []string) error {
	if err := do.open(ctx, a[0], "P", append([]string{"produce", "max=1"}, a[1:]...)); err != nil {
		return err
	}
	c := do.calls[a[0]]
	if err := over(ctx, c); err != nil {
		return err
	}
	params := c.finish().GetKvTransferParams()
	if params == nil {
		return fmt.Errorf("no hand-off: %s", c.why())
	}
	do.handOffs[a[0]] = params
	return nil
}

// edit makes a hand-off out of another one: key=JSON sets, key- deletes.
func (do *run) edit(name, from string, changes []string) error {
	old, ok := do.handOffs[from]
	if !ok {
		return fmt.Errorf("%w: no hand-off %q", ErrScenario, from)
	}
	edited, _ := proto.Clone(old).(*structpb.Struct)
	for _, change := range changes {
		key, text, sets := strings.Cut(change, "=")
		if !sets {
			delete(edited.GetFields(), strings.TrimSuffix(key, "-"))
			continue
		}
		value := &structpb.Value{}
		if err := json.Unmarshal([]byte(text), value); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrScenario, key, err)
		}
		edited.Fields[key] = value
	}
	do.handOffs[name] = edited
	return nil
}

func (do *run) onCall(ctx context.Context, s step, c *call) error {
	switch s.verb {
	case "headers":
		return signal(ctx, c.headers)
	case "tokens":
		n, err := strconv.Atoi(s.args[1])
		if err != nil {
			return fmt.Errorf("%w: %w", ErrScenario, err)
		}
		_, err = poll(ctx, time.Now(), patience, func() (bool, error) {
			ids, _ := c.tokens()
			return len(ids) >= n, nil
		})
		return err
	case "drop":
		c.cancel()
		do.mark = time.Now()
		return signal(ctx, c.done)
	default:
		return do.end(ctx, s, c)
	}
}

// end waits for a call's end and compares it with the words: the outcome first, then what else is known of it.
func (do *run) end(ctx context.Context, s step, c *call) error {
	c.goOn()
	if err := over(ctx, c); err != nil {
		return err
	}
	ids, most := c.tokens()
	do.logf("%s: %s after %v, %d tokens", s.args[0], c.why(), c.took.Round(time.Millisecond), len(ids))
	if got := c.outcome(); got != s.args[1] {
		return fmt.Errorf("ended with %s", c.why())
	}
	for _, word := range s.args[2:] {
		var ok bool
		switch word {
		case "right", "wrong":
			do.texts = append(do.texts, textCheck{call: c, right: word == "right", line: s.line})
			ok = len(ids) == int(c.req.GetStopping().GetMaxNewTokens())
		case "empty":
			ok = len(ids) == 0
		case "some":
			ok = len(ids) > 0 && len(ids) < int(c.req.GetStopping().GetMaxNewTokens())
		case "singly":
			ok = most == 1
		case "params":
			ok = c.finish().GetKvTransferParams() != nil
		case "no-params":
			ok = c.finish().GetKvTransferParams() == nil
		case "computed":
			ok = c.finish().GetNumCachedTokens() == 0
		case "fetched":
			ok = int(c.finish().GetNumCachedTokens()) == len(c.req.GetTokenIds().GetIds())
		default:
			low, high, err := window(word)
			if err != nil {
				return err
			}
			ok = c.took >= low && c.took <= high
		}
		if !ok {
			return fmt.Errorf("not %s: %v, %d tokens, %d at once, %v", word, c.took, len(ids), most, c.finish())
		}
	}
	return nil
}
