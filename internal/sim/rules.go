package sim

import "slices"

// Rule is one thing that a real engine was seen to do and this one does as well, or that it is known not to do. Section and
// Row say where it is written down: the sections are those of the project's notes on vLLM 0.32.0 (A messages, B streams and
// aborts, D hand-offs, E KV events, I questions that were open), whose rows were measured unless the section says "from source":
// then it was read in that release's own code. Who does not have the notes finds the proof in the calibration: a rule that one of
// its rows cites is held to a real pair by the same lines. Tests cite rules by name; one fails when a rule is cited by no test, or
// a test cites a rule that is not here.
type Rule struct {
	Name    string
	Section string
	Row     string // what happens, in our words
	Outside string // not empty: why the simulator does not have it
}

// Rules lists them in the order of their sections.
func Rules() []Rule {
	return slices.Concat(streamRules(), handOffRules(), eventRules(), mediaRules(), engineRules())
}

// streamRules are those of one engine and its client.
func streamRules() []Rule {
	return []Rule{
		{Name: "headers-at-submission", Section: "B.1", Row: "response headers go out when the request is queued; they promise nothing else"},
		{Name: "prompt-info-first", Section: "B.1", Row: "the first engine output is a message with prompt_info alone, the first token follows at once"},
		{Name: "one-token-a-message", Section: "B.1", Row: "each message has one token, also in bursts; only an ABORTED end has none"},
		{Name: "finish-with-last-token", Section: "B.1", Row: "finish_info comes with the last token, then OK"},
		{Name: "drop-before-handler", Section: "B.2", Row: "a reset before the handler ran: nothing is submitted"},
		{Name: "drop-after-send", Section: "B.2", Row: "dropped right after send or after the headers: submitted, then aborted at once"},
		{Name: "drop-queued", Section: "B.2", Row: "dropped while queued: leaves the queue at once"},
		{Name: "drop-remote-wait", Section: "B.2", Row: "dropped while its KV is fetched: leaves the queue at once; D's blocks stay until the READ ends"},
		{Name: "drop-running", Section: "B.2", Row: "dropped while running: request and blocks are gone after a step or two"},
		{Name: "drop-unary", Section: "B.2", Row: "a unary call that is dropped ends the same way"},
		{Name: "slow-reader", Section: "B.2", Row: "a client that does not read loses nothing; the engine goes on, messages are not merged"},
		{Name: "abort-running", Section: "B.2", Row: "abort of a running request: last message ABORTED without token or params, then OK"},
		{Name: "abort-queued", Section: "B.2", Row: "abort of a queued request: prompt_info, then ABORTED, then OK"},
		{Name: "abort-remote-wait", Section: "B.2", Row: "abort while the KV is fetched: the same"},
		{Name: "abort-unary", Section: "B.2", Row: "abort of a unary call: OK with the tokens so far and ABORTED"},
		{Name: "abort-unknown", Section: "B.2", Row: "unknown, empty, repeated and finished ids are ignored"},
		{Name: "abort-twins", Section: "B.2", Row: "two live requests with one external id are both aborted"},
		{Name: "abort-early-lost", Section: "B.2", Row: "an abort that overtakes its request is ignored and the request runs on"},
		{Name: "abort-after-headers", Section: "B.2", Row: "an abort after the headers works every time"},
		{Name: "abort-dead", Section: "B.2", Row: "Abort says OK although the engine is dead"},
		{Name: "ids-side-by-side", Section: "B.3", Row: "the internal id is the external one with eight random hex digits; equal ids run side by side"},
		{Name: "refusals-without-headers", Section: "B.4", Row: "refusals are trailers only, with the recorded codes and words"},
		{Name: "load-failure", Section: "B.4", Row: "a request that the engine gives up is INTERNAL after the headers; the engine is well"},
	}
}

