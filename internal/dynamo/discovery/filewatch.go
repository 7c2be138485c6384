package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// rescanInterval is the safety net under inotify, which loses events when its queue overflows and never has any on a shared
// network folder.
const rescanInterval = 5 * time.Second

// Watch implements Store. A record that is already past its time when the watch first sees it is held back until its owner
// touches it.
func (s *File) Watch(ctx context.Context, bucket Bucket) (<-chan Event, error) {
	if err := CheckBucket(ctx, bucket); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := s.folder(bucket)
	if err != nil {
		return nil, err
	}
	notify, err := fsnotify.NewWatcher()
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("watch %s: no inotify instance left (see fs.inotify.max_user_instances): %w", bucket, err)
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", bucket, err)
	}
	if err = notify.Add(f.path); err != nil {
		_ = notify.Close() // it watches nothing yet
		return nil, fmt.Errorf("watch %s: %w", bucket, err)
	}
	w := newFileWatch(f, s.log.With("bucket", string(bucket)))
	w.notify = notify
	s.wg.Go(func() {
		// The watch ends with whichever of the two contexts ends first.
		either, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		w.run(either)
	})
	return w.out, nil
}

// fileWatch compares the folder with what it last told its reader. All fields belong to its goroutine.
type fileWatch struct {
	folder  *folder
	notify  *fsnotify.Watcher
	log     *slog.Logger
	shown   map[string]shownFile // by file name
	held    map[string]struct{}  // names of files past their time that may come back to life
	refused map[string]struct{}  // names of unreadable files, so that each is logged once
	out     chan Event
}

type shownFile struct {
	key   string
	info  fs.FileInfo
	value []byte
}

func newFileWatch(f *folder, log *slog.Logger) *fileWatch {
	return &fileWatch{
		folder: f, log: log, shown: make(map[string]shownFile), held: make(map[string]struct{}),
		refused: make(map[string]struct{}), out: make(chan Event),
	}
}

func (w *fileWatch) run(ctx context.Context) {
	defer close(w.out)
	defer func() { _ = w.notify.Close() }() // ends fsnotify's own goroutine
	ticker := time.NewTicker(rescanInterval)
	defer ticker.Stop()
	changed := map[string]struct{}{}
	for {
		if !w.scan(ctx, changed) {
			return
		}
		if changed = w.await(ctx, ticker.C); changed == nil {
			return
		}
	}
}

// await blocks until a scan is due, and names the files that inotify saw changing, nil when ctx ended. A burst of events
// makes one scan.
func (w *fileWatch) await(ctx context.Context, tick <-chan time.Time) map[string]struct{} {
	changed := map[string]struct{}{}
	due := false
	for !due {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			_ = w.notify.Add(w.folder.path) // no-op, unless someone removed the folder and we or a peer made it again
			due = true
		case err := <-w.notify.Errors:
			w.log.Warn("discovery watch lost events; reading the folder again", "error", err)
			due = true
		case e := <-w.notify.Events:
			due = w.note(e, changed)
		}
	}
	for {
		select {
		case e := <-w.notify.Events:
			w.note(e, changed)
		default:
			return changed
		}
	}
}

// note says whether the event calls for a scan: temporaries do not, nor do touches (metadata only), except of a file that is
// held back.
func (w *fileWatch) note(e fsnotify.Event, changed map[string]struct{}) bool {
	name := filepath.Base(e.Name)
	if isTemporary(name) {
		return false
	}
	if _, held := w.held[name]; e.Op == fsnotify.Chmod && !held {
		return false
	}
	changed[name] = struct{}{}
	return true
}

// scan tells the reader how the folder differs from what it knows; false when ctx ended meanwhile. It takes no lock:
// records appear and vanish in one step each, so there is nothing half done to see.
func (w *fileWatch) scan(ctx context.Context, changed map[string]struct{}) bool {
	entries, err := w.folder.list(time.Now())
	if err != nil {
		w.log.Warn("cannot read discovery folder", "error", err)
		return ctx.Err() == nil
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	present := make(map[string]struct{}, len(entries))
	clear(w.held)
	for _, e := range entries {
		known, isShown := w.shown[e.name]
		if e.key == "" {
			continue
		}
		if e.life == expired || e.life == doubtful && !isShown {
			w.held[e.name] = struct{}{}
			continue
		}
		present[e.name] = struct{}{}
		if _, hinted := changed[e.name]; isShown && !hinted && known.info.ModTime().Equal(e.info.ModTime()) {
			continue
		}
		value, ok := w.read(e)
		if !ok {
			continue // an earlier good value stays
		}
		w.shown[e.name] = shownFile{key: e.key, info: e.info, value: value}
		if isShown && bytes.Equal(known.value, value) {
			continue
		}
		if !w.send(ctx, Event{Kind: Put, Key: e.key, Value: bytes.Clone(value)}) {
			return false
		}
	}
	for name := range w.refused {
		if !slices.ContainsFunc(entries, func(e entry) bool { return e.name == name }) {
			delete(w.refused, name)
		}
	}
	return w.sendRemoved(ctx, present)
}

func (w *fileWatch) sendRemoved(ctx context.Context, present map[string]struct{}) bool {
	var gone []string
	for name := range w.shown {
		if _, still := present[name]; !still {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	for _, name := range gone {
		key := w.shown[name].key
		delete(w.shown, name)
		if !w.send(ctx, Event{Kind: Removed, Key: key}) {
			return false
		}
	}
	return true
}

// read gives the file's value if it is a record.
func (w *fileWatch) read(e entry) (value []byte, ok bool) {
	value, err := w.folder.read(e.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if err == nil && !IsObject(value) {
		err = fmt.Errorf("%w: not a JSON object", ErrRecord)
	}
	if err == nil {
		delete(w.refused, e.name)
		return value, true
	}
	if _, told := w.refused[e.name]; !told {
		w.log.Warn("ignoring an unreadable discovery record", "file", e.name, "error", err)
	}
	w.refused[e.name] = struct{}{}
	return nil, false
}

func (w *fileWatch) send(ctx context.Context, e Event) bool {
	select {
	case w.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
