package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"remora/cmd/remora/internal/flags"
)

// maxSeconds is the longest time that a time.Duration holds, in whole seconds.
const maxSeconds = uint64(math.MaxInt64 / int64(time.Second))

// seconds takes a number of seconds, decimals allowed, above or equal to least.
func seconds(dst *time.Duration, least time.Duration) flags.Value {
	return flags.Func(func(text string) error {
		d, err := parseSeconds(text)
		if err == nil && d < least {
			err = fmt.Errorf("it must be at least %v", least)
		}
		if err != nil {
			return err
		}
		*dst = d
		return nil
	})
}

// grace takes a number of seconds; a negative one means none.
func grace(dst *time.Duration) flags.Value {
	return flags.Func(func(text string) error {
		d, err := parseSeconds(text)
		if err != nil {
			return err
		}
		*dst = max(d, 0)
		return nil
	})
}

func parseSeconds(text string) (time.Duration, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || strings.ContainsAny(text, "xX_") {
		return 0, errors.New("not a number of seconds")
	}
	if math.Abs(n) >= float64(maxSeconds) {
		return 0, errors.New("the time is too long")
	}
	return time.Duration(n * float64(time.Second)), nil
}

// duration takes a time as Go writes it: 5ms, 1.5s. It must be positive: the simulator takes zero for "not said".
func duration(dst *time.Duration) flags.Value {
	return flags.Func(func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("not a time with a unit, such as 5ms or 1.5s")
		}
		if d <= 0 {
			return errors.New("it must be positive")
		}
		*dst = d
		return nil
	})
}

// port takes a TCP port; 0 lets the system choose.
func port(dst *uint16) flags.Value { return flags.Number(dst, 0, math.MaxUint16) }

// address takes an IP address, IPv6 with or without brackets, or the name of a network interface, which stands for its address.
func address(dst *netip.Addr) flags.Value {
	return flags.Func(func(text string) error {
		bare := text
		if inner, ok := strings.CutPrefix(text, "["); ok {
			bare = strings.TrimSuffix(inner, "]")
		}
		a, err := netip.ParseAddr(bare)
		if err != nil {
			if a = interfaceAddress(text); !a.IsValid() {
				return errors.New("neither an IP address nor a network interface that has one; a host name will not do, because frontends take addresses only")
			}
		}
		*dst = a
		return nil
	})
}

// host takes a name or an address to listen on, IPv6 with or without brackets. Nothing would mean every address there is, which
// a variable that is not set must not bring about.
func host(dst *string) flags.Value {
	return flags.Func(func(text string) error {
		if inner, ok := strings.CutPrefix(text, "["); ok {
			text = strings.TrimSuffix(inner, "]")
		}
		if text == "" {
			return errors.New("it is empty; 0.0.0.0 or :: is every address")
		}
		*dst = text
		return nil
	})
}

// interfaceAddress is the address of a network interface, IPv4 first; invalid if there is none of that name or it has none.
func interfaceAddress(name string) (found netip.Addr) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}
	}
	all, err := i.Addrs()
	if err != nil {
		return netip.Addr{}
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		switch {
		case err != nil || p.Addr().IsLinkLocalUnicast():
		case p.Addr().Is4():
			return p.Addr()
		case !found.IsValid():
			found = p.Addr()
		}
	}
	return found
}

// path takes the path of a URL.
func path(dst *string) flags.Value {
	return flags.Func(func(text string) error {
		if !strings.HasPrefix(text, "/") || strings.ContainsAny(text, "?#{} \t") {
			return errors.New("not a path; it must begin with a slash and have no blank, brace, query or fragment")
		}
		*dst = text
		return nil
	})
}
