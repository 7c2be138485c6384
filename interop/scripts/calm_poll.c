/*
 * A brake for threads that call poll() without a pause, loaded with LD_PRELOAD.
 *
 * NIXL's transport keeps a progress thread that polls its sockets in a tight loop from the first connection on. On a
 * machine with as many engines as cores that starves the engines themselves: hand-offs that take 0.2 s take 10 s, and
 * their leases run out. A thread that polls more often than BURST times within WINDOW_MS sleeps a little after each
 * further call of that window; everybody else is untouched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW_MS = 100, BURST = 50, PAUSE_US = 2000 };

typedef int poll_fn(struct pollfd *, nfds_t, int);

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000L;
}

int poll(struct pollfd *fds, nfds_t n, int timeout) {
    static poll_fn *next; /* every thread stores the same value */
    static __thread long window_start;
    static __thread int calls;

    if (next == NULL)
        next = (poll_fn *)dlsym(RTLD_NEXT, "poll");
    int ready = next(fds, n, timeout);
    long now = now_ms();
    if (now - window_start > WINDOW_MS) {
        window_start = now;
        calls = 0;
    }
    if (++calls > BURST)
        usleep(PAUSE_US);
    return ready;
}
