package kvrelay

import (
	"strconv"
	"strings"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
)

// tierOf is the tier of a medium. The words are those that Dynamo's own relay knows, in their case; no word is the device.
func tierOf(medium string) (tier eventplane.Tier, ok bool) {
	switch medium {
	case "", "GPU", "DEVICE":
		return eventplane.Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1":
		return eventplane.HostPinned, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE":
		return eventplane.Disk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return eventplane.External, true
	default:
		return 0, false
	}
}

// ours reports whether blocks are in this engine's own memory, which is all that a router may count on.
func ours(e *kvevents.Event) bool {
	return !e.Owned && (e.Locality == "" || e.Locality == "LOCAL")
}

// mainAttention reports whether a group of that kind holds whole prefixes. Other kinds, sliding windows and states, hold only a
// part of each, from which nobody can go on.
func mainAttention(kind string) bool {
	switch kind {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	default:
		return false
	}
}

// maxGroups bounds the cache groups that are remembered; models have a handful.
const maxGroups = 1024

// groups remembers of which kind the engine's cache groups are, since removals name only the group's number.
type groups map[int64]bool

// main reports whether an event is about a main attention group. A store tells the kind of its group; where none has been told,
// only the group 0, or none at all, counts.
func (g groups) main(e *kvevents.Event) bool {
	if e.Kind == kvevents.Stored && e.SpecKind != "" {
		main := mainAttention(e.SpecKind)
		if _, known := g[e.Group]; known || len(g) < maxGroups {
			g[e.Group] = main
		}
		return main
	}
	if main, known := g[e.Group]; known && e.Kind == kvevents.Removed {
		return main
	}
	return e.Group == 0
}

// saltPrefix is what a worker of Dynamo puts before a request's cache salt when it hands it to an engine, so that the salt can
// be told from the other extra keys of a block.
const saltPrefix = "dynamo-cache-salt:"

// ownKeys yields a block's extra keys without the adapter's name, which engines list there as well and which may look like
// anything.
func ownKeys(e *kvevents.Event, block int, yield func(key *kvevents.ExtraKey)) {
	if block >= len(e.ExtraKeys) {
		return
	}
	adapter := e.LoRAName != ""
	for i := range e.ExtraKeys[block] {
		key := &e.ExtraKeys[block][i]
		if adapter && !key.HasOffset && key.Text == e.LoRAName {
			adapter = false
			continue
		}
		if !key.Opaque {
			yield(key)
		}
	}
}

// saltOf is the cache salt that a store names: with its first block alone, and only where that begins a prompt.
func saltOf(e *kvevents.Event) (salt string) {
	ownKeys(e, 0, func(key *kvevents.ExtraKey) {
		if text, ok := strings.CutPrefix(key.Text, saltPrefix); ok && !key.HasOffset && salt == "" {
			salt = text
		}
	})
	return salt
}

// mediaOf are the hashes of the images and other media in a block, as routers know them: the first 16 of 64 hexadecimal digits.
func mediaOf(e *kvevents.Event, block int) (mm []uint64) {
	ownKeys(e, block, func(key *kvevents.ExtraKey) {
		if hash, ok := mediaHash(key.Text); ok {
			mm = append(mm, hash)
		}
	})
	return mm
}

func mediaHash(text string) (hash uint64, ok bool) {
	if len(text) != 64 || strings.ContainsFunc(text, notHex) {
		return 0, false
	}
	hash, err := strconv.ParseUint(text[:16], 16, 64)
	return hash, err == nil
}

func notHex(r rune) bool {
	switch {
	case '0' <= r && r <= '9', 'a' <= r && r <= 'f', 'A' <= r && r <= 'F':
		return false
	default:
		return true
	}
}
