package zmq

import (
	"context"
	"errors"
	"strconv"
	"testing"
)

func TestDealerRouter(t *testing.T) {
	router, err := ListenRouter(endpoint(t, "tcp://127.0.0.1:*"), RouterConfig{}, func(request [][]byte, reply func(frames ...[]byte) error) {
		n, _ := strconv.Atoi(string(request[1]))
		for i := range n {
			if reply(raws("", strconv.Itoa(i))...) != nil {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	conn, err := DialDealer(t.Context(), router.Endpoint(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, n := range []int{3, 1000} {
		if err = conn.Send(t.Context(), raws("", strconv.Itoa(n))...); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			got, failure := conn.Receive(t.Context())
			if failure != nil {
				t.Fatal(failure)
			}
			wantFrames(t, got, "", strconv.Itoa(i))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = conn.Receive(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Receive after cancel: %v", err)
	}
	router.Close()
	if _, err = conn.Receive(t.Context()); err == nil {
		t.Error("Receive after the peer's end: no error")
	}
}
