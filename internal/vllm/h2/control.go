package h2

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// reply lets the frame that was just appended go out, unless the peer lets too many of them pile up. Called with mu held.
func (c *conn) reply() error {
	c.signal()
	if len(c.out) > maxOwed {
		return errOwed
	}
	return nil
}

func (c *conn) onPing(f *http2.PingFrame) error {
	if f.IsAck() {
		return nil // that it was heard is all that counts
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(c.frames.WritePing(true, f.Data))
	return c.reply()
}

func (c *conn) onSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	limit, limited, err := c.apply(f)
	if err != nil {
		return err
	}
	if limited {
		c.pool.setLimit(c, limit)
	}
	if !c.settled {
		c.settled = true
		close(c.usable)
	}
	return nil
}

// apply takes the peer's settings over and acknowledges them.
func (c *conn) apply(f *http2.SettingsFrame) (limit uint32, limited bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err = f.ForeachSetting(func(s http2.Setting) error {
		if invalid := s.Valid(); invalid != nil {
			return invalid
		}
		switch s.ID {
		case http2.SettingMaxConcurrentStreams:
			limit, limited = s.Val, true
		case http2.SettingMaxFrameSize:
			c.frameSize = int(min(s.Val, batch)) // more at once helps nobody
		case http2.SettingInitialWindowSize:
			return c.resize(int64(s.Val))
		case http2.SettingHeaderTableSize:
			c.fields.SetMaxDynamicTableSizeLimit(min(s.Val, 4096))
		case http2.SettingEnablePush, http2.SettingMaxHeaderListSize, http2.SettingEnableConnectProtocol, http2.SettingNoRFC7540Priorities:
		}
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	c.note(c.frames.WriteSettingsAck())
	return limit, limited, c.reply()
}

// resize changes what all streams may send, which may leave them with less than nothing. Called with mu held.
func (c *conn) resize(window int64) error {
	change := window - c.newWindow
	c.newWindow = window
	for _, s := range c.streams {
		s.sendWindow += change
		if s.sendWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.enqueue(s)
	}
	return nil
}

func (c *conn) onWindowUpdate(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sendWindow += int64(f.Increment)
		if c.sendWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		if len(c.sending) > 0 {
			c.signal()
		}
		return nil
	}
	s, err := c.stream(f.StreamID)
	if s == nil || err != nil {
		return err
	}
	c.mu.Lock()
	s.sendWindow += int64(f.Increment)
	over := s.sendWindow > maxWindow
	c.enqueue(s)
	c.signal()
	c.mu.Unlock()
	if over {
		c.giveUp(s, http2.ErrCodeFlowControl, End{Code: codes.Internal, Message: "the engine gave the stream more window than there is"})
	}
	return nil
}

var errGoAway = errors.New("the engine told the connection to go away")

// onGoAway: streams that the peer has taken run on; the others start again elsewhere. A peer that shuts down in good order
// sends one that takes all, and later one with the last stream that it took.
func (c *conn) onGoAway(f *http2.GoAwayFrame) error {
	c.mu.Lock()
	if f.LastStreamID > c.lastGoAway || (f.LastStreamID%2 == 0 && f.LastStreamID != 0) {
		c.mu.Unlock()
		return fmt.Errorf("GOAWAY after stream %d: %w", f.LastStreamID, http2.ConnectionError(http2.ErrCodeProtocol))
	}
	c.lastGoAway = min(f.LastStreamID, math.MaxInt32)
	c.draining = true
	var rejected []*Stream
	for id, s := range c.streams {
		if id > f.LastStreamID {
			c.detach(s)
			rejected = append(rejected, s)
		}
	}
	drained := len(c.streams) == 0
	c.mu.Unlock()
	cause := fmt.Errorf("%w (%v)", errGoAway, f.ErrCode)
	c.pool.retire(c, cause)
	for _, s := range rejected {
		c.pool.retry(s, End{
			Code: codes.Unavailable, Message: "the stream is rejected because server is draining the connection", Transport: true, NotSent: true,
		})
	}
	if drained {
		return errDrained
	}
	return nil
}