// handOffRules are those of a pair.
func handOffRules() []Rule {
	return []Rule{
		{Name: "blocks-empty", Section: "D.2", Row: "block list empty or missing: the engine core dies"},
		{Name: "blocks-too-few", Section: "D.2", Row: "an empty group, or fewer blocks than the prompt needs: the engine core dies"},
		{Name: "blocks-flat", Section: "D.2", Row: "a flat block list: the engine core dies"},
		{Name: "key-missing", Section: "D.2", Row: "port, host, engine id or request id missing: no answer ever, and D's blocks are lost, aborted or not"},
		{Name: "host-null", Section: "D.2", Row: "null host with an unknown engine id: INTERNAL after 5 s"},
		{Name: "nobody-listens", Section: "D.2", Row: "unknown engine id, nobody listens: INTERNAL after 5 s"},
		{Name: "wrong-engine", Section: "D.2", Row: "another engine listens there: INTERNAL soon"},
		{Name: "known-engine", Section: "D.2", Row: "a known engine id with a wrong port, or a port as text: works"},
		{Name: "blocks-beyond", Section: "D.2", Row: "block ids beyond P's pool: INTERNAL at once"},
		{Name: "blocks-from-the-end", Section: "D.2", Row: "more blocks than needed, or a shorter prompt: matched from the end, OK and wrong text"},
		{Name: "other-tokens", Section: "D.2", Row: "other tokens of the same length: OK and wrong text"},
		{Name: "wrong-request-id", Section: "D.2", Row: "wrong request id: right text; P holds for its lease"},
		{Name: "no-remote-prefill", Section: "D.2", Row: "do_remote_prefill absent: D computes, right text; P holds for its lease"},
		{Name: "both-flags", Section: "D.2, calibration", Row: "both flags: D fetches, which frees P, then hands off and holds itself (not: computes)"},
		{Name: "bypass-on-d", Section: "D.2", Row: "prefix cache bypassed on D: D computes, right text; P is released"},
		{Name: "no-tp-size", Section: "D.2", Row: "tp_size missing: works without heartbeats"},
		{Name: "ignored-keys", Section: "D.2", Row: "transfer mode of the other kind, more keys, fewer of the newer ones: works"},
		{Name: "push-without-id", Section: "D.2", Row: "push mode without a request id: the engine core dies", Outside: "push mode is not simulated"},
		{Name: "key-missing-queued", Section: "D.2, measured", Row: "a key is absent, the list included, and the request leaves the queue: the engine core dies"},
		{Name: "blocks-empty-queued", Section: "D.2, calibration", Row: "block list empty or malformed, and the request leaves the queue: P is released"},
		{Name: "heartbeats", Section: "D.3", Row: "a queued decode renews P's lease six times a lease, by two thirds of it"},
		{Name: "first-heartbeat", Section: "D.3, from source", Row: "the first heartbeat to an unknown engine is only a contact: the next one renews"},
		{Name: "one-handshake-at-a-time", Section: "D.4, calibration", Row: "first contacts are made one after the other: one that fails delays the rest by 5 s"},
		{Name: "received-first", Section: "D.4, from source", Row: "a decode whose KV has come goes before all that wait without blocks"},
		{Name: "admission", Section: "D.4, from source", Row: "a start needs blocks for all tokens; a fetch leaves what running prompts need"},
		{Name: "hand-off-text", Section: "D.4", Row: "a decode after a hand-off says what one engine says"},
		{Name: "p-leaves-early", Section: "D.5", Row: "prefill aborted or dropped before its end: blocks free at once, no params"},
		{Name: "p-dropped-late", Section: "D.5", Row: "prefill dropped after its end: held for the lease, and nobody knows the id"},
		{Name: "p-aborted-late", Section: "D.5", Row: "prefill aborted after its end: held for the lease"},
		{Name: "never-called", Section: "D.5", Row: "no decode comes: held for the lease, on an idle engine too"},
		{Name: "d-reset-before-handler", Section: "D.5", Row: "decode reset before D's handler ran: P holds for its lease"},
		{Name: "d-refuses", Section: "D.5", Row: "decode refused by D's front end: P holds for its lease"},
		{Name: "d-dropped-early", Section: "D.5", Row: "decode dropped right after send or headers: both sides free at once"},
		{Name: "d-leaves-queue", Section: "D.5", Row: "decode aborted or dropped while queued: P is told and free at once"},
		{Name: "d-leaves-during-read", Section: "D.5", Row: "decode gone while the READ stands still: ended at once, D's blocks stay until it goes on, others run"},
		{Name: "read-stalled", Section: "D.5", Row: "READ longer than the lease: right text, P freed by the completion"},
		{Name: "d-dropped-running", Section: "D.5", Row: "decode dropped after its first token: D free at once, P already was"},
		{Name: "d-twice", Section: "D.5", Row: "one hand-off twice, blocks not reused: right twice"},
		{Name: "d-twice-reused", Section: "D.5", Row: "one hand-off twice, blocks reused: OK, wrong text, poisoned prefix cache"},
		{Name: "d-twice-at-once", Section: "D.5", Row: "one hand-off twice at the same time: right twice"},
		{Name: "d-late", Section: "D.5", Row: "after the lease, blocks not reused: right by luck"},
		{Name: "d-late-reused", Section: "D.5", Row: "after the lease, blocks reused: OK, wrong text, the prompt stays wrong on D until the cache is bypassed"},
		{Name: "d-leaves-handshake", Section: "D.5", Row: "decode gone during a first handshake that fails: D's blocks stay until it has, P's until the lease ends"},
		{Name: "p-killed", Section: "D.5, calibration", Row: "P killed: INTERNAL at once, each time, and D is well"},
		{Name: "p-restarted", Section: "D.5", Row: "P restarted: old hand-offs are INTERNAL, new ones right at once"},
		{Name: "d-dies", Section: "D.5", Row: "D's engine core dies: P holds for its lease"},
		{Name: "random-drops", Section: "D.5", Row: "a crowd of hand-offs dropped at odd moments: all is freed by completions, the rest is right"},
		{Name: "release-by-drop", Section: "D.5", Row: "releasing P: the same request, dropped or aborted after its headers"},
		{Name: "release-one-token", Section: "D.5", Row: "releasing P: a prompt of one token with the hand-off; D's cache stays clean"},
	}
}

