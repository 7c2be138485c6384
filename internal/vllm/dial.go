package vllm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"remora/internal/sleep"
)

// Dial fills the pool: slot 1 first, so that an engine which is not there yet is knocked at by one connection only, then
// all others together. Attempts are repeated until the context's deadline, which is one for all slots. The first slot that
// fails fails the pool.
func Dial(ctx context.Context, config Config) (*Client, error) {
	config = config.withDefaults()
	client := &Client{config: config, open: make(map[Stream]struct{})}
	client.conns = make([]*grpc.ClientConn, config.Connections)
	if config.Backend == BackendH2 {
		client.conns = client.conns[:1] // for control and health
		client.pool = newPool(config, &client.ear.bytes)
	}
	var err error
	client.side, err = newConn(config, func(ctx context.Context) (net.Conn, error) {
		conn, errDial := config.Dialer(ctx, config.Endpoint.Address())
		if errDial != nil {
			return nil, errDial
		}
		return client.ear.wrap(conn), nil
	})
	if err != nil {
		return nil, err
	}
	if err = client.fill(ctx); err != nil {
		return nil, errors.Join(err, client.disconnect())
	}
	return client, nil
}

func (c *Client) fill(ctx context.Context) error {
	start := time.Now()
	connect := func(ctx context.Context, slot int, conn **grpc.ClientConn) error {
		return connectSlot(ctx, c.config, slot, start, func(ctx context.Context) error {
			var err error
			*conn, err = attempt(ctx, c.config)
			return err
		})
	}
	if err := connect(ctx, 1, &c.conns[0]); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range c.conns[1:] {
		group.Go(func() error { return connect(groupCtx, i+2, &c.conns[i+1]) })
	}
	if c.pool != nil {
		for i := range c.config.Connections {
			group.Go(func() error { return connectSlot(groupCtx, c.config, i+1, start, c.pool.Connect) })
		}
	}
	return group.Wait()
}

// connectSlot repeats attempts until one connects or the context ends. Slots count from 1.
func connectSlot(ctx context.Context, config Config, slot int, start time.Time, attempt func(context.Context) error) error {
	retries := retryLog{log: config.Log}
	var last error
	for attempts := 1; ; attempts++ {
		err := attempt(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			// An attempt that the end cut short says less than the one before it.
			last = err
		}
		if ctx.Err() == nil {
			level := slog.LevelDebug
			if KindOfError(err) == Protocol {
				level = slog.LevelWarn // most likely the wrong port, which nobody should find out at the deadline only
			}
			retries.note(ctx, level, err.Error(), "engine not connected yet", "peer", config.Endpoint.String(), "slot", slot)
			if pause(ctx, config.RetryInterval) {
				continue
			}
		}
		elapsed := time.Since(start).Round(time.Millisecond)
		return &Error{
			Kind: giveUpKind(ctx, CannotConnect),
			Text: fmt.Sprintf("connect to vLLM at %s: %s: pool slot %d of %d, %d attempts, %v elapsed, last cause",
				config.Endpoint, endOfPatience(ctx, start), slot, config.Connections, attempts, elapsed),
			Err: last,
		}
	}
}

// attempt makes one connection and waits until HTTP/2 settings have been exchanged on it.
func attempt(ctx context.Context, config Config) (*grpc.ClientConn, error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, config.AttemptTimeout)
	defer cancel()
	var dialError atomic.Pointer[error]
	var connected atomic.Bool
	conn, err := newConn(config, func(dialCtx context.Context) (net.Conn, error) {
		raw, errDial := config.Dialer(dialCtx, config.Endpoint.Address())
		if errDial != nil {
			dialError.Store(&errDial)
			return nil, errDial
		}
		connected.Store(true)
		return raw, nil
	})
	if err != nil {
		return nil, err
	}
	if err = waitReady(ctx, conn); err == nil {
		return conn, nil
	}
	// What the dialer met is plainer than grpc-go's wrapping of it.
	if met := dialError.Load(); met != nil && !connected.Load() {
		err = *met
	} else if ctx.Err() != nil || time.Since(begun) >= config.AttemptTimeout {
		// The second case is grpc-go's own bound, which is as long and may fire first.
		err = errors.New("attempt exceeded its deadline: " + silence(connected.Load()))
	}
	return nil, errors.Join(err, closeAll([]*grpc.ClientConn{conn}))
}

func silence(connected bool) string {
	if connected {
		return "connected, but the peer sends no HTTP/2 settings (no gRPC server on this port?)"
	}
	return "no connection"
}

// waitReady returns the cause of the first failure, which grpc-go tells to calls only: so it makes one, a health check,
// which costs nothing because a failed channel answers it at once.
func waitReady(ctx context.Context, conn *grpc.ClientConn) error {
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Idle:
			conn.Connect()
		case connectivity.TransientFailure, connectivity.Shutdown:
			_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			if err != nil && status.Code(err) == codes.Unavailable {
				return connectCause(err)
			}
		case connectivity.Connecting:
		}
		if !conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}

// connectCause puts the usual mistakes in words. A peer that does not speak HTTP/2 is tried again all the same, since a
// proxy may stand there before the engine does.
func connectCause(err error) error {
	text := status.Convert(err).Message()
	switch {
	case strings.Contains(text, "HTTP/1"):
		return protocol("the peer answers in HTTP/1: this is an HTTP port, not vLLM's gRPC port")
	case strings.Contains(text, "server preface"):
		return protocol("the peer does not speak plain HTTP/2 (TLS, or no gRPC server on this port?): %s", text)
	default:
		return errors.New(text)
	}
}

// endOfPatience says what ended the trying.
func endOfPatience(ctx context.Context, start time.Time) string {
	if deadline, ok := ctx.Deadline(); ok && giveUpKind(ctx, Timeout) == Timeout {
		return fmt.Sprintf("deadline of %v reached", deadline.Sub(start).Round(time.Millisecond))
	}
	return "cancelled"
}

// pause waits between attempts, and reports false when the context ended first. It does not let a new attempt begin at the
// very deadline.
func pause(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		<-ctx.Done()
		return false
	}
	return sleep.For(ctx, d)
}
