package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestHostilePeers: nothing that arrives on the side channel hurts the engine, and each such connection is closed.
func TestHostilePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := network{}
		e := start(t, nw, "e", nil)
		frame := func(kind byte, body string) []byte {
			var b bytes.Buffer
			if err := writeFrame(&b, kind, []byte(body)); err != nil {
				t.Fatal(err)
			}
			return b.Bytes()
		}
		compat, err := json.Marshal(hello{EngineID: e.EngineID(), Compat: e.cfg.compat()})
		if err != nil {
			t.Fatal(err)
		}
		good := frame(kindHello, string(compat))
		for name, bytes := range map[string][]byte{
			"silence":        nil,
			"zero length":    {0, 0, 0, 0, 'H'},
			"huge length":    {0xFF, 0xFF, 0xFF, 0xFF, 'H'},
			"read first":     frame(kindRead, `{}`),
			"not JSON":       frame(kindHello, `{`),
			"other engine":   frame(kindHello, `{"engine_id":"x"}`),
			"incompatible":   frame(kindHello, `{"engine_id":"`+e.EngineID()+`","compat":"x"}`),
			"unknown kind":   append(append([]byte{}, good...), frame('?', `{}`)...),
			"bad read":       append(append([]byte{}, good...), frame(kindRead, `{"blocks":["x"]}`)...),
			"bad beat":       append(append([]byte{}, good...), frame(kindBeat, `7`)...),
			"bad completion": append(append([]byte{}, good...), frame(kindDone, `[]`)...),
		} {
			conn, err := nw.dial(t.Context(), "e:1")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(bytes); err != nil {
				t.Fatal(err)
			}
			if !closes(conn) {
				t.Errorf("%s: connection stays open", name)
			}
			conn.Close()
		}
		if got := e.tokens(t, request("r", words(9, 1), 3)); len(got) != 3 {
			t.Errorf("engine is not well: %v", got)
		}
	})
}

// TestPeersAreCounted: there is a bound, and room again when some have left.
func TestPeersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := network{}
		start(t, nw, "e", nil)
		open := func() bool {
			conn, err := nw.dial(t.Context(), "e:1")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			begin := time.Now()
			gone := make(chan bool, 1)
			go func() { gone <- closes(conn) && time.Since(begin) < helloTimeout }()
			synctest.Wait()
			select {
			case <-gone:
				return false
			default:
				return true
			}
		}
		for n := range maxPeers {
			if !open() {
				t.Fatalf("number %d is hung up on", n)
			}
		}
		if open() {
			t.Error("one too many may stay")
		}
		time.Sleep(helloTimeout)
		if synctest.Wait(); !open() {
			t.Error("there is no room afterwards")
		}
		time.Sleep(helloTimeout)
	})
}

// closes reads until the peer closes, for at most a minute.
func closes(conn net.Conn) bool {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	timedOut := false
	defer context.AfterFunc(ctx, func() { timedOut = true; conn.Close() })()
	for {
		if _, err := conn.Read(make([]byte, 1024)); err != nil {
			return !timedOut
		}
	}
}

// TestIncompatiblePeers do not exchange blocks.
func TestIncompatiblePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := network{}
		p, d := start(t, nw, "p", nil), start(t, nw, "d", func(c *Config) { c.Seed = 8 })
		prompt := words(30, 1)
		pre := p.generate(t, prefillRequest(t, "r", prompt))
		wantStatus(t, d.generate(t, decodeRequest("r", prompt, 2, pre.handOff(t))).err, "Internal: engine failed during generation")
		wantBase(t, d)
		wantKnown(t, d, 0)
	})
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3, 'H', '{', '}'})
	f.Add([]byte{0, 0, 0, 0, 0})
	f.Add([]byte{0xFF, 0, 0, 0, 'R', 1})
	f.Fuzz(func(t *testing.T, raw []byte) {
		kind, body, err := readFrame(bytes.NewReader(raw), 64)
		if err != nil {
			return
		}
		if len(body) > 64 {
			t.Fatalf("%d bytes", len(body))
		}
		var again bytes.Buffer
		if err := writeFrame(&again, kind, body); err != nil || !bytes.HasPrefix(raw, again.Bytes()) {
			t.Fatalf("%v: %x, want %x", err, again.Bytes(), raw)
		}
		for _, parse := range []func([]byte) error{
			func(b []byte) error { _, err := decode[hello](b); return err },
			func(b []byte) error { _, err := decode[readRequest](b); return err },
			func(b []byte) error { _, err := decode[beatNote](b); return err },
			func(b []byte) error { _, err := decodeBlocks(b, 2, 4); return err },
		} {
			_ = parse(body) // must not panic
		}
	})
}
