package sim

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/memnet"

	"remora/internal/sim/calibration"
)

// TestCalibration drives the simulator through the scenario that real engines are driven through as well.
func TestCalibration(t *testing.T) {
	rows, err := calibration.Rows()
	if err != nil {
		t.Fatal(err)
	}
	held := 0
	for _, row := range rows {
		if t.Run(row.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := row.Run(t.Context(), calibrationPair(t, nil), t.Logf); err != nil {
					t.Error(err)
				}
			})
		}) {
			held++
		}
	}
	t.Logf("calibration: %d of %d rows hold for the simulator", held, len(rows))
}

// calibrationPair is two engines with the settings of the real ones, and hands to spoil them.
func calibrationPair(t *testing.T, change func(*Config)) *calibration.Pair {
	t.Helper()
	nw := network{}
	begin := func(name string) (*engine, *calibration.Engine) {
		front := memnet.Listen(1 << 16)
		e := startWith(t, nw, name, front, func(c *Config) {
			c.BlockSize, c.Blocks, c.MaxModelLen, c.MaxSeqs, c.Lease = calibration.BlockSize, calibration.Blocks,
				calibration.MaxModelLen, calibration.MaxSeqs, calibration.Lease
			if change != nil {
				change(c)
			}
		})
		return e, &calibration.Engine{Conn: e.conn, URL: "http://" + name, HTTP: &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return front.DialContext(ctx) },
		}}}
	}
	p, pClient := begin("p")
	d, dClient := begin("d")
	return &calibration.Pair{
		P: pClient, D: dClient,
		Stall: func(ctx context.Context, on bool) error { return d.SetFault(ctx, ReadStall, on) },
		KillP: func(context.Context) error {
			p.end()
			return nil
		},
		RestartP: func(context.Context) (*calibration.Engine, error) {
			time.Sleep(time.Minute) // as long as a real one takes
			_, client := begin("p")
			return client, nil
		},
	}
}

// TestCalibrationNotices runs rows against engines that are wrong in one way each: a scenario that holds for those as well
// would show nothing.
func TestCalibrationNotices(t *testing.T) {
	rows, err := calibration.Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		row    string
		want   string
	}{
		{"short lease", func(c *Config) { c.Lease = 5 * time.Second }, "prefill-abandoned", "used P 20"},
		{"long lease", func(c *Config) { c.Lease = 14500 * time.Millisecond }, "hand-off-late", "free P 9s..14s"},
		{"late drop", func(c *Config) { c.Faults, c.StepTime = []Fault{LateDrop}, 3*time.Second }, "drop-queued", "waiting P 0"},
		{"ignored drop", func(c *Config) { c.Faults = []Fault{DropIgnored} }, "drop-running", "running P 0"},
		{"no abort", func(c *Config) { c.Faults = []Fault{NoAbort} }, "abort-running", "abort a P"},
		{"crash", func(c *Config) { c.Faults = []Fault{CrashLateReceive} }, "decode-leaves-during-read", "Internal"},
		{"old errors", func(c *Config) { c.Faults = []Fault{AbortedErrors} }, "wrong-engine", "end d INTERNAL"},
		{"reads fail", func(c *Config) { c.Faults = []Fault{ReadFail} }, "hand-off", "end d LENGTH right"},
		{"slow reads", func(c *Config) { c.Faults, c.ReadDelay = []Fault{ReadSlow}, 6*time.Second }, "decode-dropped-at-headers", "free P 3s"},
		{"no heartbeats", func(c *Config) { c.Faults = []Fault{BeatLost} }, "read-stalled-past-the-lease", "used P 4"},
		{"fast handshake", func(c *Config) { c.HandshakeTimeout = time.Second }, "handshake-fails", "used D 8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := slices.IndexFunc(rows, func(r calibration.Row) bool { return r.Name == tt.row })
				err := rows[i].Run(t.Context(), calibrationPair(t, tt.change), t.Logf)
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: %v, want an error at %q", tt.row, err, tt.want)
				}
			})
		})
	}
}
