package calibration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	pb "remora/proto/vllm"
)

// abort sends Control.Abort for the id of a call, or for a text that is no call's name.
func (do *run) abort(ctx context.Context, name, at string) error {
	e, err := do.pair.engine(at)
	if err != nil {
		return err
	}
	id := name
	if c, ok := do.calls[name]; ok {
		id = c.req.GetRequestId()
	}
	do.mark = time.Now()
	_, err = e.control().Abort(ctx, &pb.AbortRequest{RequestIds: []string{id}})
	return err
}

// look waits until a number of an engine is what it shall be; free also says when, counted from the mark.
func (do *run) look(ctx context.Context, what string, a []string) error {
	e, err := do.pair.engine(a[0])
	if err != nil {
		return err
	}
	low, high, want, since := time.Duration(0), 2*time.Second, 0, time.Now()
	if what == "free" {
		since = do.mark
		low, high, err = window(a[1])
	} else {
		want, err = strconv.Atoi(a[1])
	}
	if err != nil {
		return err
	}
	got := 0
	took, err := poll(ctx, since, high, func() (ok bool, err error) {
		got, err = e.count(ctx, what)
		return got == want, err
	})
	if err != nil {
		return fmt.Errorf("it is %d: %w", got, err)
	}
	if what == "free" {
		do.logf("%s free after %v", a[0], took.Round(time.Millisecond))
		if took < low {
			return fmt.Errorf("already after %v", took)
		}
	}
	return nil
}

// reuse overwrites every free block of an engine.
func (do *run) reuse(ctx context.Context, at string) error {
	for n := range Blocks*BlockSize/(MaxModelLen-2*BlockSize) + 1 {
		do.seq++
		name := fmt.Sprintf("reuse%d-%d", do.seq, n)
		if err := do.open(ctx, name, at, []string{fmt.Sprintf("prompt=%s/%d", name, MaxModelLen-2*BlockSize), "max=1"}); err != nil {
			return err
		}
		if err := over(ctx, do.calls[name]); err != nil {
			return err
		}
		if got := do.calls[name].outcome(); got != "LENGTH" {
			return fmt.Errorf("%s ended with %s", name, got)
		}
	}
	return nil
}

// release gives a hand-off's blocks back as a sidecar does: a decode of one prompt token whose output nobody wants.
func (do *run) release(ctx context.Context, name string) error {
	do.seq++
	id := fmt.Sprintf("release%d", do.seq)
	if err := do.open(ctx, id, "D", []string{"prompt=" + id + "/1", "max=1", "hand=" + name}); err != nil {
		return err
	}
	do.mark = time.Now()
	return over(ctx, do.calls[id])
}

func (do *run) kill(ctx context.Context, name string) error {
	do.gone[name] = true
	if name == "D" { // the row has made it die, and only says so
		return nil
	}
	do.mark = time.Now()
	return do.pair.KillP(ctx)
}

// compare asks D for the prompt's own answer, computed without caches.
func (do *run) compare(ctx context.Context, check textCheck) error {
	req, _ := proto.Clone(check.call.req).(*pb.GenerateRequest)
	do.seq++
	req.RequestId = fmt.Sprintf("%s-reference%d", do.row.Name, do.seq)
	req.Kv = &pb.KVCacheParameters{BypassPrefixCache: true}
	c := begin(ctx, do.pair.D, req, false, false)
	do.calls[req.GetRequestId()] = c
	if err := over(ctx, c); err != nil {
		return err
	}
	if c.err != nil {
		return fmt.Errorf("reference: %w", c.err)
	}
	want, _ := c.tokens()
	got, _ := check.call.tokens()
	if slices.Equal(got, want) != check.right {
		return fmt.Errorf("text right: %v, expected: %v; %v, the prompt's answer is %v", !check.right, check.right, got, want)
	}
	return nil
}
