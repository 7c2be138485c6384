package discovery

import "time"

const (
	// recordTTL is how long peers believe in a record that nobody touches.
	recordTTL = 10 * time.Second
	// touchInterval is how often an owner says that it lives; three times within the TTL.
	touchInterval = 3 * time.Second
	// doubtTime is how long we look at an old file before we believe that its owner is dead: longer than the slowest
	// owner's interval (a Rust worker touches every 3.3 s).
	doubtTime = 4 * time.Second
	// pauseLimit is the gap between two looks above which we must have been stopped or starved.
	pauseLimit = 2 * touchInterval
)

// vitality is what we think of a record's owner.
type vitality uint8

const (
	alive    vitality = iota
	doubtful          // old by its own time, but we have not looked long enough to say so
	expired
)

// ages remembers when each file's time last changed before our eyes. The zero ages is ready.
//
// A file's time alone cannot be trusted: the wall clock may have been stepped since the owner wrote it, and after a pause
// of the whole machine every record looks dead although every owner is about to touch its own. So a file is expired when
// its time is older than the TTL and stood still for doubtTime on our monotonic clock, or, whatever it says (it may lie in the
// future), stood still for a whole TTL. Time in which we ourselves did not look does not count.
type ages struct {
	files map[string]sighting
	last  time.Time // when we last looked
}

type sighting struct {
	modified time.Time
	since    time.Time // when we first saw modified; carries the monotonic reading
}

// judge fills in the life of each entry, and forgets files that are not among them. now must come from time.Now, for its
// monotonic part. To have an opinion at all it must be called every pauseLimit or more often, as the keeper does.
func (a *ages) judge(entries []entry, now time.Time) {
	before := a.files
	if now.Sub(a.last) > pauseLimit {
		before = nil
	}
	a.last = now
	a.files = make(map[string]sighting, len(entries))
	for i := range entries {
		e := &entries[i]
		modified := e.info.ModTime()
		seen, known := before[e.name]
		if !known || !seen.modified.Equal(modified) {
			seen = sighting{modified: modified, since: now}
		}
		a.files[e.name] = seen
		still := now.Sub(seen.since)
		old := now.Sub(modified) > recordTTL
		switch {
		case old && still > doubtTime, still > recordTTL:
			e.life = expired
		case old:
			e.life = doubtful
		default:
			e.life = alive
		}
	}
}
