// Package proc starts the programs of a benchmark, ends them, and reads what they cost: CPU time from the process's own clock,
// which counts nanoseconds over all threads, living and dead, and memory from /proc.
//
// Each started program has one goroutine that waits for its exit; Stop ends the program's process group and waits for that
// goroutine. A program also dies with the one that started it.
package proc
