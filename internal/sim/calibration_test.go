package sim

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"remora/internal/sim/calibration"
)

// TestCalibration drives the simulator through the scenario that real engines are driven through as well.
func TestCalibration(t *testing.T) {
	rows, err := calibration.Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := row.Run(t.Context(), calibrationPair(t), t.Logf); err != nil {
					t.Error(err)
				}
			})
		})
	}
	t.Logf("calibration: %d rows hold for the simulator", len(rows))
}

// calibrationPair is two engines with the settings of the real ones, and hands to spoil them.
func calibrationPair(t *testing.T) *calibration.Pair {
	t.Helper()
	nw := network{}
	begin := func(name string) (*engine, *calibration.Engine) {
		front := bufconn.Listen(1 << 16)
		e := startWith(t, nw, name, front, func(c *Config) {
			c.BlockSize, c.Blocks, c.MaxModelLen, c.MaxSeqs, c.Lease = calibration.BlockSize, calibration.Blocks,
				calibration.MaxModelLen, calibration.MaxSeqs, calibration.Lease
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
			p.end() //nolint:errcheck // it is killed
			return nil
		},
		RestartP: func(context.Context) (*calibration.Engine, error) {
			time.Sleep(time.Minute) // as long as a real one takes
			_, client := begin("p")
			return client, nil
		},
	}
}
