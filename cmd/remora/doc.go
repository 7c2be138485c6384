// Command remora makes a vLLM engine a worker of NVIDIA Dynamo.
//
// The package owns the command line: one file per command says which flags and variables it has and turns them into a typed
// configuration; what the commands do lives in the rooms under internal. It starts one goroutine, which listens for signals
// and is waited for before main returns. The first SIGINT, SIGTERM or SIGHUP asks a command to stop in order, the second
// cuts it short, a third has its default effect.
//
// Exit codes: 0 after help, an ended command or a signalled stop; 2 for a command line that cannot be taken (the environment
// behind a flag included); 1 for everything else that keeps a command from starting or ends it. A failure's last line on
// standard error says what it was.
package main
