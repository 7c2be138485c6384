package discovery

import "errors"

// The kinds of failure that callers tell apart; all others are wrapped errors of the operating system.
var (
	// ErrExists: the key has a record already; it was left untouched.
	ErrExists = errors.New("record exists already")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("discovery store is closed")
	// ErrLocked: another process held the folder's lock all the time that we were willing to wait.
	ErrLocked = errors.New("discovery folder is locked by another process")
	// ErrFolder: the root of a file store cannot be used.
	ErrFolder = errors.New("discovery folder is not usable")
	// ErrName: a namespace, component or endpoint name breaks the rules.
	ErrName = errors.New("invalid name")
	// ErrKey: text that is not a key of the bucket it came from.
	ErrKey = errors.New("invalid key")
	// ErrRecord: a record that cannot be read, or must not be written.
	ErrRecord = errors.New("invalid discovery record")
)
