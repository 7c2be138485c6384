package vllm

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// sinkhole takes everything and answers nothing.
type sinkhole struct{ net.Conn }

func (sinkhole) Write(p []byte) (int, error) { return len(p), nil }

// A question that left late excuses the silence after it; taking it back at the end of the check does not.
func TestEarHearsWhenTheQuestionLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			at   time.Duration // of the write, after the check's begin
			want bool
		}{{0, false}, {checkTimeout - answerTime, false}, {checkTimeout - answerTime + 1, true}, {checkTimeout - 1, true}, {checkTimeout, false}} {
			var e ear
			conn := e.wrap(sinkhole{})
			e.attend()
			time.Sleep(test.at)
			if _, err := conn.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(checkTimeout - test.at)
			if got := e.excuses(); got != test.want {
				t.Errorf("question after %v: excused %v", test.at, got)
			}
		}
	})
}
