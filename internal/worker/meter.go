package worker

import (
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
	"remora/internal/vllm"
)

// The words of the rooms below in the words of the metrics.

func terminal(t handoff.Terminal) status.Terminal {
	switch t {
	case handoff.Finished:
		return status.TerminalFinished
	case handoff.Cancelled:
		return status.TerminalCancelled
	case handoff.Refused:
		return status.TerminalRefused
	case handoff.Failed, handoff.Incomplete, handoff.Shutdown:
		return status.TerminalError
	default:
		return status.TerminalError
	}
}

func drainOutcome(o handoff.DrainOutcome) status.DrainOutcome {
	switch o {
	case handoff.DrainReleased:
		return status.DrainReleased
	case handoff.DrainFinished:
		return status.DrainFinished
	case handoff.DrainAborted:
		return status.DrainAborted
	case handoff.DrainEnded:
		return status.DrainEnded
	case handoff.DrainDeadline:
		return status.DrainDeadline
	case handoff.DrainHeadersNever:
		return status.DrainHeadersNever
	case handoff.DrainNeverSubmitted:
		return status.DrainNeverSubmitted
	case handoff.DrainCut:
		return status.DrainCut
	default:
		return status.DrainEnded
	}
}

func engineLoss(c vllm.Change) status.EngineLoss {
	switch {
	case c.State == vllm.EngineNotServing:
		return status.LossNotServing
	case c.Silent:
		return status.LossSilent
	default:
		return status.LossGone
	}
}
