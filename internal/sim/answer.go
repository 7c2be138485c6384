package sim

import (
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/sim/core"
	pb "remora/proto/vllm"
)

const maxFloat32 = math.MaxFloat32

// answer turns the engine's results for one request into the messages of its stream. It belongs to the request's handler.
type answer struct {
	prompt     []uint32
	echoPrompt bool // prompt ids in PromptInfo
	text       bool
	ids        bool
	logprobs   bool
	minTokens  int
	writer     writer
	started    bool // PromptInfo has been sent
}

func newAnswer(req *pb.GenerateRequest, prompt []uint32) answer {
	want, stopping := req.GetResponse(), req.GetStopping()
	a := answer{
		prompt:     prompt,
		echoPrompt: want.GetPromptTokenIds(),
		text:       want == nil || want.OutputText == nil || want.GetOutputText(),
		ids:        want.GetOutputTokenIds(),
		logprobs:   want.GetOutputLogprobs(),
		minTokens:  int(stopping.GetMinNewTokens()),
	}
	a.writer.keepSpecials = want != nil && want.SkipSpecialTokens != nil && !want.GetSkipSpecialTokens()
	a.writer.stops = stopper{list: stopping.GetStopStrings(), include: stopping.GetIncludeStopStrings()}
	a.writer.prompt(prompt)
	return a
}

// address is where decode engines find this one.
type address struct {
	host string
	port int
}

// add turns one result into messages: PromptInfo alone comes before the first one. finished is the last of them that ends the
// answer; cut says that a stop string ended it while the engine would go on. A result that ends in an error has no message.
func (a *answer) add(out core.Output, at address) (msgs []*pb.GenerateResponse, finished, cut bool, err error) {
	switch out.Reason {
	case core.Failed:
		return nil, true, false, status.Error(codes.Internal, "engine failed during generation")
	case core.Fatal:
		return nil, true, false, errFatal()
	case core.Running, core.Length, core.Stop, core.Aborted:
	}
	if !a.started {
		a.started = true
		msgs = append(msgs, &pb.GenerateResponse{PromptInfo: a.promptInfo(out.PromptScores)})
	}
	seq := &pb.SequenceOutput{}
	stop := ""
	if out.Token != nil {
		stop = a.token(seq, out)
	}
	if stop != "" {
		seq.FinishInfo = finishInfo(out, pb.FinishInfo_STOP)
		seq.FinishInfo.StopReason = &pb.FinishInfo_StopString{StopString: stop}
		cut = out.Reason == core.Running
	} else if out.Reason != core.Running {
		seq.FinishInfo = a.finish(seq, out)
	}
	if seq.GetFinishInfo() != nil && out.HandOff != nil {
		params, err := structpb.NewStruct(out.HandOff.Params(at.host, at.port))
		if err != nil {
			return nil, true, false, status.Errorf(codes.Internal, "hand-off: %v", err)
		}
		seq.FinishInfo.KvTransferParams = params
	}
	msgs = append(msgs, &pb.GenerateResponse{Outputs: seq})
	return msgs, seq.GetFinishInfo() != nil, cut, nil
}

// token fills in one token and returns the stop string that it completes, if any.
func (a *answer) token(seq *pb.SequenceOutput, out core.Output) (stop string) {
	tok := out.Token
	seq.NumTokens = 1
	if a.ids {
		seq.TokenIds = []uint32{tok.ID}
	}
	if a.logprobs {
		seq.Logprobs = []float32{float32(tok.Logprob)}
		seq.Ranks = []uint32{uint32(tok.Rank)}
		seq.CandidateTokens = []*pb.CandidateTokenInfo{candidateInfo(tok.Candidates)}
	}
	if out.Reason == core.Stop { // end-of-sequence and stop ids have no text
		return ""
	}
	text, stop := a.writer.push(tok.ID, out.Generated >= a.minTokens)
	if a.text {
		seq.Text = text
	}
	return stop
}

// finish writes out what is left of the text and says how the answer ended.
func (a *answer) finish(seq *pb.SequenceOutput, out core.Output) *pb.FinishInfo {
	if rest := a.writer.flush(); a.text && out.Reason != core.Aborted {
		seq.Text += rest
	}
	switch out.Reason {
	case core.Stop:
		info := finishInfo(out, pb.FinishInfo_STOP)
		if out.StopEOS {
			info.StopReason = &pb.FinishInfo_EosTokenId{EosTokenId: out.StopToken}
		} else {
			info.StopReason = &pb.FinishInfo_StopTokenId{StopTokenId: out.StopToken}
		}
		return info
	case core.Length:
		return finishInfo(out, pb.FinishInfo_LENGTH)
	case core.Aborted, core.Running, core.Failed, core.Fatal:
	}
	return finishInfo(out, pb.FinishInfo_ABORTED)
}

func finishInfo(out core.Output, reason pb.FinishInfo_FinishReason) *pb.FinishInfo {
	cached := uint32(out.Cached)
	return &pb.FinishInfo{NumOutputTokens: uint32(out.Generated), FinishReason: reason, NumCachedTokens: &cached}
}

// promptInfo describes the prompt. Scores are those of every position, the first one empty.
func (a *answer) promptInfo(scores []core.Token) *pb.PromptInfo {
	info := &pb.PromptInfo{NumPromptTokens: uint32(len(a.prompt))}
	if a.echoPrompt {
		info.TokenIds = a.prompt
	}
	for _, score := range scores {
		info.Logprobs = append(info.Logprobs, float32(score.Logprob))
		info.Ranks = append(info.Ranks, uint32(score.Rank))
		info.CandidateTokens = append(info.CandidateTokens, candidateInfo(score.Candidates))
	}
	return info
}

func candidateInfo(scores []core.Score) *pb.CandidateTokenInfo {
	info := &pb.CandidateTokenInfo{}
	for _, s := range scores {
		info.Tokens = append(info.Tokens, &pb.TokenInfo{Id: s.ID, Logprob: float32(s.Logprob), Rank: uint32(s.Rank)})
	}
	return info
}

func errFatal() error {
	return status.Error(codes.Internal, "engine-core error: engine core reported fatal failure")
}

// merge joins the messages of a stream into the one of the unary call.
func merge(msgs []*pb.GenerateResponse) *pb.GenerateResponse {
	all := &pb.GenerateResponse{Outputs: &pb.SequenceOutput{}}
	seq := all.GetOutputs()
	for _, m := range msgs {
		if m.GetPromptInfo() != nil {
			all.PromptInfo = m.GetPromptInfo()
		}
		out := m.GetOutputs()
		seq.Text += out.GetText()
		seq.NumTokens += out.GetNumTokens()
		seq.TokenIds = append(seq.TokenIds, out.GetTokenIds()...)
		seq.Logprobs = append(seq.Logprobs, out.GetLogprobs()...)
		seq.Ranks = append(seq.Ranks, out.GetRanks()...)
		seq.CandidateTokens = append(seq.CandidateTokens, out.GetCandidateTokens()...)
		if out.GetFinishInfo() != nil {
			seq.FinishInfo = out.GetFinishInfo()
		}
	}
	return all
}
