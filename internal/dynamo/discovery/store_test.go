package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// backends are what every Store must do alike: each gives a function that opens one more store on the same records.
var backends = map[string]func(root string) func() (Store, error){
	"file": func(root string) func() (Store, error) {
		return func() (Store, error) { return OpenFile(root, nil) }
	},
	"memory": func(string) func() (Store, error) {
		hub := new(Memory)
		return func() (Store, error) { return hub.Open(), nil }
	},
}

// opener binds a backend to a test.
func opener(t *testing.T, backend func(string) func() (Store, error)) (open func() Store) {
	t.Helper()
	openOne := backend(t.TempDir())
	return func() Store {
		t.Helper()
		s, err := openOne()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func mustClose(t *testing.T, s Store) {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func mustCreate(t *testing.T, s Store, b Bucket, key, value string) {
	t.Helper()
	if err := s.Create(t.Context(), b, key, []byte(value)); err != nil {
		t.Fatalf("Create %s: %v", key, err)
	}
}

// next waits for an event; a watch that stays silent is caught by the deadline.
func next(t *testing.T, events <-chan Event) string {
	t.Helper()
	select {
	case e, open := <-events:
		switch {
		case !open:
			return "closed"
		case e.Kind == Removed:
			return "removed " + e.Key
		default:
			return fmt.Sprintf("put %s %s", e.Key, e.Value)
		}
	case <-time.After(20 * time.Second): // a bound on a broken test, never reached otherwise
		t.Fatal("no event")
		return ""
	}
}

func expect(t *testing.T, events <-chan Event, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := next(t, events); got != w {
			t.Fatalf("got event %q, want %q", got, w)
		}
	}
}

func TestCreateIsSeenByOthersUntilItsOwnerCloses(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			open := opener(t, backend)
			owner, reader := open(), open()
			defer mustClose(t, reader)
			mustCreate(t, owner, ModelCards, "n/c/e/1", `{"a":1}`)
			mustCreate(t, owner, ModelCards, "n/c/e/2", `{"b":2}`)
			events, err := reader.Watch(t.Context(), ModelCards)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, events, `put n/c/e/1 {"a":1}`, `put n/c/e/2 {"b":2}`)

			mustCreate(t, owner, ModelCards, "n/c/e/3", `{"c":3}`)
			expect(t, events, `put n/c/e/3 {"c":3}`)
			if err = owner.Delete(t.Context(), ModelCards, "n/c/e/1"); err != nil {
				t.Fatal(err)
			}
			expect(t, events, "removed n/c/e/1")

			mustClose(t, owner)
			gone := []string{next(t, events), next(t, events)}
			slices.Sort(gone)
			if !slices.Equal(gone, []string{"removed n/c/e/2", "removed n/c/e/3"}) {
				t.Error(gone)
			}
		})
	}
}

func TestCreateLeavesAnExistingRecordAlone(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			open := opener(t, backend)
			first, second := open(), open()
			defer mustClose(t, first)
			mustCreate(t, first, Instances, "n/c/e/1", `{"mine":true}`)
			if err := second.Create(t.Context(), Instances, "n/c/e/1", []byte(`{}`)); !errors.Is(err, ErrExists) {
				t.Errorf("second Create: %v", err)
			}
			mustClose(t, second) // does not own it, so does not remove it
			events, err := first.Watch(t.Context(), Instances)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, events, `put n/c/e/1 {"mine":true}`)
		})
	}
}

func TestDeleteOfNothingIsFine(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			open := opener(t, backend)
			s := open()
			defer mustClose(t, s)
			if err := s.Delete(t.Context(), Instances, "n/c/e/1"); err != nil {
				t.Error(err)
			}
			mustCreate(t, s, Instances, "n/c/e/1", `{}`)
			for range 2 {
				if err := s.Delete(t.Context(), Instances, "n/c/e/1"); err != nil {
					t.Error(err)
				}
			}
			mustCreate(t, s, Instances, "n/c/e/1", `{}`) // and again, as a card that changes is published
		})
	}
}

func TestBucketsAreApart(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			open := opener(t, backend)
			s := open()
			defer mustClose(t, s)
			for _, b := range []Bucket{Instances, ModelCards, EventChannels, EventSources} {
				mustCreate(t, s, b, "k", `{"b":"`+string(b)+`"}`)
			}
			for _, b := range []Bucket{Instances, ModelCards, EventChannels, EventSources} {
				events, err := s.Watch(t.Context(), b)
				if err != nil {
					t.Fatal(err)
				}
				expect(t, events, `put k {"b":"`+string(b)+`"}`)
			}
		})
	}
}

