package discovery

import (
	"testing"
	"testing/synctest"
)

// Changes of one key that a reader did not keep up with cost one event, not many.
func TestMemoryWatchMergesWhatItsReaderMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(Memory).Open()
		defer mustClose(t, s)
		mustCreate(t, s, Instances, "first", `{}`)
		events, err := s.Watch(t.Context(), Instances)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the watch stands with "first" in hand
		for range 100 {
			mustCreate(t, s, Instances, "busy", `{"old":1}`)
			if err = s.Delete(t.Context(), Instances, "busy"); err != nil {
				t.Fatal(err)
			}
		}
		mustCreate(t, s, Instances, "other", `{}`)
		mustCreate(t, s, Instances, "busy", `{"new":1}`)
		expect(t, events, "put first {}", `put busy {"new":1}`, "put other {}")
		synctest.Wait()
		select {
		case e := <-events:
			t.Errorf("more events: %+v", e)
		default:
		}
	})
}

func TestMemoryKeepsNoAliasOfValues(t *testing.T) {
	s := new(Memory).Open()
	defer mustClose(t, s)
	value := []byte(`{"a":1}`)
	if err := s.Create(t.Context(), Instances, "k", value); err != nil {
		t.Fatal(err)
	}
	copy(value, "XXXX")
	for range 2 {
		events, err := s.Watch(t.Context(), Instances)
		if err != nil {
			t.Fatal(err)
		}
		e := <-events
		if string(e.Value) != `{"a":1}` {
			t.Errorf("value %s", e.Value)
		}
		copy(e.Value, "YYYY")
	}
}