// eventRules are those of KV events and data-parallel ranks.
func eventRules() []Rule {
	return []Rule{
		{Name: "rank-info", Section: "A.6", Row: "GetServerInfo: blocks are summed over the local ranks; sizes, limits and world size are one rank's"},
		{Name: "rank-metadata", Section: "B.4, B.5", Row: "global rank, blanks ignored: no u32 is INVALID_ARGUMENT, no local rank likewise, after all other checks"},
		{Name: "rank-balance", Section: "B.5, measured", Row: "no rank: the one with the fewest live requests by the front end's count (the first of several)"},
		{Name: "rank-pools", Section: "B.5, D.1, measured", Row: "each rank has its own blocks, cache, engine id (_dp and local number) and side-channel port"},
		{Name: "events-config", Section: "E.1", Row: "fields and defaults of the configuration; each rank's port is rank 0's plus the rank"},
		{Name: "events-sources", Section: "A.6, B.5", Row: "GetKvEventSources: endpoints as configured, one source a rank, none without events"},
		{Name: "events-frames", Section: "E.2", Row: "topic, sequence of 8 bytes from 0, MessagePack of [seconds, events, rank]"},
		{Name: "events-forms", Section: "E.2", Row: "maps with exactly the recorded keys; arrays in older releases"},
		{Name: "events-stored", Section: "E.2", Row: "one BlockStored for all blocks of a prompt that are new, another one when an answer fills a block"},
		{Name: "events-removed", Section: "E.2", Row: "one BlockRemoved for each evicted block, before the store that it made room for"},
		{Name: "events-step", Section: "E.2, measured", Row: "a message is what one step did, published at its end; nothing, no message"},
		{Name: "events-cleared", Section: "E.2", Row: "AllBlocksCleared waits for the head of the next message"},
		{Name: "pause-drains", Section: "measured", Row: "PauseGeneration(WAIT) lets fetched requests end, and waits for transfers"},
		{Name: "pause-held", Section: "measured", Row: "PauseGeneration(WAIT) waits for the leases of held hand-offs, then clears"},
		{Name: "pause-keep", Section: "measured", Row: "PauseGeneration(KEEP) takes the blocks of running requests to clear the cache; they compute them anew"},
		{Name: "events-clear-in-use", Section: "from source", Row: "the cache is not cleared while a block is in use"},
		{Name: "events-salt", Section: "E.2, measured", Row: "a cache salt is in extra_keys, of the prompt's first block alone"},
		{Name: "events-fetched", Section: "E.2", Row: "D tells of fetched blocks in one event when it has them; nothing before, nothing after an abort"},
		{Name: "events-hash", Section: "E.3", Row: "hashes are u64, or 32 bytes that end in them, and begin at a seed"},
		{Name: "events-replay", Section: "E.5", Row: "batches from a number on, as far back as buffer_steps, and an end marker; older releases send no topic"},
		{Name: "events-lost", Section: "E.1", Row: "a message that a subscriber has no room for is lost to it, and keeps its number"},
		{Name: "cache-metrics", Section: "F", Row: "prefix_cache_queries and _hits count tokens; the label engine is the rank"},
	}
}