func TestBadArguments(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			open := opener(t, backend)
			s := open()
			defer mustClose(t, s)
			for name, c := range map[string]struct {
				bucket     Bucket
				key, value string
				want       error
			}{
				"unknown bucket": {"v1/else", "k", `{}`, ErrKey},
				"climbing":       {"../x", "k", `{}`, ErrKey},
				"empty key":      {Instances, "", `{}`, ErrKey},
				"not JSON":       {Instances, "k", `{`, ErrRecord},
				"two values":     {Instances, "k", `{}{}`, ErrRecord},
				"not an object":  {Instances, "k", `1`, ErrRecord},
				"empty":          {Instances, "k", ``, ErrRecord},
			} {
				if err := s.Create(t.Context(), c.bucket, c.key, []byte(c.value)); !errors.Is(err, c.want) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := s.Delete(t.Context(), "v1/else", "k"); !errors.Is(err, ErrKey) {
				t.Error(err)
			}
			if _, err := s.Watch(t.Context(), "v1/else"); !errors.Is(err, ErrKey) {
				t.Error(err)
			}
		})
	}
}

func TestClosedStore(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			open := opener(t, backend)
			s := open()
			events, err := s.Watch(t.Context(), Instances)
			if err != nil {
				t.Fatal(err)
			}
			var closers sync.WaitGroup
			for range 3 {
				closers.Go(func() { mustClose(t, s) })
			}
			closers.Wait()
			expect(t, events, "closed")
			if err = s.Create(t.Context(), Instances, "k", []byte(`{}`)); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if err = s.Delete(t.Context(), Instances, "k"); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if _, err = s.Watch(t.Context(), Instances); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			open := opener(t, backend)
			s := open()
			defer mustClose(t, s)
			mustCreate(t, s, Instances, "k", `{}`)
			for _, read := range []bool{true, false} { // with and without an event stuck in the channel
				ctx, cancel := context.WithCancel(t.Context())
				events, err := s.Watch(ctx, Instances)
				if err != nil {
					t.Fatal(err)
				}
				if read {
					expect(t, events, "put k {}")
				}
				cancel()
				for {
					if got := next(t, events); got == "closed" {
						break
					}
				}
			}
		})
	}
}

func TestEndedContextIsRefused(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			open := opener(t, backend)
			s := open()
			defer mustClose(t, s)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Create(ctx, Instances, "k", []byte(`{}`)); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if err := s.Delete(ctx, Instances, "k"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if _, err := s.Watch(ctx, Instances); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

// However a slow reader and fast writers interleave, the reader ends with what is there.
func TestWatchConverges(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			open := opener(t, backend)
			reader := open()
			defer mustClose(t, reader)
			events, err := reader.Watch(t.Context(), Instances)
			if err != nil {
				t.Fatal(err)
			}
			var writers sync.WaitGroup
			stores := []Store{open(), open()}
			for w, s := range stores {
				writers.Go(func() {
					for i := range 20 {
						key := fmt.Sprintf("%d/%d", w, i%5)
						_ = s.Create(t.Context(), Instances, key, fmt.Appendf(nil, `{"i":%d}`, i))
						if i < 15 {
							_ = s.Delete(t.Context(), Instances, key)
						}
					}
				})
			}
			writers.Wait()
			mustCreate(t, stores[0], Instances, "last", `{}`)
			have := map[string]string{}
			for len(have) < 11 {
				kind, rest, _ := strings.Cut(next(t, events), " ")
				key, value, _ := strings.Cut(rest, " ")
				if kind == "removed" {
					delete(have, key)
				} else {
					have[key] = value
				}
			}
			for w := range 2 {
				for i := 15; i < 20; i++ {
					if got, want := have[fmt.Sprintf("%d/%d", w, i%5)], fmt.Sprintf(`{"i":%d}`, i); got != want {
						t.Errorf("writer %d, key %d: %s, want %s", w, i%5, got, want)
					}
				}
			}
			for _, s := range stores {
				mustClose(t, s)
			}
			for len(have) > 0 {
				delete(have, strings.TrimPrefix(next(t, events), "removed "))
			}
		})
	}
}
