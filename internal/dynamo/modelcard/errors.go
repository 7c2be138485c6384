package modelcard

import "errors"

// The kinds of failure that callers tell apart.
var (
	// ErrNotFound: the model's folder is not on this machine.
	ErrNotFound = errors.New("model not found")
	// ErrFolder: the folder is there, but a file in it is missing or unreadable.
	ErrFolder = errors.New("model folder is not usable")
	// ErrConfig: the command line or the engine asks for a card that cannot be.
	ErrConfig = errors.New("invalid model card settings")
)
