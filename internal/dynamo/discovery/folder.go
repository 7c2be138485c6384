package discovery

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"remora/internal/sleep"
)

const (
	temporaryPrefix = ".tmp_"
	// Peers give up on the lock after lockAttempts tries with lockRetry between them.
	lockRetry    = 10 * time.Millisecond
	lockAttempts = 100
	// maxRecordSize bounds what we read of a file that somebody else wrote. The largest real records are model cards with
	// a line for each file of the model.
	maxRecordSize = 4 << 20
)

// folder is the folder of one bucket: one file a record. It knows nothing of who owns what.
type folder struct {
	path string // set once

	mu   sync.Mutex
	ages ages // guarded by mu
}

// openFolder makes the bucket's folder where it is missing.
func openFolder(root string, bucket Bucket) (*folder, error) {
	path := filepath.Join(root, filepath.FromSlash(string(bucket)))
	if err := os.MkdirAll(path, 0o777); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	return &folder{path: path}, nil
}

// lock takes the folder's exclusive lock, as peers do around every change. The kernel drops it with the descriptor, so a
// peer that dies never leaves it behind.
func (f *folder) lock(ctx context.Context) (unlock func(), err error) {
	dir, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("lock discovery folder: %w", err)
	}
	unlock = func() { _ = dir.Close() } // nothing was written through it
	for attempt := 1; ; attempt++ {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return unlock, nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			unlock()
			return nil, fmt.Errorf("lock discovery folder %s: %w", f.path, err)
		case attempt >= lockAttempts:
			unlock()
			return nil, fmt.Errorf("%w: %s, for %v", ErrLocked, f.path, lockAttempts*lockRetry)
		}
		if !sleep.For(ctx, lockRetry) {
			unlock()
			return nil, fmt.Errorf("lock discovery folder %s: %w", f.path, ctx.Err())
		}
	}
}

// create writes a record under its final name in one step: readers see it whole or not at all. The caller holds the lock.
func (f *folder) create(name string, value []byte, now time.Time) error {
	return f.write(name, value, now, func(from, to string) error {
		err := os.Link(from, to)
		if errors.Is(err, fs.ErrExist) {
			return ErrExists
		}
		return err
	})
}

// replace is create where the name may be taken.
func (f *folder) replace(name string, value []byte, now time.Time) error {
	return f.write(name, value, now, os.Rename)
}

// write makes a temporary file and has it put under its final name.
func (f *folder) write(name string, value []byte, now time.Time, put func(from, to string) error) error {
	var suffix [8]byte
	_, _ = rand.Read(suffix[:]) // never fails
	temporary := filepath.Join(f.path, temporaryPrefix+hex.EncodeToString(suffix[:]))
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	defer func() { _ = os.Remove(temporary) }() // one left behind is expired like any other file
	_, err = file.Write(value)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Chtimes(temporary, now, now)
	}
	if err == nil {
		err = put(temporary, filepath.Join(f.path, name))
	}
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// touch tells peers that the record's owner lives; fs.ErrNotExist if the record is gone.
func (f *folder) touch(name string, now time.Time) error {
	if err := os.Chtimes(filepath.Join(f.path, name), now, now); err != nil {
		return fmt.Errorf("touch record: %w", err)
	}
	return nil
}

// remove deletes a record; an absent one is no error.
func (f *folder) remove(name string) error {
	if err := os.Remove(filepath.Join(f.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}

// read gives a record's content; fs.ErrNotExist if it is gone.
func (f *folder) read(name string) ([]byte, error) {
	file, err := os.Open(filepath.Join(f.path, name))
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	defer func() { _ = file.Close() }()
	value, err := io.ReadAll(io.LimitReader(file, maxRecordSize+1))
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	if len(value) > maxRecordSize {
		return nil, fmt.Errorf("%w: %s is larger than %d bytes", ErrRecord, name, maxRecordSize)
	}
	return value, nil
}

// entry is one file of the folder that belongs to the discovery protocol.
type entry struct {
	name string
	key  string // empty for a temporary
	info fs.FileInfo
	life vitality
}

// list gives the folder's records and temporaries with a judgement of their age. Whatever else lies there is not ours to
// look at: other names, folders, links, devices.
func (f *folder) list(now time.Time) ([]entry, error) {
	files, err := os.ReadDir(f.path)
	if err != nil {
		return nil, fmt.Errorf("list discovery folder: %w", err)
	}
	entries := make([]entry, 0, len(files))
	for _, file := range files {
		e := entry{name: file.Name()}
		if !file.Type().IsRegular() {
			continue
		}
		if !isTemporary(e.name) {
			if e.key, err = decodeFileName(e.name); err != nil {
				continue
			}
		}
		if e.info, err = file.Info(); err != nil {
			continue // went away since
		}
		entries = append(entries, e)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ages.judge(entries, now)
	return entries, nil
}

// expire deletes the records whose owners are gone, as every peer does that has opened the bucket.
func (f *folder) expire(ctx context.Context, now time.Time) (removed []string, err error) {
	entries, err := f.list(now)
	if err != nil {
		return nil, err
	}
	var dead []entry
	for _, e := range entries {
		if e.life == expired {
			dead = append(dead, e)
		}
	}
	if len(dead) == 0 {
		return nil, nil
	}
	unlock, err := f.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, e := range dead {
		// The owner may have come back while we waited for the lock.
		info, statErr := os.Lstat(filepath.Join(f.path, e.name))
		if statErr != nil || !info.ModTime().Equal(e.info.ModTime()) {
			continue
		}
		if removeErr := f.remove(e.name); removeErr != nil {
			return removed, removeErr
		}
		removed = append(removed, e.name)
	}
	return removed, nil
}

func isTemporary(name string) bool {
	suffix, ok := strings.CutPrefix(name, temporaryPrefix)
	if !ok || len(suffix) != 16 {
		return false
	}
	_, err := hex.DecodeString(suffix)
	return err == nil
}
