package sim

import (
	"testing"

	"remora/internal/sim/core"
	"remora/internal/tinymodel"
	pb "remora/proto/vllm"
)

// TestTextOfTheEnd: a stop id has no text, whatever it stands for; held-back text comes with an answer's own end and not with an
// abort.
//
// Rules: finish-with-last-token, abort-running.
func TestTextOfTheEnd(t *testing.T) {
	word := tinymodel.Encode(" like")[0]
	token := func(id uint32) *core.Token { return &core.Token{Score: core.Score{ID: id}} }
	for _, tt := range []struct {
		name string
		end  core.Output
		want string // of the last message
	}{
		{"stop id", core.Output{Token: token(word), Reason: core.Stop, StopToken: word, Generated: 2}, "e"},
		{"end of sequence", core.Output{Token: token(tinymodel.EOS), Reason: core.Stop, StopToken: tinymodel.EOS, StopEOS: true, Generated: 2}, "e"},
		{"length", core.Output{Token: token(word), Reason: core.Length, Generated: 2}, "e like"},
		{"abort", core.Output{Reason: core.Aborted, Generated: 1}, ""},
	} {
		a := newAnswer(&pb.GenerateRequest{Stopping: &pb.StoppingCriteria{StopStrings: []string{"e!"}}}, []uint32{word})
		msgs, finished, _, err := a.add(core.Output{Token: token(word), Generated: 1}, address{})
		if err != nil || finished || len(msgs) != 2 || msgs[1].GetOutputs().GetText() != " lik" {
			t.Fatalf("%s: %v %v", tt.name, msgs, err)
		}
		msgs, finished, _, err = a.add(tt.end, address{})
		if err != nil || !finished || len(msgs) != 1 || msgs[0].GetOutputs().GetText() != tt.want {
			t.Errorf("%s: %v %v, want the text %q", tt.name, msgs, err, tt.want)
		}
	}
}

// TestStopStringWaits: one that is complete before the least number of tokens is text like any other.
func TestStopStringWaits(t *testing.T) {
	word := tinymodel.Encode(" like")[0]
	for least, want := range map[uint32]int{0: 1, 1: 1, 2: 2, 3: 3} {
		a := newAnswer(&pb.GenerateRequest{Stopping: &pb.StoppingCriteria{StopStrings: []string{"ke"}, MinNewTokens: least}}, []uint32{word})
		for n := 1; n <= want; n++ {
			msgs, finished, cut, err := a.add(core.Output{Token: &core.Token{Score: core.Score{ID: word}}, Generated: n}, address{})
			last := msgs[len(msgs)-1].GetOutputs().GetFinishInfo()
			if err != nil || finished != (n == want) || cut != finished || finished && last.GetStopString() != "ke" {
				t.Errorf("at least %d: token %d: %v %v", least, n, msgs, err)
			}
		}
	}
}
