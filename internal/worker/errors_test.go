package worker

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"remora/internal/dynamo/protocol"
	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

const deadText = "engine core reported fatal failure: EngineDeadError"

// TestKinds is the whole mapping of an engine stream's end to what the frontend is told, and whether a prologue may say it.
func TestKinds(t *testing.T) {
	type row struct {
		status   vllm.Status
		want     string
		prologue bool
	}
	code := func(c codes.Code) vllm.Status { return vllm.Status{RPC: "GenerateStream", Code: c, Message: "no"} }
	broken := func(c codes.Code, notSent bool) vllm.Status {
		return vllm.Status{RPC: "GenerateStream", Code: c, Message: "gone", Transport: true, NotSent: notSent}
	}
	for name, row := range map[string]row{
		"OK":                   {code(codes.OK), "Backend.StreamIncomplete", false},
		"Canceled":             {code(codes.Canceled), "Backend.Cancelled", false},
		"Unknown":              {code(codes.Unknown), "Backend.Unknown", false},
		"InvalidArgument":      {code(codes.InvalidArgument), "Backend.InvalidArgument", true},
		"DeadlineExceeded":     {code(codes.DeadlineExceeded), "Backend.ConnectionTimeout", false},
		"NotFound":             {code(codes.NotFound), "Backend.InvalidArgument", true},
		"AlreadyExists":        {code(codes.AlreadyExists), "Backend.InvalidArgument", true},
		"PermissionDenied":     {code(codes.PermissionDenied), "Backend.Unknown", false},
		"ResourceExhausted":    {code(codes.ResourceExhausted), "WorkerOverloaded", true},
		"FailedPrecondition":   {code(codes.FailedPrecondition), "Backend.InvalidArgument", true},
		"Aborted":              {code(codes.Aborted), "Backend.Unknown", false},
		"OutOfRange":           {code(codes.OutOfRange), "Backend.InvalidArgument", true},
		"Unimplemented":        {code(codes.Unimplemented), "Backend.Unknown", false},
		"Internal":             {code(codes.Internal), "Backend.Unknown", false},
		"Unavailable":          {code(codes.Unavailable), "Backend.CannotConnect", true},
		"DataLoss":             {code(codes.DataLoss), "Backend.Unknown", false},
		"Unauthenticated":      {code(codes.Unauthenticated), "Backend.Unknown", false},
		"a code of tomorrow":   {code(codes.Code(99)), "Backend.Unknown", false},
		"dead EngineCore":      {vllm.Status{Code: codes.Internal, Message: deadText}, "Backend.EngineShutdown", true},
		"connection lost":      {broken(codes.Unavailable, false), "Backend.EngineShutdown", true},
		"stream reset":         {broken(codes.Internal, false), "Backend.StreamIncomplete", false},
		"never sent":           {broken(codes.Unavailable, true), "Backend.CannotConnect", true},
		"stream refused":       {broken(codes.Unavailable, true), "Backend.CannotConnect", true},
		"our own drop":         {vllm.Status{Code: codes.Canceled, Dropped: true}, "Backend.Cancelled", false},
		"our own drop, no end": {vllm.Status{Code: codes.Unavailable, Dropped: true}, "Backend.Cancelled", false},
	} {
		got := streamError(row.status)
		if kindName(got.Kind) != row.want || fitForPrologue(got.Kind) != row.prologue {
			t.Errorf("%s: got %s, by prologue %v; want %s, %v", name, kindName(got.Kind), fitForPrologue(got.Kind), row.want, row.prologue)
		}
		if got.Message == "" {
			t.Errorf("%s: nothing for operators", name)
		}
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if _, known := errorCodes[code]; !known && code != codes.OK {
			t.Errorf("no row in TestEngineFails for %v", code)
		}
	}
}

// errorCodes are the codes that an engine may answer with, and what the client reads.
var errorCodes = map[codes.Code]string{
	codes.Canceled: "Backend.Cancelled", codes.Unknown: "Backend.Unknown", codes.InvalidArgument: "Backend.InvalidArgument",
	codes.DeadlineExceeded: "Backend.ConnectionTimeout", codes.NotFound: "Backend.InvalidArgument",
	codes.AlreadyExists: "Backend.InvalidArgument", codes.PermissionDenied: "Backend.Unknown",
	codes.ResourceExhausted: "WorkerOverloaded", codes.FailedPrecondition: "Backend.InvalidArgument",
	codes.Aborted: "Backend.Unknown", codes.OutOfRange: "Backend.InvalidArgument", codes.Unimplemented: "Backend.Unknown",
	codes.Internal: "Backend.Unknown", codes.DataLoss: "Backend.Unknown", codes.Unauthenticated: "Backend.Unknown",
	// grpc-go does not tell who wrote it, and an engine never does: it counts as a broken connection.
	codes.Unavailable: "Backend.EngineShutdown",
}

// byPrologue are the kinds that a client reads in place of a good prologue.
var byPrologue = []string{"Backend.InvalidArgument", "WorkerOverloaded", "Backend.EngineShutdown"}

// failure is one way of an engine's going wrong.
type failure struct {
	name string
	step func(r *rig) vllmtest.Step
	kind string // without a cancel
	bare bool   // also without headers before it
}

