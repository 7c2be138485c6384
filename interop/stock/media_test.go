package stock

import (
	"strings"
	"testing"

	"remora/interop/harness"
)

func words(text string) harness.Part { return harness.Part{Type: "text", Text: text} }

func picture(url string) harness.Part {
	return harness.Part{Type: "image_url", ImageURL: &harness.PartURL{URL: url}}
}

func named(p harness.Part, uuid string) harness.Part {
	p.UUID = uuid
	return p
}

func movie(url string) harness.Part {
	return harness.Part{Type: "video_url", VideoURL: &harness.PartURL{URL: url}}
}

// show is a chat about what is shown.
func show(parts ...harness.Part) harness.Request {
	return harness.Request{Model: model, MaxTokens: 16, Messages: []harness.Message{{Role: "user", Content: parts}}}
}

// The two smallest images that differ, as data.
const (
	dot  = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw=="
	dash = "data:image/gif;base64,R0lGODlhAgABAIAAAAAAAP///ywAAAAAAgABAAACAoRRADs="
)

// shows are chats of which each is another one to the model.
var shows = []struct {
	name  string
	ask   harness.Request
	items int // of media
}{
	{"no image", show(words("What is this?")), 0},
	{"an image in the request", show(words("What is this?"), picture(dot)), 1},
	{"another image", show(words("What is this?"), picture(dash)), 1},
	{"an image with a name", show(words("What is this?"), named(picture(dot), "a-dot")), 1},
	// Without a name the frontend would look at it itself, and refuse an address like this one.
	{"an image by URL", show(words("What is this?"), named(picture("http://127.0.0.1:1/dot.gif"), "another-dot")), 1},
	{"two images", show(picture(dot), words("or"), picture(dash)), 2},
	{"the other way round", show(picture(dash), words("or"), picture(dot)), 2},
	{"a film", show(words("What is this?"), movie("http://127.0.0.1:1/dot.mp4")), 1},
	{"a film and an image", show(movie("http://127.0.0.1:1/dot.mp4"), words("or"), picture(dot)), 2},
}

// TestMediaThroughTheStockFrontend: an image that a client sends changes the text, in aggregated serving and in every kind of
// pair, where both engines must have prepared the same: the texts are those of one engine behind the Rust sidecar.
func TestMediaThroughTheStockFrontend(t *testing.T) {
	texts := make([]string, len(shows))
	t.Run("one engine behind Rust", func(t *testing.T) {
		d := aggregated(t, harness.Rust, "--multimodal")
		said := map[string]string{}
		for i, s := range shows {
			a := good(t, d.Frontend, s.ask)
			if other, again := said[a.Text]; again {
				t.Errorf("%s says what %s says: %q", s.name, other, a.Text)
			}
			texts[i], said[a.Text] = a.Text, s.name
		}
	})
	if t.Failed() {
		return
	}
	t.Run("one engine behind Remora", func(t *testing.T) {
		d := aggregated(t, harness.Remora, "--multimodal")
		wantShows(t, d, texts)
		again := good(t, d.Frontend, shows[1].ask)
		if again.Text != texts[1] || again.Usage.PromptDetails.Cached < 32 {
			t.Errorf("the same image again: %q with %d cached tokens, want %q", again.Text, again.Usage.PromptDetails.Cached, texts[1])
		}
		wantRefused(t, d)
	})
	for _, k := range kinds[1:] {
		t.Run(k.name, func(t *testing.T) {
			d := pair(t, k.prefill, k.decode, "--multimodal")
			pulled := d.sims[1].Metrics(t)[harness.KVPulled]
			wantShows(t, d, texts)
			if now := d.sims[1].Metrics(t)[harness.KVPulled]; now < pulled+32*float64(len(shows)) {
				t.Errorf("the decode engine pulled %v tokens for %d prompts", now-pulled, len(shows))
			}
			if k.decode == harness.Remora {
				if n := d.sidecars[1].Status.Metrics(t)["remora_handoffs_refused_total"]; n != 0 {
					t.Errorf("%v hand-offs were refused", n)
				}
			}
			harness.WaitSettled(t, d.engines, d.sidecars...)
		})
	}
}

// wantShows asks everything and wants the texts, and prompts that count the media.
func wantShows(t *testing.T, d *deployment, texts []string) {
	t.Helper()
	for i, s := range shows {
		a := good(t, d.Frontend, s.ask)
		if a.Text != texts[i] {
			t.Errorf("%s: %q, want %q", s.name, a.Text, texts[i])
		}
		if a.Usage.Prompt < 32*s.items || a.Usage.Prompt > 32*s.items+60 {
			t.Errorf("%s: a prompt of %d tokens", s.name, a.Usage.Prompt)
		}
	}
}

// wantRefused: what an engine cannot prepare is the client's mistake, told in the engine's words; the worker serves on.
func wantRefused(t *testing.T, d *deployment) {
	t.Helper()
	bad := d.Ask(t, show(words("What is this?"), picture("data:no-comma")))
	if bad.Status != 400 || !strings.Contains(bad.Body, "media[0] has no data URI") {
		t.Errorf("media that are none: status %d: %s", bad.Status, bad.Body)
	}
	unsafe := d.Ask(t, show(words("What is this?"), named(picture(dot), "../etc")))
	if unsafe.Status != 400 || !strings.Contains(unsafe.Body, "multi_modal_uuids.image_url[0]") {
		t.Errorf("a name with a slash: status %d: %s", unsafe.Status, unsafe.Body)
	}
	good(t, d.Frontend, shows[0].ask)
}

// TestMediaOnATextModel: the client is told why, and the worker stays.
func TestMediaOnATextModel(t *testing.T) {
	d := aggregated(t, harness.Remora)
	if a := d.Ask(t, shows[1].ask); a.Status != 400 || !strings.Contains(a.Body, "takes text only") {
		t.Errorf("status %d: %s", a.Status, a.Body)
	}
	good(t, d.Frontend, prompt("and text?"))
}
