package differential

// differences are all that may differ, and why. An entry is as narrow as its cause.
var differences = []difference{
	{
		name: "text is left to the frontend", standing: true, path: `item\[\d+\]\.data\.data\.text`, cases: `(agg|decode)/.*`, rust: `".*"`, remora: "null",
		row: "`text` of items", reason: "with a text the frontend neither detokenizes nor looks for stop strings, and gives no logprobs",
	},
	{
		name: "no text is asked for", standing: true, path: `engine\[\d+\]\.response\.output_text`, rust: "true", remora: "false",
		row: "`text` of items", reason: "nobody would read it",
	},
	{
		name: "cached tokens", path: `item\[\d+\]\.data\.data\.completion_usage\.prompt_tokens_details\.cached_tokens`, rust: `\(absent\)`, remora: `\d+`,
		row: "cached tokens in usage", reason: "clients see what the cache saved",
	},
	{
		name: "the stamp", standing: true, cases: "prefill/.*", path: `item\[\d+\]\.data\.data\.disaggregated_params\._remora`, rust: `\(absent\)`, remora: `"1;.*"`,
		row: "hand-off parameters", reason: "the decode worker tells by it that the hand-off is fresh and of its prompt",
	},
	{
		name: "the stamp alone", cases: "prefill/responses/hand-off empty.*", path: `item\[\d+\]\.data\.data\.disaggregated_params`, rust: `{}`, remora: `\(absent\)`,
		row: "hand-off parameters", reason: "the empty object has a member now",
	},
	{
		name: "hand-offs are checked", cases: "decode/conversion/hand-off with.*", path: "outcome", rust: "answer", remora: `error Backend\.Disconnected`,
		row: "hand-off parameters", reason: "an engine answers a bad hand-off with a crash, a hang or wrong text",
	},
	{
		name: "2^53 in parameters", cases: `.*/conversion/kv transfer params with 2\^53.*`, path: "outcome", rust: "answer", remora: `error Backend\.InvalidArgument`,
		row: "integers in parameters (`kv_transfer_params`, hand-offs)", reason: "as a double it cannot be told from 2^53 + 1",
	},
	{
		name: "2^53 from the engine", path: `item\[\d+\]\.data\.data\.disaggregated_params\.big`, rust: "9007199254740992", remora: `float 9\.007199254740992e\+15`,
		row: "integers in parameters (`kv_transfer_params`, hand-offs)", reason: "as a double it cannot be told from 2^53 + 1",
	},
	{
		name: "candidates once", path: `item\[\d+\]\.data\.data\.top_logprobs\[\d+\]\[\d+\]\..*`, rust: ".*", remora: `\(absent\)`,
		cases: `(agg|decode)/logprobs/with the chosen among its rivals.*`,
		row:   "`top_logprobs`", reason: "clients count the entries",
	},
	{
		name: "extra fields of the frontend", cases: ".*/conversion/nvext extra fields(| in JSON)", path: "outcome", rust: `error Backend\.InvalidArgument`, remora: "answer",
		row: "`nvext.extra_fields`", reason: "the frontend fills them in by itself",
	},
	{
		name: "ranks of others", cases: `.*/conversion/rank elsewhere.*`, path: "outcome", rust: "answer", remora: `error Backend\.InvalidArgument`,
		row: "rank outside the local range", reason: "the engine could only say the same",
	},
	{
		name: "wording of refusals", cases: `.*/(conversion|logprobs|media|features)/.*`, path: `error\.(message|diagnostic)|prologue\.error`, rust: `"[^(]*"`, remora: `".*"`,
		row: "wording of errors", reason: "own sentences, which name the field and the value",
	},
	{
		name: "wording of broken rules", path: `error\.(message|diagnostic)`, rust: `"invalid vLLM gRPC response: .*"`, remora: `"invalid vLLM gRPC response: .*"`,
		row: "wording of errors", reason: "own sentences, which name the field and the value",
	},
	{
		name: "text for clients", path: `error\.public\.(type|message)`, rust: `\(absent\)`, remora: `".*"`,
		row: "wording of errors", reason: "without a public text clients read a sentence that says nothing",
	},
	{
		name: "other errors of the engine stand in items", cases: `.*/errors/.*`, path: "frames", rust: "refusal sentinel", remora: "prologue error final sentinel",
		row: "errors before the headers", reason: "an error prologue takes a healthy worker out of routing",
	},
	{
		name: "parts of an item instead of a prologue", cases: `.*/errors/.*(before headers|status without words|code beyond the known)( in JSON)?`,
		path: `prologue\.error|error item\..*|final\.complete_final`, rust: `"Generate Error: .*"|\(absent\)`, remora: `null|false|true|"error"`,
		row: "errors before the headers", reason: "an error prologue takes a healthy worker out of routing",
	},
	{
		name: "an answer without an end", cases: `.*/errors/end .*`, path: `error\.(class|reason|error_type\.Backend|message|diagnostic)`,
		rust:   `"(Internal|backend\.unknown|Unknown|invalid vLLM gRPC response: GenerateStream ended before a terminal response)"`,
		remora: `"(Unavailable|backend\.stream_incomplete|StreamIncomplete|GenerateStream ended before a terminal response)"`,
		row:    "stream that ends without a finish", reason: "the frontend can migrate the request",
	},
	{
		name: "back-pressure", cases: `.*/errors/resourceexhausted .*`, path: `error\.(class|reason|error_type|error_type\.Backend)`,
		rust: `"(Internal|backend\.unknown|Unknown)"|\(absent\)`, remora: `"(CapacityExhausted|capacity\.worker_overloaded|WorkerOverloaded)"|\(absent\)`,
		row: "RESOURCE_EXHAUSTED from the engine", reason: "back-pressure is no defect",
	},
	{
		name: "back-pressure in the prologue's text", cases: `.*/errors/resourceexhausted before headers.*`, path: `prologue\.error`,
		rust: `"Generate Error: Internal: .*"`, remora: `"Generate Error: CapacityExhausted: .*"`,
		row: "RESOURCE_EXHAUSTED from the engine", reason: "back-pressure is no defect",
	},
	{
		name: "UNAVAILABLE means that the engine was lost", cases: `.*/errors/unavailable .*`, path: `error\.(reason|error_type\.Backend)`,
		rust: `"(backend\.cannot_connect|CannotConnect)"`, remora: `"(backend\.engine_shutdown|EngineShutdown)"`,
		row: "engine lost under a request", reason: "no vLLM writes this status: it is the transport's, or that of a proxy that has lost the engine",
	},
	{
		name: "undecodable requests get an answer", cases: `.*/requests/.*`, path: "outcome", rust: "silence", remora: "error InvalidArgument",
		row: "undecodable body or control header", reason: "a request must have an end",
	},
	{
		name: "media that are none get an answer", cases: ".*/media/.*", path: "outcome", rust: "silence", remora: `error (Backend\.)?InvalidArgument`,
		row: "undecodable body or control header", reason: "a request must have an end",
	},
	{
		name: "lists of media that are null", cases: ".*/media/(uuids, )?list null.*", path: "outcome", rust: "silence", remora: "answer",
		row: "null or missing members: lists of media or their uuids null, `stop_conditions`, `sampling_options`, `output_options` null, a control header without `request_type` or `response_type`", reason: "what is meant is plain, and silence helps nobody",
	},
	{
		name: "normal form of URLs", cases: ".*/media/normal form of a URL.*", path: `engine\[0\]\.media\[0\]\.url`,
		row: "URLs of media", reason: "the engine reads them by the same rules",
	},
	{
		name: "features in lists", cases: ".*/features/(set|placeholder) (as )?a list.*", path: "outcome", rust: "answer", remora: `error Backend\.InvalidArgument`,
		row: "preprocessed features", reason: "nobody writes them like that",
	},
	{
		name: "hand-offs of other prompts", cases: "decode/media/hand-off of a prompt with media, without them.*", path: "outcome", rust: "answer", remora: `error Backend\.Disconnected`,
		row: "hand-off parameters", reason: "an engine answers a bad hand-off with a crash, a hang or wrong text",
	},
	{
		name: "undecodable requests without an address are not accepted", cases: `.*/requests/(control|payload|call home).*`, path: "outcome", rust: "silence", remora: "not accepted",
		row: "undecodable body or control header", reason: "a request must have an end",
	},
	{
		name: "lenient reading", cases: `.*/requests/((sampling|stop|output) (options|conditions) null|no re(quest|sponse) type)( in JSON)?`, path: "outcome", rust: "silence", remora: "answer",
		row: "null or missing members: lists of media or their uuids null, `stop_conditions`, `sampling_options`, `output_options` null, a control header without `request_type` or `response_type`", reason: "what is meant is plain, and silence helps nobody",
	},
	{
		name: "decodes that cannot call home", cases: `decode/requests/call home to a closed port.*`, path: `engine requests|engine\[0\].*`,
		row: "decode whose dial-back fails, or whose connection breaks before it was sent", reason: "the prefill's blocks would wait for the lease",
	},
	{
		name: "no Abort before headers", cases: `agg/cancel/\w+ before headers.*`, path: "engine aborts", rust: "1", remora: "0",
		row: "Abort and drop", reason: "an engine may not know the request yet, and then forgets the Abort",
	},
	{
		name: "no Abort after a finish", cases: `decode/cancel/.*then a finish.*`, path: "engine aborts", rust: "1", remora: "0",
		row: "Abort and drop", reason: "there is nothing left to abort",
	},
	{
		name: "cancelled prefills are read to their end", cases: `prefill/cancel/.*`, path: "engine stream dropped", rust: "1", remora: "0",
		row: "cancelled prefill", reason: "only its end tells whether the engine holds blocks for nobody",
	},
	{
		name: "cancelled prefills wait for headers", cases: `prefill/cancel/\w+ before headers.*`, path: "engine told at once", rust: "true", remora: "false",
		row: "cancelled prefill", reason: "an engine may not know the request yet, and then forgets the Abort",
	},
	{
		name: "a stop has an answer", cases: `.*/cancel/stop .*`, path: "hung up at once", rust: "true", remora: "false",
		row: "stop", reason: "who says stop, and not kill, reads on",
	},
	{
		name: "closed connections are noticed", cases: `.*/cancel/close .*`, path: "engine (aborts|stream dropped|told at once)", rust: "0|false", remora: "1|true",
		row: "response connection that the frontend closes without a word", reason: "the engine would work for nobody until a write fails",
	},
	{
		name: "nothing but a release ends a drain", cases: `decode/cancel/kill .*, then a broken message.*`, path: "engine stream dropped", rust: "1", remora: "0",
		row: "broken message while a cancelled decode drains", reason: "the hand-off has not been fetched yet",
	},
	{
		name: "no event channel for routers", cases: "(agg|decode)/registration/.*", path: `record event_channels/.*active%5Fsequences%5Fevents.*`,
		remora: `\(absent\)`, standing: true,
		row: "event channel `active_sequences_events`", reason: "nothing is ever sent there",
	},
	{
		name: "an event channel for the load", cases: ".*/registration/.*", path: `record event_channels/.*kv%5Fmetrics.*`, rust: `\(absent\)`, standing: true,
		row: "event channel `kv_metrics`", reason: "the frontend can tell a busy worker",
	},
	{
		name: "own metrics", cases: ".*/status/pages", path: `metric (type )?remora_.*`, rust: `\(absent\)`,
		row: "`remora_*`", reason: "they say which of the differences happened",
	},
	{
		name: "the runtime's metrics", cases: ".*/status/pages", path: `metric (type )?(go|process)_.*`, rust: `\(absent\)`,
		row: "`go_*`, `process_*`", reason: "memory, goroutines, descriptors",
	},
	{
		name: "errors from zero", cases: ".*/status/pages", path: `metric (type )?dynamo_component_errors_total.*`, rust: `\(absent\)`,
		row: "`dynamo_component_errors_total`", reason: "a rate needs a first value",
	},
	{
		name: "dropped events from zero", cases: ".*/status/pages", path: `metric (type )?dynamo_component_kv_publisher_engines_dropped_events_total.*`, rust: `\(absent\)`,
		row: "`dynamo_component_kv_publisher_engines_dropped_events_total`", reason: "a rate needs a first value",
	},
	{
		name: "nothing is left of a failed start", cases: "agg/start/request port taken", path: "records left", rust: "1", remora: "0",
		row: "model card at the end", reason: "nobody serves that model",
	},
	{
		name: "a tokenizer is needed", cases: "agg/start/tokenizer missing", path: "start|exit code|records left|last line names the cause",
		row: "model folder without a tokenizer", reason: "no frontend could serve the model",
	},
	{
		name: "the card goes with its worker", cases: ".*/shutdown/.*", path: "left in mdc", rust: "a record", remora: `\(absent\)`,
		row: "model card at the end", reason: "nobody serves that model",
	},
	{
		name: "running answers run on", cases: ".*/shutdown/(an answer that ends|a request before|a decode before|a prefill that ends).*",
		path: `a request after the grace|item\[\d\]\.data\.data\.(completion_usage\.\w+|finish_reason|index|token_ids.*)`,
		row:  "SIGTERM", reason: "an answer that is cut looks finished to its client",
	},
	{
		name: "answers without an end are errors", cases: "(agg|decode)/shutdown/an answer that never ends", path: "outcome", rust: "answer", remora: `error Backend\.EngineShutdown`,
		row: "SIGTERM", reason: "an answer that is cut looks finished to its client",
	},
	{
		name: "drains are waited for", cases: "decode/shutdown/a decode that drains", path: "a request after the grace|engine aborts",
		row: "drains at SIGTERM", reason: "the prefill's blocks would wait for the lease",
	},
	{
		name: "an idle prefill worker ends", cases: "prefill/shutdown/idle", path: "idle worker ends soon after the grace", rust: "false", remora: "true",
		row: "idle prefill worker at SIGTERM", reason: "it knows that nothing is left to wait for",
	},
	{
		name: "an interrupt ends well", cases: "agg/shutdown/idle, interrupted", path: "exit code", rust: "-1", remora: "0",
		row: "SIGINT", reason: "both signals ask for the same",
	},
	{
		name: "parts that are not there", path: "start", rust: "serves|ends with 1", remora: "ends with 1",
		cases: `agg/command line/.*(quic|-route-to-encoder|DYN_ROUTE_TO_ENCODER=true|-enable-rl|DYN_ENABLE_RL=true|-rl-world-size[= ]1|RL_WORLD_SIZE=1).*`,
		row:   "not there yet", reason: "a start that is refused says what to set",
	},
	{
		name: "other endpoint types", cases: "agg/command line/.*(-endpoint-types|DYN_ENDPOINT_TYPES)=embedding.*", path: "start", rust: "serves", remora: "ends with 1",
		row: "`--endpoint-types`", reason: "this worker has nothing to offer there",
	},
	{
		name: "names that are mistakes", path: "start", rust: "serves", remora: "ends with 1",
		cases: `agg/command line/(DYN_(NAMESPACE|COMPONENT|ENDPOINT|NAMESPACE_WORKER_SUFFIX)=(| |a b|a\\nb|a/b) .*|.* --(namespace|component|endpoint)[= ](|=| |a b|a\\nb|a/b))`,
		row:   "names (namespace, component, endpoint) that are empty or have blanks, slashes or control characters", reason: "nobody would find the worker",
	},
	{
		name: "addresses that cannot be one", cases: `agg/command line/.*(grpc-endpoint|GRPC_ENDPOINT)=(//|/|http://@)engine.*`, path: "start", rust: "serves", remora: "ends with 2",
		row: "`--grpc-endpoint` with a host that cannot be one (punctuation, letters beyond ASCII), an empty port or port 0, stray slashes or an empty user", reason: "the rest would be read as if it were not there",
	},
	{
		name: "URLs that are none", cases: "agg/command line/.*(VLLM_HTTP_ENDPOINT|vllm-http-endpoint)=http://a/%zz.*", path: "start", rust: "serves", remora: "ends with 2",
		row: "`--vllm-http-endpoint` with control characters or a broken escape", reason: "it is no URL",
	},
	{
		name: "arguments that are no UTF-8", cases: `agg/command line/.*\\xff.*`, path: "start", rust: "ends with 1", remora: "ends with 2",
		row: "arguments that are no UTF-8", reason: "it is wrong usage",
	},
	{
		name: "bytes of a variable are not shown", cases: `agg/command line/.*=\\xff .*`, path: "complaint mentions", rust: ".*\ufffd.*", remora: "",
		row: "arguments that are no UTF-8", reason: "the variable is named",
	},
	{
		name: "empty names of parsers", cases: "agg/command line/.*(-parser|_PARSER)[= ].*", path: `record mdc/.*\.runtime_config\.(tool_call|reasoning)_parser`, rust: `""`, remora: "null",
		row: "parser names that are set but empty", reason: "nothing is no parser",
	},
	{
		name: "variables that cannot be read", cases: `agg/command line/DYN_(REQUEST_PLANE_CODEC=Json|TCP_RPC_PORT=x|TCP_MAX_MESSAGE_SIZE=-1|ENGINE_REQUEST_LIMIT=1.5|GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS=x|LOG=(=|a=b)|LOGGING_CONSOLE_FORMAT=xml|LORA_ENABLED=2) .*`,
		path: "start", rust: "serves", remora: "ends with 1",
		row: "runtime variables that cannot be read: numbers, ports, sizes, times, codecs, log levels and formats, words other than 1, 0, true, false, yes, no, on, off", reason: "a setting that is lost in silence",
	},
}