func failures() (all []failure) {
	always := func(s vllmtest.Step) func(*rig) vllmtest.Step { return func(*rig) vllmtest.Step { return s } }
	for code, kind := range errorCodes {
		all = append(all, failure{code.String(), always(vllmtest.Status(code, "no")), kind, true})
	}
	return append(all,
		failure{"EOF", always(vllmtest.EOF()), "Backend.StreamIncomplete", true},
		failure{"dead EngineCore", always(vllmtest.Status(codes.Internal, deadText)), "Backend.EngineShutdown", true},
		failure{"killed", func(r *rig) vllmtest.Step {
			return func(c *vllmtest.Call) error {
				if err := vllmtest.Sleep(time.Second)(c); err != nil { // what was said before must arrive
					return err
				}
				r.engine.Kill()
				return nil
			}
		}, "Backend.EngineShutdown", true},
		failure{"nonsense", always(vllmtest.Message(&pb.GenerateResponse{Outputs: &pb.SequenceOutput{Index: 3, NumTokens: 1, TokenIds: []uint32{5}}})),
			"Backend.Unknown", false},
	)
}

// TestEngineFails: every end of an engine stream, before and after the headers, in every role, with and without a cancel
// before it; what the client reads and what is counted.
func TestEngineFails(t *testing.T) {
	roles := []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode}
	for _, failure := range failures() {
		for _, role := range roles {
			for _, headers := range []bool{false, true} {
				if !headers && !failure.bare {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/headers=%v", failure.name, role, headers), func(t *testing.T) {
					bubble(t, role, func(r *rig) { r.failsPlainly(failure, headers) })
				})
				for _, way := range []string{"stop", "kill", "cut"} {
					t.Run(fmt.Sprintf("%s/%s/headers=%v/after %s", failure.name, role, headers, way), func(t *testing.T) {
						bubble(t, role, func(r *rig) { r.failsAfter(way, failure, headers) })
					})
				}
			}
		}
	}
}

func (r *rig) failsPlainly(f failure, headers bool) {
	want := "error(" + f.kind + ") final"
	var steps []vllmtest.Step
	switch role := r.role; {
	case headers && role == protocol.Prefill:
		steps = []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4)}
	case headers:
		steps, want = []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(11)}, "11 "+want
	case slices.Contains(byPrologue, f.kind):
		want = "prologue(" + f.kind + ")"
	}
	r.engine.Script("x", append(steps, f.step(r))...)
	if got := r.send("x").read(); got != want {
		r.t.Errorf("read %q, want %q", got, want)
	}
	r.wg.Wait()
	r.counted(map[string]float64{"error": 1}, 1)
	if n := r.count("dynamo_component_cancellation_total"); n != 0 {
		r.t.Errorf("%v cancels counted", n)
	}
	if n := r.engine.Count(vllmtest.Aborted, ""); n != 0 {
		r.t.Errorf("%d aborts of a stream that had ended", n)
	}
}

// failsAfter has the client leave before a token came; ten seconds later, where somebody still reads, the failure comes.
func (r *rig) failsAfter(way string, f failure, headers bool) {
	var steps []vllmtest.Step
	if headers {
		steps = []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4)}
	}
	r.engine.Script("x", append(steps, vllmtest.WaitDeaf(after(10*time.Second)), f.step(r))...)
	o := r.send("x")
	synctest.Wait()
	o.leave(way)
	if got := o.read(); way == "stop" && got != "cancelled final" {
		r.t.Errorf("read %q, want it cancelled", got)
	}
	r.wg.Wait()
	r.counted(map[string]float64{"cancelled": 1}, 0)
	if n := r.count("dynamo_component_cancellation_total"); n != 1 {
		r.t.Errorf("%v cancels counted, want 1", n)
	}
	if r.role != protocol.Decode {
		return
	}
	outcome := "ended"
	if f.name == "nonsense" {
		outcome = "released" // it cannot be converted, but it has a token
	}
	if n := r.count("remora_drains_total", `"`+outcome+`"`); n != 1 {
		r.t.Errorf("%v drains %s, want 1", n, outcome)
	}
}

// leave ends a request from the client's side, in one of three ways.
func (o *open) leave(way string) {
	switch way {
	case "stop":
		o.say("stop")
	case "kill":
		o.Kill()
	case "cut":
		o.cut()
	}
}

// counted checks how the requests ended, by terminal, and how many failures at the engine were counted.
func (r *rig) counted(terminals map[string]float64, failed float64) {
	r.t.Helper()
	for _, terminal := range []string{"finished", "cancelled", "error", "refused"} {
		if got := r.count("remora_requests_terminal_total", `"`+terminal+`"`); got != terminals[terminal] {
			r.t.Errorf("%v requests %s, want %v", got, terminal, terminals[terminal])
		}
	}
	if got := r.count("dynamo_component_errors_total", `error_type="generate"`); got != failed {
		r.t.Errorf("%v failures counted, want %v", got, failed)
	}
	for _, gauge := range []string{"dynamo_component_inflight_requests", "remora_draining_requests"} {
		if got := r.count(gauge); got != 0 {
			r.t.Errorf("%s is %v, want 0", gauge, got)
		}
	}
}
