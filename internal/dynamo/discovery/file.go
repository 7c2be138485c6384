package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// File keeps records as files, one folder a bucket, as Dynamo's file backend does: processes on one host see each other's
// records, and a record lives as long as somebody keeps its file's time fresh.
type File struct {
	root   string          // set once
	log    *slog.Logger    // set once
	ctx    context.Context // set once; ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the keeper and the watches; Add only under mu while open
	done   chan struct{}  // closed by the Close call that did the work
	result error          // of Close; set before done is closed

	// mu is held over a whole change of a file, so that the keeper never brings back what Delete is taking away.
	mu      sync.Mutex
	closed  bool                // guarded by mu
	folders map[Bucket]*folder  // guarded by mu; the buckets that were opened, by whatever operation
	owned   map[recordID][]byte // guarded by mu; what we created and did not delete
}

var _ Store = (*File)(nil)

// OpenFile opens the store under root, making the folder where it is missing. A nil log discards.
func OpenFile(root string, log *slog.Logger) (*File, error) {
	if err := usableFolder(root); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFolder, root, err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &File{
		root: root, log: log, ctx: ctx, cancel: cancel, done: make(chan struct{}),
		folders: make(map[Bucket]*folder), owned: make(map[recordID][]byte),
	}
	s.wg.Go(s.keep)
	return s, nil
}

func usableFolder(root string) error {
	if root == "" {
		return errors.New("no path given")
	}
	if err := os.MkdirAll(root, 0o777); err != nil {
		return err
	}
	if err := unix.Access(root, unix.R_OK|unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("cannot read and write in it: %w", err)
	}
	return nil
}

// Create implements Store.
func (s *File) Create(ctx context.Context, bucket Bucket, key string, value []byte) error {
	if err := CheckRecord(ctx, bucket, key, value); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := s.folder(bucket)
	if err != nil {
		return err
	}
	if err = s.createLocked(ctx, f, key, value); err != nil {
		return fmt.Errorf("create %s/%s: %w", bucket, key, err)
	}
	s.owned[recordID{bucket, key}] = slices.Clone(value)
	return nil
}

// createLocked is called with mu held.
func (s *File) createLocked(ctx context.Context, f *folder, key string, value []byte) error {
	unlock, err := f.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return f.create(encodeFileName(key), value, time.Now())
}

// Delete implements Store.
func (s *File) Delete(ctx context.Context, bucket Bucket, key string) error {
	if err := CheckBucket(ctx, bucket); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := s.folder(bucket)
	if err != nil {
		return err
	}
	unlock, err := s.lockOrNot(ctx, f)
	if err != nil {
		return fmt.Errorf("delete %s/%s: %w", bucket, key, err)
	}
	defer unlock()
	if err = f.remove(encodeFileName(key)); err != nil {
		return fmt.Errorf("delete %s/%s: %w", bucket, key, err)
	}
	delete(s.owned, recordID{bucket, key})
	return nil
}

// lockOrNot goes on without the lock where it can't be had before ctx ends, because a peer sits on it or there is no descriptor
// left: it only spares others a look at a folder in change, while a record left behind sends requests to a worker that is gone,
// and one that does not come back keeps them from one that is there.
func (s *File) lockOrNot(ctx context.Context, f *folder) (unlock func(), err error) {
	unlock, err = f.lock(ctx)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("changing a discovery record without the folder's lock", "error", err)
		return func() {}, nil
	}
	return unlock, err
}

// Close implements Store. Our records are removed even where ctx has ended already.
func (s *File) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return s.result
	}
	s.closed = true
	s.mu.Unlock()

	s.cancel()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result = s.removeOwned(ctx)
	close(s.done)
	return s.result
}

// removeOwned is called with mu held.
func (s *File) removeOwned(ctx context.Context) error {
	var failures []error
	for bucket, f := range s.folders {
		keys := make([]string, 0, len(s.owned))
		for id := range s.owned {
			if id.bucket == bucket {
				keys = append(keys, id.key)
			}
		}
		if len(keys) == 0 {
			continue
		}
		unlock, err := s.lockOrNot(ctx, f)
		if err != nil {
			s.log.Warn("removing discovery records without the folder's lock", "bucket", string(bucket), "error", err)
			unlock = func() {}
		}
		for _, key := range keys {
			if err = f.remove(encodeFileName(key)); err != nil {
				failures = append(failures, fmt.Errorf("close discovery store: %s/%s: %w", bucket, key, err))
			}
		}
		unlock()
	}
	clear(s.owned)
	return errors.Join(failures...)
}

// folder is called with mu held.
func (s *File) folder(bucket Bucket) (*folder, error) {
	if s.closed {
		return nil, ErrClosed
	}
	if f := s.folders[bucket]; f != nil {
		return f, nil
	}
	f, err := openFolder(s.root, bucket)
	if err != nil {
		return nil, err
	}
	s.folders[bucket] = f
	return f, nil
}

// keep is the keeper: it touches what we own and expires what nobody owns any more, until Close.
func (s *File) keep() {
	ticker := time.NewTicker(touchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.touchOwned()
			s.expireAll()
		case <-s.ctx.Done():
			return
		}
	}
}

// touchOwned also puts right what others did to our records: after a pause of more than the TTL some peer has expired them, and
// a hand or a script may have written over them. All are touched first: what is lost may have to wait for the lock, and the
// others must not expire meanwhile.
func (s *File) touchOwned() {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := map[Bucket][]string{} // keys
	for id, value := range s.owned {
		f, name := s.folders[id.bucket], encodeFileName(id.key)
		err := f.touch(name, time.Now())
		var have []byte
		if err == nil {
			have, err = f.read(name)
		}
		what := "is not what we wrote"
		switch {
		case err == nil && bytes.Equal(have, value):
			continue
		case errors.Is(err, fs.ErrNotExist):
			what = "vanished"
		case err != nil: // it says nothing of the record: there may be no descriptor left
			s.cannotKeep(id, err)
			continue
		}
		s.log.Warn("our discovery record "+what+"; writing it again", "bucket", string(id.bucket), "key", id.key)
		lost[id.bucket] = append(lost[id.bucket], id.key)
	}
	for bucket, keys := range lost {
		s.restoreLocked(bucket, keys)
	}
}

func (s *File) cannotKeep(id recordID, err error) {
	if s.ctx.Err() == nil {
		s.log.Error("cannot look after our discovery record", "bucket", string(id.bucket), "key", id.key, "error", err)
	}
}

// restoreLocked writes records of one bucket again. It waits for the lock once, so that many of them take no longer than one.
// Called with mu held.
func (s *File) restoreLocked(bucket Bucket, keys []string) {
	f := s.folders[bucket]
	err := os.MkdirAll(f.path, 0o777)
	unlock := func() {}
	if err == nil {
		unlock, err = s.lockOrNot(s.ctx, f)
	}
	if err != nil {
		s.cannotKeep(recordID{bucket, keys[0]}, err)
		return
	}
	defer unlock()
	for _, key := range keys {
		id := recordID{bucket, key}
		if err = f.replace(encodeFileName(key), s.owned[id], time.Now()); err != nil {
			s.cannotKeep(id, err)
		}
	}
}

func (s *File) expireAll() {
	s.mu.Lock()
	folders := maps.Clone(s.folders)
	s.mu.Unlock()
	for bucket, f := range folders {
		removed, err := f.expire(s.ctx, time.Now())
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("cannot expire discovery records", "folder", filepath.Join(s.root, string(bucket)), "error", err)
		}
		for _, name := range removed {
			s.log.Info("expired a discovery record that its owner no longer touches", "bucket", string(bucket), "file", name)
		}
	}
}
