package core

import "time"

// Request is what an engine is asked to do. The caller has validated it: ids inside the vocabulary, at least one prompt token,
// prompt shorter than the model length, MaxTokens at least 1.
type Request struct {
	ID             string // internal id, unique among live requests
	Prompt         []uint32
	MaxTokens      int // at least 1; generation also ends at the model length
	MinTokens      int // end-of-sequence and stop ids cannot be sampled before that many tokens
	StopTokens     []uint32
	IgnoreEOS      bool
	BypassCache    bool    // do not read the prefix cache; what is computed still enters it
	CacheSalt      string  // changes all block hashes
	Media          []Media // in order of their offset, inside the prompt
	Sampling       Sampling
	PromptLogprobs *int // nil: none; else that many candidates for each prompt position. Bypasses the cache
	Transfer       Transfer
}

// Sampling says how a token is picked. The zero value is greedy.
type Sampling struct {
	Temperature       float64 // 0: greedy
	TopK              int     // 0: off
	TopP              float64 // 0: off
	MinP              float64 // 0: off
	Seed              uint64  // used with a temperature only
	PresencePenalty   float64
	FrequencyPenalty  float64
	RepetitionPenalty float64 // 0: neutral
	Bias              map[uint32]float64
	Allowed           []uint32   // empty: all
	BadWords          [][]uint32 // sequences that may not be completed
	Choices           [][]uint32 // not empty: the output is one of these and then end-of-sequence
	Logprobs          *int       // nil: none; 0: the sampled token only; else that many candidates
	LogprobIDs        []uint32   // with Logprobs: candidates are exactly these ids
}

// Reason says how a request ended.
type Reason int

// The ways in which a request ends. Running is the zero value: not ended.
const (
	Running Reason = iota
	Length
	Stop
	Aborted
	Failed // the engine gave the request up: its KV could not be loaded
	Fatal  // the whole engine is lost
)

// Score is one token with its log probability.
type Score struct {
	ID      uint32
	Logprob float64
	Rank    int // 1 is the most probable one
}

// Token is one generated token.
type Token struct {
	Score

	Candidates []Score // as Sampling.Logprobs asks
}

// Output is one result of a request. A request has any number with a token and exactly one with a Reason other than Running;
// the last token and the reason come together.
type Output struct {
	ID           string
	Token        *Token  // nil: none in this output
	PromptScores []Token // first output only, when asked for; position 0 is empty
	Reason       Reason
	StopToken    uint32   // with Stop: the token that ended it
	StopEOS      bool     // with Stop: it was the end-of-sequence token doing its duty
	Generated    int      // tokens so far
	Cached       int      // prompt tokens that were not computed here
	HandOff      *HandOff // hand-off for a decode engine, when the request asked for one and ended by Length or Stop
}

// state is where a request stands.
type state int

const (
	waiting    state = iota // in the queue; no blocks, unless received is set
	remoteWait              // in the queue, has blocks, the transfer runs
	running
	recvPending // ended during the transfer: not in any queue, keeps its blocks until the transfer ends
	ended
)

// sequence is a live request with its progress. All fields belong to the engine's owner.
type sequence struct {
	req        Request
	state      state
	tokens     []uint32 // prompt and generated
	table      []int    // block ids, in order of position
	hashes     []uint64 // hashes of the full blocks of tokens, as far as computed
	computed   int      // tokens whose slots are valid
	cached     int      // -1 until first scheduled
	remote     bool     // the remote prefill has still to be fetched (do_remote_prefill as the engine keeps it)
	received   bool     // transfer done; the table is complete, and taken up by the next Schedule
	failed     bool     // transfer failed, likewise
	local      []int    // blocks that the transfer fills
	beating    bool     // its lease elsewhere has to be renewed
	sampleDue  bool     // the step that runs samples a token
	digest     uint64   // of all slots, as read by the step that runs
	scores     []Token  // prompt scores, as far as computed
	scoresSent bool
}

func (s *sequence) generated() int { return len(s.tokens) - len(s.req.Prompt) }

// hold keeps the blocks of a finished prefill until a decode engine has read them or the lease ends.
type hold struct {
	id       string
	table    []int
	deadline time.Duration
}
