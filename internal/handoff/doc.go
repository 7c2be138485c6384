// Package handoff is the pure state machine of one request's life between a Dynamo client and a vLLM engine. It owns one
// decision: when an engine stream may be dropped or aborted without breaking the transfer of KV blocks from the prefill
// engine P to the decode engine D. It does no I/O, knows no clock, starts no goroutine and imports no other room; its caller
// feeds it events in the order seen and carries out the actions in the order returned. Time enters only as EventTimer.
//
// Words. A release message is an engine message with tokens or a finish: it proves that D has read P's blocks. A keeper is a
// decode that carries hand-off parameters: its stream is kept after a cancel until the release. A drain is that time. An
// orphan is a finished prefill whose parameters no decode will use: its blocks wait for P's lease to end.
//
// States:
//
//	pending    accepted, not yet submitted to the engine
//	opening    submitted, no response headers yet
//	open       headers seen, no release message yet
//	streaming  a token message was seen
//	draining   the end is decided (cancel, shutdown, bad message), the stream is still read
//	done       the one terminal was emitted, the stream has ended or was dropped
//
// What each state does with each event is in the table below, made from the code, and in the traces in testdata, one at least
// for every row. Every sequence of events up to a bounded length is walked in the tests, which check for each of them:
//
//   - a keeper is submitted whether or not its client is there (short if the client left first) unless it was refused;
//   - a keeper's stream is neither dropped nor aborted before a release message, the deadline, the end of the shutdown or a cut;
//   - Abort is sent at most once, never before headers, never after a finish was read;
//   - exactly one terminal; after a cancel it is Cancelled, whatever ended the stream;
//   - nothing waits without a timer once the end is decided, and the timer is set once (a shutdown may replace it);
//   - in state done the stream has ended or was dropped.
//
// # Transitions
//
// The transitions, made from the code by TestTable. Per kind of request and state: event, actions, next state; "or" where they
// depend on what came before. Events that do nothing in a state are left out, and so are events that can't come there. A
// draining request that becomes done tells its terminal, cancelled or shutdown, unless it has told one already.
//
// Decode with hand-off parameters, policy drain:
//
//	pending    cancel         timer(30s) -> draining
//	pending    cut            terminal(shutdown) -> done
//	pending    dispatch       submit -> opening
//	pending    refuse         terminal(refused) -> done
//	pending    refuse+good    release terminal(refused) -> done
//	pending    shutdown       patience(1s) -> draining
//	opening    cancel         timer(30s) -> draining
//	opening    cut            drop terminal(shutdown) -> done
//	opening    declined       release terminal(failed) -> done
//	opening    end            terminal(incomplete) -> done
//	opening    error          terminal(failed) -> done
//	opening    headers        prologue -> open
//	opening    lost           terminal(failed) timer(30s) -> draining
//	opening    shutdown       patience(1s) -> draining
//	open       aborted        emit drop terminal(finished) -> done
//	open       bad            terminal(failed) timer(30s) -> draining
//	open       bad+finish     drop terminal(failed) -> done
//	open       bad+tokens     drop terminal(failed) -> done
//	open       cancel         timer(30s) -> draining
//	open       cut            abort drop terminal(shutdown) -> done
//	open       declined       terminal(failed) -> done
//	open       end            terminal(incomplete) -> done
//	open       error          terminal(failed) -> done
//	open       finish         emit drop terminal(finished) -> done
//	open       finish+params  emit drop terminal(finished) -> done
//	open       lost           terminal(failed) timer(30s) -> draining
//	open       prompt         emit -> open
//	open       shutdown       abort patience(1s) -> draining
//	open       tokens         emit -> streaming
//	streaming  aborted        emit drop terminal(finished) -> done
//	streaming  bad            drop terminal(failed) -> done
//	streaming  bad+finish     drop terminal(failed) -> done
//	streaming  bad+tokens     drop terminal(failed) -> done
//	streaming  cancel         abort drop terminal(cancelled) -> done
//	streaming  cut            abort drop terminal(shutdown) -> done
//	streaming  declined       terminal(failed) -> done
//	streaming  end            terminal(incomplete) -> done
//	streaming  error          terminal(failed) -> done
//	streaming  finish         emit drop terminal(finished) -> done
//	streaming  finish+params  emit drop terminal(finished) -> done
//	streaming  lost           drop terminal(failed) -> done
//	streaming  prompt         emit -> streaming
//	streaming  shutdown       abort drop terminal(shutdown) -> done
//	streaming  tokens         emit -> streaming
//	draining   aborted        drained(aborted) drop -> done
//	draining   bad+finish     drained(finished) drop -> done
//	draining   bad+tokens     abort drained(released) drop -> done
//	                       or drained(released) drop -> done
//	draining   cut            abort drained(cut) drop -> done
//	                       or drained(cut) -> done
//	                       or drained(cut) drop -> done
//	draining   declined       drained(ended) -> done
//	                       or release drained(ended) -> done
//	draining   dispatch       submit-short -> draining
//	draining   end            drained(ended) -> done
//	draining   error          drained(ended) -> done
//	draining   finish         drained(finished) drop -> done
//	                       or emit drained(finished) drop terminal(finished) -> done
//	draining   finish+params  drained(finished) drop -> done
//	                       or emit drained(finished) drop terminal(finished) -> done
//	draining   headers        abort -> draining
//	draining   patience       drained(deadline) drop -> done
//	                       or drained(headers_never) drop -> done
//	                       or drained(never_submitted) -> done
//	draining   refuse         -> done
//	                       or terminal(refused) -> done
//	draining   refuse+good    release -> done
//	                       or release terminal(refused) -> done
//	draining   shutdown       abort patience(1s) -> draining
//	                       or patience(1s) -> draining
//	draining   timer          abort drained(deadline) drop -> done
//	                       or drained(deadline) drop -> done
//	                       or drained(headers_never) drop -> done
//	                       or drained(never_submitted) -> done
//	draining   tokens         abort drained(released) drop -> done
//	                       or drained(released) drop -> done
//
// Decode with hand-off parameters, policy release:
//
//	pending    cancel         timer(30s) -> draining
//	pending    cut            terminal(shutdown) -> done
//	pending    dispatch       submit -> opening
//	pending    refuse         terminal(refused) -> done
//	pending    refuse+good    release terminal(refused) -> done
//	pending    shutdown       patience(1s) -> draining
//	opening    cancel         timer(30s) -> draining
//	opening    cut            drop terminal(shutdown) -> done
//	opening    declined       release terminal(failed) -> done
//	opening    end            terminal(incomplete) -> done
//	opening    error          terminal(failed) -> done
//	opening    headers        prologue -> open
//	opening    lost           terminal(failed) timer(30s) -> draining
//	opening    shutdown       patience(1s) -> draining
//	open       aborted        emit drop terminal(finished) -> done
//	open       bad            terminal(failed) timer(30s) abort patience(5s) -> draining
//	open       bad+finish     drop terminal(failed) -> done
//	open       bad+tokens     drop terminal(failed) -> done
//	open       cancel         timer(30s) abort patience(5s) -> draining
//	open       cut            abort drop terminal(shutdown) -> done
//	open       declined       terminal(failed) -> done
//	open       end            terminal(incomplete) -> done
//	open       error          terminal(failed) -> done
//	open       finish         emit drop terminal(finished) -> done
//	open       finish+params  emit drop terminal(finished) -> done
//	open       lost           terminal(failed) timer(30s) abort patience(5s) -> draining
//	open       prompt         emit -> open
//	open       shutdown       abort patience(1s) -> draining
//	open       tokens         emit -> streaming
//	streaming  aborted        emit drop terminal(finished) -> done
//	streaming  bad            drop terminal(failed) -> done
//	streaming  bad+finish     drop terminal(failed) -> done
//	streaming  bad+tokens     drop terminal(failed) -> done
//	streaming  cancel         abort drop terminal(cancelled) -> done
//	streaming  cut            abort drop terminal(shutdown) -> done
//	streaming  declined       terminal(failed) -> done
//	streaming  end            terminal(incomplete) -> done
//	streaming  error          terminal(failed) -> done
//	streaming  finish         emit drop terminal(finished) -> done
//	streaming  finish+params  emit drop terminal(finished) -> done
//	streaming  lost           drop terminal(failed) -> done
//	streaming  prompt         emit -> streaming
//	streaming  shutdown       abort drop terminal(shutdown) -> done
//	streaming  tokens         emit -> streaming
//	draining   aborted        drained(aborted) drop -> done
//	draining   bad+finish     drained(finished) drop -> done
//	draining   bad+tokens     drained(released) drop -> done
//	draining   cut            drained(cut) -> done
//	                       or drained(cut) drop -> done
//	draining   declined       drained(ended) -> done
//	                       or release drained(ended) -> done
//	draining   dispatch       submit-short -> draining
//	draining   end            drained(ended) -> done
//	draining   error          drained(ended) -> done
//	draining   finish         drained(finished) drop -> done
//	                       or emit drained(finished) drop terminal(finished) -> done
//	draining   finish+params  drained(finished) drop -> done
//	                       or emit drained(finished) drop terminal(finished) -> done
//	draining   headers        abort -> draining
//	                       or abort patience(5s) -> draining
//	draining   patience       drained(deadline) drop -> done
//	                       or drained(headers_never) drop -> done
//	                       or drained(never_submitted) -> done
//	draining   refuse         -> done
//	                       or terminal(refused) -> done
//	draining   refuse+good    release -> done
//	                       or release terminal(refused) -> done
//	draining   shutdown       patience(1s) -> draining
//	draining   timer          drained(deadline) drop -> done
//	                       or drained(headers_never) drop -> done
//	                       or drained(never_submitted) -> done
//	draining   tokens         drained(released) drop -> done
//
// Prefill:
//
//	pending    cancel         terminal(cancelled) -> done
//	pending    cut            terminal(shutdown) -> done
//	pending    dispatch       submit -> opening
//	pending    refuse         terminal(refused) -> done
//	pending    refuse+good    terminal(refused) -> done
//	pending    shutdown       terminal(shutdown) -> done
//	opening    cancel         timer(30s) -> draining
//	opening    cut            drop terminal(shutdown) -> done
//	opening    declined       terminal(failed) -> done
//	opening    end            terminal(incomplete) -> done
//	opening    error          terminal(failed) -> done
//	opening    headers        prologue -> open
//	opening    lost           drop terminal(failed) -> done
//	opening    shutdown       patience(1s) -> draining
//	open       aborted        emit drop terminal(finished) -> done
//	open       bad            drop terminal(failed) -> done
//	open       bad+finish     drop terminal(failed) -> done
//	open       bad+tokens     drop terminal(failed) -> done
//	open       cancel         timer(30s) abort -> draining
//	open       cut            abort drop terminal(shutdown) -> done
//	open       declined       terminal(failed) -> done
//	open       end            terminal(incomplete) -> done
//	open       error          terminal(failed) -> done
//	open       finish         emit drop terminal(finished) -> done
//	open       finish+params  emit drop terminal(finished) -> done
//	open       lost           drop terminal(failed) -> done
//	open       prompt         emit -> open
//	open       shutdown       abort patience(1s) -> draining
//	open       tokens         emit -> streaming
//	streaming  aborted        emit drop terminal(finished) -> done
//	streaming  bad            drop terminal(failed) -> done
//	streaming  bad+finish     drop terminal(failed) -> done
//	streaming  bad+tokens     drop terminal(failed) -> done
//	streaming  cancel         timer(30s) abort -> draining
//	streaming  cut            abort drop terminal(shutdown) -> done
//	streaming  declined       terminal(failed) -> done
//	streaming  end            terminal(incomplete) -> done
//	streaming  error          terminal(failed) -> done
//	streaming  finish         emit drop terminal(finished) -> done
//	streaming  finish+params  emit drop terminal(finished) -> done
//	streaming  lost           drop terminal(failed) -> done
//	streaming  prompt         emit -> streaming
//	streaming  shutdown       abort patience(1s) -> draining
//	streaming  tokens         emit -> streaming
//	draining   aborted        drained(aborted) drop -> done
//	draining   bad+finish     drained(finished) drop -> done
//	draining   cut            drained(cut) drop -> done
//	draining   declined       drained(ended) -> done
//	draining   end            drained(ended) -> done
//	draining   error          drained(ended) -> done
//	draining   finish         drained(finished) drop -> done
//	                       or emit drained(finished) drop terminal(finished) -> done
//	draining   finish+params  emit drained(finished) drop terminal(finished) -> done
//	                       or orphan drained(finished) drop -> done
//	draining   headers        abort -> draining
//	draining   patience       drained(deadline) drop -> done
//	                       or drained(headers_never) drop -> done
//	draining   shutdown       patience(1s) -> draining
//	draining   timer          drained(deadline) drop -> done
//	                       or drained(headers_never) drop -> done
//
// Aggregated, encode, and decode without parameters:
//
//	pending    cancel         terminal(cancelled) -> done
//	pending    cut            terminal(shutdown) -> done
//	pending    dispatch       submit -> opening
//	pending    refuse         terminal(refused) -> done
//	pending    refuse+good    terminal(refused) -> done
//	pending    shutdown       terminal(shutdown) -> done
//	opening    cancel         drop terminal(cancelled) -> done
//	opening    cut            drop terminal(shutdown) -> done
//	opening    declined       terminal(failed) -> done
//	opening    end            terminal(incomplete) -> done
//	opening    error          terminal(failed) -> done
//	opening    headers        prologue -> open
//	opening    lost           drop terminal(failed) -> done
//	opening    shutdown       drop terminal(shutdown) -> done
//	open       aborted        emit drop terminal(finished) -> done
//	open       bad            drop terminal(failed) -> done
//	open       bad+finish     drop terminal(failed) -> done
//	open       bad+tokens     drop terminal(failed) -> done
//	open       cancel         abort drop terminal(cancelled) -> done
//	open       cut            abort drop terminal(shutdown) -> done
//	open       declined       terminal(failed) -> done
//	open       end            terminal(incomplete) -> done
//	open       error          terminal(failed) -> done
//	open       finish         emit drop terminal(finished) -> done
//	open       finish+params  emit drop terminal(finished) -> done
//	open       lost           drop terminal(failed) -> done
//	open       prompt         emit -> open
//	open       shutdown       abort drop terminal(shutdown) -> done
//	open       tokens         emit -> streaming
//	streaming  aborted        emit drop terminal(finished) -> done
//	streaming  bad            drop terminal(failed) -> done
//	streaming  bad+finish     drop terminal(failed) -> done
//	streaming  bad+tokens     drop terminal(failed) -> done
//	streaming  cancel         abort drop terminal(cancelled) -> done
//	streaming  cut            abort drop terminal(shutdown) -> done
//	streaming  declined       terminal(failed) -> done
//	streaming  end            terminal(incomplete) -> done
//	streaming  error          terminal(failed) -> done
//	streaming  finish         emit drop terminal(finished) -> done
//	streaming  finish+params  emit drop terminal(finished) -> done
//	streaming  lost           drop terminal(failed) -> done
//	streaming  prompt         emit -> streaming
//	streaming  shutdown       abort drop terminal(shutdown) -> done
//	streaming  tokens         emit -> streaming
package handoff
