package differential

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"remora/internal/dynamo/protocol"
	"remora/internal/tinymodel"
	"remora/internal/vllm/vllmtest"
	"remora/interop/harness"
)

var errNoRecord = errors.New("there is none")

// side is one of the two: an engine and the sidecar before it, in a discovery folder of its own.
type side struct {
	kind    harness.Kind
	engine  *vllmtest.Engine
	cluster *harness.Cluster
	sidecar *harness.Sidecar
	address string // host:port of the request plane
	path    string // what requests name there
}

// pair is both of them, and the frontend that asks them.
type pair struct {
	role     harness.Role
	frontend *frontend
	sides    [2]*side // the Rust one first
}

// letters names the roles in the tables of cases.
var letters = map[rune]harness.Role{'a': harness.Aggregated, 'p': harness.Prefill, 'd': harness.Decode}

// model is one folder for a side; both engines name the same.
func model(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tiny")
	if err := tinymodel.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newPair starts a Rust sidecar and a Remora of the role side by side. setup changes both engines first.
func newPair(t *testing.T, role harness.Role, setup func(b *vllmtest.Behaviour), env []string, args ...string) *pair {
	t.Helper()
	p := &pair{role: role, frontend: newFrontend(t)}
	folder := model(t)
	for i, kind := range []harness.Kind{harness.Rust, harness.Remora} {
		s := &side{kind: kind, engine: vllmtest.New(t), cluster: harness.NewCluster(t)}
		s.cluster.Setenv(env...)
		s.engine.Set(func(b *vllmtest.Behaviour) {
			b.Model.ModelId = folder
			if setup != nil {
				setup(b)
			}
		})
		s.sidecar = s.cluster.StartSidecar(t, kind, role, port(t, s.engine.Loopback(t)), args...)
		p.sides[i] = s
	}
	for _, s := range p.sides {
		s.sidecar.WaitReady(t)
		s.find(t)
	}
	return p
}

func port(t *testing.T, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// find learns from discovery where the sidecar takes requests. The Rust sidecar says that it is ready a moment earlier.
func (s *side) find(t *testing.T) {
	t.Helper()
	harness.Poll(t, string(s.kind)+"'s records", patience, func() error {
		card := false
		for path, record := range s.records(t) {
			card = card || strings.HasPrefix(path, "mdc/")
			if !strings.HasPrefix(path, "instances/") {
				continue
			}
			transport, _ := record.Get("transport")
			tcp, _ := transport.Get("tcp")
			s.address, s.path, _ = strings.Cut(tcp.Str, "/")
		}
		if s.address == "" || !card {
			return errNoRecord
		}
		return nil
	})
}

// records are the side's records in discovery, by "bucket/file".
func (s *side) records(t *testing.T) map[string]protocol.Value {
	t.Helper()
	out := map[string]protocol.Value{}
	root := filepath.Join(s.cluster.Discovery, "v1")
	buckets, err := os.ReadDir(root)
	if err != nil && !os.IsNotExist(err) { // nothing was published yet
		t.Fatal(err)
	}
	for _, bucket := range buckets {
		files, err := os.ReadDir(filepath.Join(root, bucket.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join(root, bucket.Name(), file.Name()))
			if os.IsNotExist(err) || strings.HasPrefix(file.Name(), ".") {
				continue // withdrawn, or being written, while we looked
			}
			if err != nil {
				t.Fatal(err)
			}
			v, err := protocol.ParseValue(protocol.JSON, text)
			if err != nil {
				t.Fatalf("%s/%s: %v", bucket.Name(), file.Name(), err)
			}
			out[bucket.Name()+"/"+file.Name()] = v
		}
	}
	return out
}

// instances counts the side's instance records.
func (s *side) instances() int {
	files, err := filepath.Glob(filepath.Join(s.cluster.Discovery, "v1", "instances", "*"))
	if err != nil {
		return -1
	}
	return len(files)
}
