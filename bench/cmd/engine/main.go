// Command engine is the scripted engine of the benchmarks: it serves vLLM's gRPC on a port of its own choice, says which in
// its first line of output, and runs until a signal ends it. It has one running goroutine at a time, so that it can't take
// more than one core from what is measured.
package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"

	"remora/bench/internal/engine"
	"remora/internal/tinymodel"
)

func main() {
	dir := flag.String("model", "", "folder to write the served model's tokenizer and configuration to")
	flag.Parse()
	if err := run(*dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
}

func run(dir string, out io.Writer) error {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400)
	if dir == "" {
		return fmt.Errorf("-model is missing")
	}
	if err := tinymodel.Write(dir); err != nil {
		return fmt.Errorf("model folder: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Fprintln(out, l.Addr())
	return engine.New(dir).Serve(l)
}
