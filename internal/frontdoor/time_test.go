package frontdoor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
	"remora/internal/memnet"
)

// inBubble plays one client's connection against a door with an aggregated worker, in virtual time.
func inBubble(t *testing.T, config Config, play func(d *door, ln *memnet.Listener, conn net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var memory discovery.Memory
		d := &door{t: t, plane: newFakePlane(), store: memory.Open()}
		watched := memory.Open()
		config.Store, config.Plane, config.Model = watched, d.plane, TinyModel{}
		d.server = New(config)
		ln := memnet.Listen(4 << 10)
		stop, stopNow := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- d.server.Run(stop, context.Background(), ln) }()
		d.serve(protocol.Aggregated)
		conn, err := ln.Dial()
		d.must(err)
		play(d, ln, conn)
		_ = conn.Close()
		stopNow()
		d.must(<-done)
		d.must(d.store.Close(t.Context()))
		d.must(watched.Close(t.Context()))
	})
}

func streamRequest() string {
	body := promptBody(`,"stream":true`)
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", completionPath, len(body), body)
}

// TestLongAnswer: no limit is meant for an answer that takes its time.
func TestLongAnswer(t *testing.T) {
	inBubble(t, Config{}, func(d *door, _ *memnet.Listener, conn net.Conn) {
		_, err := io.WriteString(conn, streamRequest())
		d.must(err)
		c := d.call()
		c.accept()
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		d.must(err)
		for range 3 {
			time.Sleep(10 * time.Minute)
			if c.isKilled() {
				d.t.Fatal("killed while the client waits")
			}
			c.tokens('x')
		}
		c.finish(protocol.FinishLength)
		text, err := io.ReadAll(answer.Body)
		d.must(err)
		d.must(answer.Body.Close())
		if strings.Count(string(text), `"text":"x"`) != 3 || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
			d.t.Errorf("%s", text)
		}
	})
}

// TestStalledUpload: half a body is waited for as long as bodyTime says.
func TestStalledUpload(t *testing.T) {
	inBubble(t, Config{}, func(d *door, _ *memnet.Listener, conn net.Conn) {
		_, err := io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
		d.must(err)
		began := time.Now()
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		d.must(err)
		d.must(answer.Body.Close())
		if took := time.Since(began); took != bodyTime || answer.StatusCode != http.StatusBadRequest {
			d.t.Errorf("status %d after %v", answer.StatusCode, took)
		}
	})
}

// TestStalledReader: a client that does not read is gone once a write has waited for as long as it may.
func TestStalledReader(t *testing.T) {
	inBubble(t, Config{}, func(d *door, _ *memnet.Listener, conn net.Conn) {
		_, err := io.WriteString(conn, streamRequest())
		d.must(err)
		c := d.call()
		c.accept()
		for range 100 { // more than the connection holds
			c.tokens('x')
		}
		began := time.Now()
		<-c.killed
		if took := time.Since(began); took != time.Minute {
			d.t.Errorf("after %v", took)
		}
	})
}

// TestTooManyConnections: one too many is accepted when another has gone, and not before.
func TestTooManyConnections(t *testing.T) {
	inBubble(t, Config{MaxConnections: 1}, func(d *door, ln *memnet.Listener, first net.Conn) {
		accepted := make(chan net.Conn, 1)
		go func() {
			conn, _ := ln.Dial() // returns when the listener has taken it
			accepted <- conn
		}()
		synctest.Wait()
		if len(accepted) > 0 {
			d.t.Error("accepted beside the first")
		}
		d.must(first.Close())
		d.must((<-accepted).Close())
	})
}
