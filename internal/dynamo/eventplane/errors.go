package eventplane

import "errors"

// ErrQuery marks a recovery query that this publisher has no answer to.
var ErrQuery = errors.New("recovery query")
