package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

const cardKey = "dynamo/backend/generate/1a2b3c4d5e6f7"

func openTestFile(t *testing.T, root string) *File {
	t.Helper()
	s, err := OpenFile(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func write(t *testing.T, path, text string, modified time.Time) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, modified, modified); err != nil {
		t.Fatal(err)
	}
}

func TestFileLayout(t *testing.T) {
	root := filepath.Join(t.TempDir(), "made", "on the way")
	s := openTestFile(t, root)
	mustCreate(t, s, ModelCards, cardKey, `{"type":"Model"}`)
	mustCreate(t, s, EventChannels, ChannelKey(Scope{"my-ns", "", ""}, "kv-events", 1), `{}`)
	if got := names(t, filepath.Join(root, "v1", "mdc")); len(got) != 1 || got[0] != "dynamo%2Fbackend%2Fgenerate%2F1a2b3c4d5e6f7" {
		t.Error(got)
	}
	if got := names(t, filepath.Join(root, "v1", "event_channels")); len(got) != 1 || got[0] != "namespace%2Fmy%2Dns%2Ftopic%2Fkv%2Devents%2F1" {
		t.Error(got)
	}
	path := filepath.Join(root, "v1", "mdc", encodeFileName(cardKey))
	if text, err := os.ReadFile(path); err != nil || string(text) != `{"type":"Model"}` {
		t.Error(string(text), err)
	}
	mustClose(t, s)
	if got := names(t, filepath.Join(root, "v1", "mdc")); len(got) != 0 {
		t.Errorf("left behind at shutdown: %v", got)
	}
}

func TestUnusableRoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "", time.Now())
	for _, root := range []string{"", file, filepath.Join(file, "below"), "/proc/nowhere"} {
		_, err := OpenFile(root, nil)
		if !errors.Is(err, ErrFolder) || !strings.Contains(err.Error(), root) || strings.Contains(err.Error(), "\n") {
			t.Errorf("OpenFile(%q): %v", root, err)
		}
	}
}

func TestUnwritableRoot(t *testing.T) {
	const nobody = 65534
	root := t.TempDir()
	if err := os.Chmod(root, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // modes do not stop root: become somebody else for a moment, on this thread alone
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Setresuid(nobody, nobody, 0); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Setresuid(0, 0, 0); err != nil {
				panic(err) // this thread must not go on as nobody
			}
		}()
	}
	if _, err := OpenFile(root, nil); !errors.Is(err, ErrFolder) || !errors.Is(err, unix.EACCES) {
		t.Error(err)
	}
}

// The owner's touches keep a record young for as long as the owner lives, and let it age when the owner is gone.
func TestKeeperTouchesWhatWeOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		s := openTestFile(t, root)
		mustCreate(t, s, Instances, cardKey, `{}`)
		path := filepath.Join(root, string(Instances), encodeFileName(cardKey))
		for range 100 {
			time.Sleep(time.Second)
			synctest.Wait()
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			// Three times within the 10 s for which peers believe in it, so that a late touch does not matter.
			if age := time.Since(info.ModTime()); age > 10*time.Second/3 || age < 0 {
				t.Fatalf("the record's file is %v old", age)
			}
		}
		mustClose(t, s)
		if exists(t, path) {
			t.Error("left behind at shutdown")
		}
	})
}

