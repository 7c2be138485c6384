package zmq

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestPubSub(t *testing.T) {
	for name, at := range map[string]string{
		"tcp":      "tcp://127.0.0.1:*",
		"ipc":      "ipc://" + filepath.Join(t.TempDir(), "events"),
		"abstract": "ipc://@remora-zmq-test-" + t.Name(),
	} {
		t.Run(name, func(t *testing.T) {
			pub, topics := publisher(t, at, PubConfig{})
			if dropped := pub.Publish([]byte("kv"), []byte("nobody listens")); dropped != 0 {
				t.Errorf("%d dropped", dropped)
			}
			all, some := newListener(), newListener()
			subscribe(t, &Sub{Endpoint: pub.Endpoint()}, all)
			subscribe(t, &Sub{Endpoint: pub.Endpoint(), Topic: "kv"}, some)
			for range 2 {
				await(t, topics, "subscription")
			}
			long := strings.Repeat("x", 1<<20)
			pub.Publish(raws("other", "1")...)
			pub.Publish(raws("kv", "", long)...)
			pub.Publish(raws("kv-more", "2")...)
			wantFrames(t, await(t, all.messages, "message"), "other", "1")
			for _, l := range []*listener{all, some} {
				wantFrames(t, await(t, l.messages, "message"), "kv", "", long)
				wantFrames(t, await(t, l.messages, "message"), "kv-more", "2")
			}
			if pub.Subscribers() != 2 || pub.Dropped() != 0 {
				t.Errorf("%d subscribers, %d dropped", pub.Subscribers(), pub.Dropped())
			}
		})
	}
}

func TestPublisherRestarts(t *testing.T) {
	pub, topics := publisher(t, "tcp://127.0.0.1:*", PubConfig{})
	at := pub.Endpoint()
	l := newListener()
	subscribe(t, &Sub{Endpoint: at}, l)
	for round := range 5 {
		await(t, l.connected, "connection")
		await(t, topics, "subscription")
		pub.Publish([]byte{byte(round)})
		if got := await(t, l.messages, "message"); got[0][0] != byte(round) {
			t.Fatalf("round %d: got %v", round, got)
		}
		pub.Close()
		await(t, l.gone, "disconnection")
		pub, topics = publisher(t, at.String(), PubConfig{})
	}
}

func TestSlowSubscriber(t *testing.T) {
	pub, topics := publisher(t, "tcp://127.0.0.1:*", PubConfig{QueueMessages: 100})
	slow, err := dial(t.Context(), pub.Endpoint(), typeSub, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err = slow.subscribe(""); err != nil {
		t.Fatal(err)
	}
	await(t, topics, "subscription")
	quick := newListener()
	subscribe(t, &Sub{Endpoint: pub.Endpoint()}, quick)
	await(t, topics, "subscription")
	body := make([]byte, 64<<10)
	const rounds = 1000
	for i := range rounds {
		body[0], body[1] = byte(i), byte(i>>8)
		pub.Publish([]byte("t"), body)
		got := await(t, quick.messages, "message") // the slow one holds up nobody
		if n := int(got[1][0]) | int(got[1][1])<<8; n != i {
			t.Fatalf("message %d instead of %d", n, i)
		}
	}
	dropped := pub.Dropped()
	if dropped < rounds/2 {
		t.Errorf("%d messages of 64 KiB dropped for a subscriber that does not read and may have 100 of %d", dropped, rounds)
	}
	// What it does get is the beginning, whole and in order, and nothing is missing but what was counted.
	for i := range rounds - int(dropped) {
		frames, err := slow.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := int(frames[1][0]) | int(frames[1][1])<<8; i < 100 && n != i {
			t.Fatalf("message %d instead of %d", n, i)
		}
	}
}
