package discovery

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchReadsForeignWriters(t *testing.T) {
	root := t.TempDir()
	s := openTestFile(t, root)
	defer mustClose(t, s)
	dir := filepath.Join(root, string(ModelCards))
	events, err := s.Watch(t.Context(), ModelCards)
	if err != nil {
		t.Fatal(err)
	}
	// A plain write is seen; so is a rename over the record, which is how peers replace.
	write(t, filepath.Join(dir, "a"), `{"v":1}`, time.Now())
	expect(t, events, `put a {"v":1}`)
	write(t, filepath.Join(dir, ".tmp_0123456789abcdef"), `{"v":2}`, time.Now())
	if err = os.Rename(filepath.Join(dir, ".tmp_0123456789abcdef"), filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	expect(t, events, `put a {"v":2}`)
	// A broken write keeps the last good value, and does not hide what comes after it.
	write(t, filepath.Join(dir, "a"), `{"v":`, time.Now())
	write(t, filepath.Join(dir, "broken"), `[`, time.Now())
	write(t, filepath.Join(dir, "README.md"), `{}`, time.Now())
	write(t, filepath.Join(dir, "huge"), `{"v":"`+strings.Repeat("x", maxRecordSize)+`"}`, time.Now())
	write(t, filepath.Join(dir, "b"), `{}`, time.Now())
	expect(t, events, "put b {}")
	write(t, filepath.Join(dir, "a"), `{"v":3}`, time.Now())
	expect(t, events, `put a {"v":3}`)
	if err = os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	expect(t, events, "removed a")
}

// A leftover of a crashed worker must not look like a worker, but a worker that was merely slow must come back.
func TestWatchHoldsBackTheOld(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, string(Instances))
	write(t, filepath.Join(dir, "leftover"), `{}`, time.Now().Add(-time.Minute))
	write(t, filepath.Join(dir, "fresh"), `{}`, time.Now())
	s := openTestFile(t, root)
	defer mustClose(t, s)
	events, err := s.Watch(t.Context(), Instances)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, events, "put fresh {}")
	now := time.Now()
	if err = os.Chtimes(filepath.Join(dir, "leftover"), now, now); err != nil {
		t.Fatal(err)
	}
	expect(t, events, "put leftover {}")
}

// scanUntil runs the watch's scans on the fake clock, as its ticker would without any inotify.
func scanUntil(t *testing.T, w *fileWatch, d, step time.Duration, each func()) []string {
	t.Helper()
	var got []string
	w.out = make(chan Event, 100)
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(step) {
		if each != nil {
			each()
		}
		if !w.scan(t.Context(), nil) {
			t.Fatal("scan gave up")
		}
	}
	for len(w.out) > 0 {
		got = append(got, next(t, w.out))
	}
	return got
}

func TestScansAloneSeeEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := openFolder(t.TempDir(), Instances)
		if err != nil {
			t.Fatal(err)
		}
		w := newFileWatch(f, slog.New(slog.DiscardHandler))
		path := filepath.Join(f.path, "a")
		write(t, path, `{}`, time.Now())
		touch := func() {
			if touchErr := f.touch("a", time.Now()); touchErr != nil {
				t.Fatal(touchErr)
			}
		}
		if got := scanUntil(t, w, time.Minute, 3*time.Second, touch); strings.Join(got, ",") != "put a {}" {
			t.Errorf("while the owner lives: %v", got)
		}
		start := time.Now()
		if got := scanUntil(t, w, 9*time.Second, 3*time.Second, nil); got != nil {
			t.Errorf("within the TTL: %v", got)
		}
		if got := scanUntil(t, w, 9*time.Second, 3*time.Second, nil); strings.Join(got, ",") != "removed a" {
			t.Errorf("%v after the last touch: %v", time.Since(start), got)
		}
		if got := scanUntil(t, w, 3*time.Second, 3*time.Second, touch); strings.Join(got, ",") != "put a {}" {
			t.Errorf("when the owner came back: %v", got)
		}
	})
}

// A stop of the whole machine makes every record look old at once, although all owners are about to touch theirs.
func TestPauseExpiresNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := openFolder(t.TempDir(), Instances)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(f.path, "a"), `{}`, time.Now())
		w := newFileWatch(f, slog.New(slog.DiscardHandler))
		if got := scanUntil(t, w, 6*time.Second, 3*time.Second, nil); strings.Join(got, ",") != "put a {}" {
			t.Fatal(got)
		}
		time.Sleep(time.Hour) // nobody runs
		if removed, expireErr := f.expire(t.Context(), time.Now()); expireErr != nil || removed != nil {
			t.Errorf("expired right after the pause: %v, %v", removed, expireErr)
		}
		if got := scanUntil(t, w, 3*time.Second, 3*time.Second, nil); got != nil {
			t.Errorf("right after the pause: %v", got)
		}
		if got := scanUntil(t, w, 9*time.Second, 3*time.Second, nil); strings.Join(got, ",") != "removed a" {
			t.Errorf("long after the pause: %v", got)
		}
	})
}

// Stepping the wall clock changes what time.Now says against the files' times, not the files.
func TestClockStepsExpireNobody(t *testing.T) {
	for name, step := range map[string]time.Duration{"forward": time.Hour, "backward": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, err := openFolder(t.TempDir(), Instances)
				if err != nil {
					t.Fatal(err)
				}
				w := newFileWatch(f, slog.New(slog.DiscardHandler))
				path := filepath.Join(f.path, "a")
				write(t, path, `{}`, time.Now())
				if got := scanUntil(t, w, 3*time.Second, 3*time.Second, nil); strings.Join(got, ",") != "put a {}" {
					t.Fatal(got)
				}
				// Seen from the stepped clock, all files moved the other way.
				stepped := func() { write(t, path, `{}`, time.Now().Add(-step)) }
				stepped()
				if got := scanUntil(t, w, 4*time.Second, time.Second, nil); got != nil {
					t.Errorf("before the owner's next touch: %v", got)
				}
				if got := scanUntil(t, w, time.Minute, 3*time.Second, func() { write(t, path, `{}`, time.Now()) }); got != nil {
					t.Errorf("after it: %v", got)
				}
			})
		})
	}
}