// mediaRules are those of images, films and sounds. No real engine that takes them was measured.
func mediaRules() []Rule {
	return []Rule{
		{Name: "media-refused", Section: "B.4", Row: "media with a text prompt, and media for a model that takes none: INVALID_ARGUMENT in the recorded words"},
		{Name: "media-flag", Section: "A.6, from source", Row: "GetModelInfo says supports_multimodal"},
		{Name: "media-truncation", Section: "A.3, from source", Row: "truncate_prompt_tokens with media: INVALID_ARGUMENT"},
		{Name: "media-unready", Section: "B.4, from source", Row: "media that cannot be prepared: INVALID_ARGUMENT"},
		{Name: "media-expansion", Section: "A.3, A.5, from source", Row: "placeholders grow and PromptInfo tells how long the prompt is; features change nothing"},
		{Name: "media-identity", Section: "A.4, from source", Row: "an item is known by uuid or identifier, else by content; other bytes of one name go unnoticed"},
		{Name: "media-hash", Section: "E.3, from source", Row: "a block's hash has every item that reaches into it, with its place in the block"},
		{Name: "media-other-on-d", Section: "D.2, from source", Row: "other media on D than on P: OK, P's text, and D's cache has it under D's names"},
		{Name: "events-media", Section: "E.2, from source", Row: "extra_keys have [identifier, offset in the block] for each item of a block, before the salt"},
		{Name: "media-fetch", Section: "A.4", Row: "URLs are fetched", Outside: "there is no network: the text of a URL stands for what is there"},
		{Name: "media-encoder", Section: "A.5", Row: "ec_transfer_params take the place of the encoder's work", Outside: "there is no encoder"},
	}
}

// engineRules are those of the engine core, and of the server around it.
func engineRules() []Rule {
	return []Rule{
		{Name: "death-health", Section: "B.7", Row: "engine core dead: all names NOT_SERVING within 0.1 s and for good, /health 503, /metrics still there"},
		{Name: "death-streams", Section: "B.7", Row: "engine core dead: open streams and new requests are INTERNAL"},
		{Name: "death-refusals", Section: "B.7", Row: "engine core dead: what is refused is still refused as before"},
		{Name: "death-control", Section: "B.7", Row: "engine core dead: GetServerInfo and GetKvEventSources answer, IsPaused is INTERNAL"},
		{Name: "death-exit", Section: "B.7", Row: "engine core dead: half a minute later the process is gone"},
		{Name: "pause-wait", Section: "B.7", Row: "PauseGeneration(WAIT): requests are accepted and silent until ResumeGeneration"},
		{Name: "block-hash", Section: "D.10, from source", Row: "full blocks only are cached; the last prompt token is always computed"},
		{Name: "hit-in-flight", Section: "D.10, from source", Row: "blocks of a running prefill hit once their step is scheduled"},
		{Name: "free-order", Section: "D.10, measured", Row: "blocks that are not cached are taken first, then the first freed; of one request, its tail"},
		{Name: "held-counted", Section: "D.10, from source", Row: "held blocks count as used and are never taken"},
		{Name: "remote-wait-counted", Section: "D.10, from source", Row: "a request whose KV is fetched counts as waiting and deferred, and its blocks as used"},
		{Name: "step-order", Section: "D.10, from source", Row: "an abort inside the last step still wins over its result; notices are taken up once a step"},
		{Name: "lease-scan", Section: "D.10, from source", Row: "leases are looked at once a step, on idle engines too; with a fault only from the head"},
		{Name: "late-read", Section: "D.10, from source", Row: "a late READ copies what the blocks hold now, and D caches the copy as right"},
		{Name: "usage", Section: "D.10, from source", Row: "usage is used blocks by all but one; block 0 is never used"},
		{Name: "preemption", Section: "D.10, from source", Row: "a preempted request loses its blocks, goes to the front of the queue and keeps its tokens"},
		{Name: "last-message-after-abort", Section: "I.1", Row: "as abort-running and abort-queued"},
		{Name: "drop-before-output", Section: "I.2", Row: "a drop before the first output is noticed at once"},
		{Name: "no-limit", Section: "I.3", Row: "max_new_tokens 0 is the model length without the prompt"},
		{Name: "no-proto-version", Section: "I.4", Row: "ServerInfo has no proto_version"},
		{Name: "event-endpoint", Section: "I.5, measured", Row: "an event endpoint is told with its rank added (two ranks); with a fault it is not"},
		{Name: "replay-end", Section: "I.6", Row: "as events-replay"},
		{Name: "refused-by-d", Section: "I.7", Row: "as d-refuses"},
		{Name: "empty-blocks", Section: "I.8", Row: "as blocks-empty, blocks-too-few and blocks-flat"},
		{Name: "missing-port", Section: "I.9", Row: "as key-missing"},
		{Name: "equal-ids", Section: "I.10", Row: "as abort-twins"},
		{Name: "many-streams", Section: "I.11", Row: "230 requests at once on one connection are all live"},
		{Name: "nixl-plugin", Section: "I.12", Row: "the transfer library's plug-in loads without a GPU", Outside: "there is no transfer library"},
	}
}
