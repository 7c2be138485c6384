package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Client is the frontend. One run of Hold or Loop at a time.
type Client struct {
	worker  Worker         // set once
	base    int            // number of the first request; set once
	address string         // where responses are awaited; set once
	listen  int            // descriptor; set once
	epoll   int            // descriptor; set once
	wake    int            // descriptor that ends the loop; set once
	looping sync.WaitGroup // the epoll loop

	mu       sync.Mutex
	requests []inFlight      // guarded by mu; by number less base
	links    map[int32]*link // guarded by mu; by descriptor
	tally    Tally           // guarded by mu
	first    *histogram      // guarded by mu; nil: not measured
	later    *histogram      // guarded by mu; nil: not measured
	done     chan struct{}   // guarded by mu; gets one for each request that is over. Set before requests are sent
	killing  func(n int) int // guarded by mu; after how many tokens request n is killed, -1: not. Set before requests are sent
	senders  []*sender       // set by connect
}

// Tally is what became of the requests so far.
type Tally struct {
	Tokens   int64    `json:"tokens"`
	Started  int      `json:"started"` // have had their first token
	Finished int      `json:"finished"`
	Killed   int      `json:"killed"`
	Errors   int      `json:"errors"`
	Samples  []string `json:"samples,omitempty"` // of errors
}

// inFlight is a request that was sent.
type inFlight struct {
	sent      int64 // Unix microseconds
	want      int32
	tokens    int32
	killAfter int32 // tokens; -1: never
	over      bool
}

// link is one response connection.
type link struct {
	fd     int32
	number int    // of the request, less base; -1 before the handshake
	rest   []byte // the beginning of a frame that is not all there
	good   bool   // the prologue was good
}

// New returns a client of the worker, with so many request connections.
func New(ctx context.Context, w Worker, connections int) (*Client, error) {
	c := &Client{worker: w, links: map[int32]*link{}, base: int(time.Now().UnixMilli()%900_000+100_000) * 1_000_000}
	if err := c.open(); err != nil {
		return nil, err
	}
	for range connections {
		raw, err := new(net.Dialer).DialContext(ctx, "tcp", w.Address)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("request plane: %w", err), c.Close())
		}
		s := &sender{client: c, conn: raw, sent: make(chan int, 64<<10)}
		c.senders = append(c.senders, s)
		s.acks.Go(s.readAcks)
	}
	return c, nil
}

// open makes the listener and starts the loop.
func (c *Client) open() (err error) {
	if c.listen, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("response listener: %w", err)
	}
	if err = unix.Bind(c.listen, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fmt.Errorf("response listener: %w", err)
	}
	if err = unix.Listen(c.listen, 4096); err != nil {
		return fmt.Errorf("response listener: %w", err)
	}
	bound, err := unix.Getsockname(c.listen)
	if err != nil {
		return fmt.Errorf("response listener: %w", err)
	}
	inet, ok := bound.(*unix.SockaddrInet4)
	if !ok {
		return fmt.Errorf("response listener: address of type %T", bound)
	}
	c.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(inet.Port))
	if c.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if c.wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	for _, fd := range []int{c.listen, c.wake} {
		if err = c.watch(fd); err != nil {
			return err
		}
	}
	c.looping.Go(c.loop)
	return nil
}

func (c *Client) watch(fd int) error {
	if err := unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// Close hangs up everywhere.
func (c *Client) Close() error {
	var errs []error
	for _, s := range c.senders {
		errs = append(errs, s.conn.Close())
		s.acks.Wait()
	}
	_, err := unix.Write(c.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	c.looping.Wait()
	c.killAll()
	return errors.Join(append(errs, err, unix.Close(c.listen), unix.Close(c.epoll), unix.Close(c.wake))...)
}

// expect makes room for n requests, from number 0 on.
func (c *Client) expect(n int, done chan struct{}, killing func(n int) int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base += len(c.requests)
	c.requests = make([]inFlight, 0, n)
	c.done, c.killing, c.tally = done, killing, Tally{}
}

// register announces a request before it is sent, and gives its number.
func (c *Client) register(shape Shape, now time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := inFlight{sent: now.UnixMicro(), want: int32(shape.Tokens), killAfter: -1}
	if c.killing != nil {
		r.killAfter = int32(c.killing(len(c.requests)))
	}
	c.requests = append(c.requests, r)
	return c.base + len(c.requests) - 1
}

// over books the end of a request. The caller holds mu.
func (c *Client) over(n int, why string) {
	r := &c.requests[n]
	if r.over {
		return
	}
	r.over = true
	switch why {
	case finished:
		c.tally.Finished++
	case killed:
		c.tally.Killed++
	default:
		c.fail(fmt.Sprintf("request %d after %d of %d tokens: %s", n, r.tokens, r.want, why))
	}
	if c.done != nil {
		c.done <- struct{}{} // there is room for all
	}
}

// The ends of a request that are no errors.
const (
	finished = "finished"
	killed   = "killed"
)

func (c *Client) fail(text string) {
	const samples = 3
	c.tally.Errors++
	if len(c.tally.Samples) < samples {
		c.tally.Samples = append(c.tally.Samples, text)
	}
}

// Tally tells what became of the requests since the last expect.
func (c *Client) Tally() Tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tally
}

// measure sets the histograms; nil ends the measuring.
func (c *Client) measure(first, later *histogram) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.first, c.later = first, later
}