// After a pause a peer has expired our records, perhaps with the whole folder; a hand or a script may write over them. A peer that
// sits on the lock does not change that.
func TestKeeperBringsBackItsRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		s := openTestFile(t, root)
		defer mustClose(t, s)
		mustCreate(t, s, Instances, cardKey, `{"a":1}`)
		mustCreate(t, s, Instances, "other", `{}`)
		path := filepath.Join(root, string(Instances), encodeFileName(cardKey))
		other := filepath.Join(filepath.Dir(path), "other")
		time.Sleep(time.Second) // harm is done between the keeper's looks
		remove := func(what string) func() {
			return func() {
				if err := os.RemoveAll(what); err != nil {
					t.Fatal(err)
				}
			}
		}
		for name, harm := range map[string]func(){
			"removed":        remove(path),
			"folder removed": remove(filepath.Dir(path)),
			"root removed":   remove(root),
			"cut off":        func() { write(t, path, "", time.Now()) },
			"broken":         func() { write(t, path, `{"a":`, time.Now()) },
			"another":        func() { write(t, path, `{"a":2}`, time.Now().Add(time.Hour)) },
			"moved over": func() {
				write(t, path+"x", `{"b":1}`, time.Now())
				if err := os.Rename(path+"x", path); err != nil {
					t.Fatal(err)
				}
			},
			"removed, locked": func() {
				remove(path)()
				time.AfterFunc(touchInterval+2*time.Second, holdLock(t, filepath.Dir(path)))
			},
		} {
			harm()
			time.Sleep(touchInterval + 1500*time.Millisecond)
			synctest.Wait()
			if text, err := os.ReadFile(path); err != nil || string(text) != `{"a":1}` {
				t.Fatalf("%s: %s, %v", name, text, err)
			}
			if got := names(t, filepath.Dir(path)); len(got) != 2 || !exists(t, other) {
				t.Fatalf("%s: left %v", name, got)
			}
			time.Sleep(2*touchInterval - 1500*time.Millisecond)
		}
		for _, also := range []func(){func() {}, remove(filepath.Dir(path))} {
			also() // deleting is not in need of the folder, nor of its lock
			if err := s.Delete(t.Context(), Instances, cardKey); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * touchInterval)
		synctest.Wait()
		if exists(t, path) {
			t.Error("a deleted record came back")
		}
	})
}

// Many records that are lost while a peer sits on the lock do not keep the others from being touched.
func TestKeeperTouchesWhileItRestores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		s := openTestFile(t, root)
		defer mustClose(t, s)
		mustCreate(t, s, ModelCards, cardKey, `{}`)
		for i := range 30 {
			mustCreate(t, s, Instances, fmt.Sprint("k", i), `{}`)
		}
		time.Sleep(time.Second)
		instances := filepath.Join(root, string(Instances))
		defer holdLock(t, instances)()
		for _, name := range names(t, instances) {
			if err := os.Remove(filepath.Join(instances, name)); err != nil {
				t.Fatal(err)
			}
		}
		for range 60 {
			time.Sleep(500 * time.Millisecond)
			info, err := os.Stat(filepath.Join(root, string(ModelCards), encodeFileName(cardKey)))
			if err != nil || time.Since(info.ModTime()) > 5*time.Second {
				t.Fatalf("the card is %v old; %v", time.Since(info.ModTime()), err)
			}
		}
		if got := names(t, instances); len(got) != 30 {
			t.Errorf("%d are back: %v", len(got), got)
		}
	})
}

// What can't be put right is said, holds nothing else up, and is put right when it can be.
func TestKeeperGoesOnTrying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		var log bytes.Buffer
		s, err := OpenFile(root, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		mustCreate(t, s, Instances, "blocked", `{"a":1}`)
		mustCreate(t, s, Instances, "well", `{}`)
		dir := filepath.Join(root, string(Instances))
		if err = errors.Join(os.Remove(filepath.Join(dir, "blocked")), os.Mkdir(filepath.Join(dir, "blocked"), 0o700)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * touchInterval)
		synctest.Wait()
		info, err := os.Stat(filepath.Join(dir, "well"))
		if err != nil || time.Since(info.ModTime()) > touchInterval {
			t.Errorf("the other record: %v, %v", info, err)
		}
		if got := names(t, dir); len(got) != 2 {
			t.Errorf("left %v", got)
		}
		if err := os.Remove(filepath.Join(dir, "blocked")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(touchInterval)
		synctest.Wait()
		if text, err := os.ReadFile(filepath.Join(dir, "blocked")); err != nil || string(text) != `{"a":1}` {
			t.Errorf("%s, %v", text, err)
		}
		mustClose(t, s)
		if !strings.Contains(log.String(), "cannot look after our discovery record") {
			t.Errorf("log:\n%s", &log)
		}
	})
}

func TestKeeperExpiresTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		dir := filepath.Join(root, string(Instances))
		young := time.Now()
		old, future := young.Add(-time.Hour), young.Add(time.Hour)
		write(t, filepath.Join(dir, "old"), `{}`, old)
		write(t, filepath.Join(dir, "oldAndBroken"), `{`, old)
		write(t, filepath.Join(dir, "young"), `{}`, young)
		write(t, filepath.Join(dir, "future"), `{}`, future)
		write(t, filepath.Join(dir, "peer"), `{}`, young)
		write(t, filepath.Join(dir, ".tmp_0123456789abcdef"), `{`, old)
		write(t, filepath.Join(dir, "README.md"), "not ours", old)
		write(t, filepath.Join(dir, ".tmp_mine"), "not ours", old)
		write(t, filepath.Join(dir, "sub", "deep"), "not ours", old)
		if err := os.Symlink("old", filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(root, string(ModelCards), "old")
		write(t, other, `{}`, old)

		s := openTestFile(t, root)
		defer mustClose(t, s)
		mustCreate(t, s, Instances, "own", `{}`) // opens this bucket, not the other
		var lifetimes = map[string]time.Duration{}
		start := time.Now()
		for range 60 {
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			now := time.Now()
			if err := os.Chtimes(filepath.Join(dir, "peer"), now, now); err != nil {
				t.Fatal(err)
			}
			for _, name := range names(t, dir) {
				lifetimes[name] = time.Since(start)
			}
		}
		for name, limit := range map[string][2]time.Duration{
			"old":                   {doubtTime, doubtTime + 2*touchInterval},
			"oldAndBroken":          {doubtTime, doubtTime + 2*touchInterval},
			".tmp_0123456789abcdef": {doubtTime, doubtTime + 2*touchInterval},
			"young":                 {recordTTL, recordTTL + touchInterval},
			"future":                {recordTTL, recordTTL + 2*touchInterval},
			"peer":                  {time.Since(start), time.Since(start)},
			"own":                   {time.Since(start), time.Since(start)},
			"README.md":             {time.Since(start), time.Since(start)},
			".tmp_mine":             {time.Since(start), time.Since(start)},
			"sub":                   {time.Since(start), time.Since(start)},
			"link":                  {time.Since(start), time.Since(start)},
		} {
			if got := lifetimes[name]; got < limit[0] || got > limit[1] {
				t.Errorf("%s lived for %v, want %v to %v", name, got, limit[0], limit[1])
			}
		}
		if !exists(t, other) {
			t.Error("a bucket that was never opened was cleaned")
		}
	})
}

// holdLock plays a peer that holds a folder's lock.
func holdLock(t *testing.T, dir string) (release func()) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

func TestFolderLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		s := openTestFile(t, root)
		mustCreate(t, s, Instances, "k", `{}`)
		release := holdLock(t, filepath.Join(root, string(Instances)))

		start := time.Now()
		if err := s.Create(t.Context(), Instances, "new", []byte(`{}`)); !errors.Is(err, ErrLocked) {
			t.Errorf("Create under a foreign lock: %v", err)
		}
		if waited := time.Since(start); waited < 900*time.Millisecond || waited > 1100*time.Millisecond {
			t.Errorf("waited %v for the lock", waited)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 55*time.Millisecond)
		defer cancel()
		if err := s.Create(ctx, Instances, "new", []byte(`{}`)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Create with a deadline: %v", err)
		}

		// A short hold is sat out.
		time.AfterFunc(300*time.Millisecond, release)
		mustCreate(t, s, Instances, "new", `{}`)

		// Removal does not depend on a peer's good will.
		defer holdLock(t, filepath.Join(root, string(Instances)))()
		if err := s.Delete(t.Context(), Instances, "k"); err != nil {
			t.Errorf("Delete under a foreign lock: %v", err)
		}
		ended, stop := context.WithCancel(t.Context())
		stop()
		if err := s.Close(ended); err != nil {
			t.Errorf("Close under a foreign lock and without time: %v", err)
		}
		if got := names(t, filepath.Join(root, string(Instances))); len(got) != 0 {
			t.Error(got)
		}
	})
}

func TestCreateFailsCleanly(t *testing.T) {
	root := t.TempDir()
	s := openTestFile(t, root)
	defer mustClose(t, s)
	if err := s.Create(t.Context(), Instances, strings.Repeat("long", 100), []byte(`{}`)); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Error(err)
	}
	if got := names(t, filepath.Join(root, string(Instances))); len(got) != 0 {
		t.Errorf("a failed Create left %v", got)
	}
}
