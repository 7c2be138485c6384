package main

import "os"

func main() {
	stop, cut, release := withSignals()
	code := run(stop, cut, system{args: os.Args[1:], lookup: os.LookupEnv, stdout: os.Stdout, stderr: os.Stderr})
	release()
	os.Exit(code)
}
