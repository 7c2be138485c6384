package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// CheckBucket is what every operation of every store checks first.
func CheckBucket(ctx context.Context, bucket Bucket) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("discovery: %w", err)
	}
	if !bucket.valid() {
		return fmt.Errorf("%w: unknown bucket %q", ErrKey, bucket)
	}
	return nil
}

// CheckRecord is what every store checks before it writes: it refuses what a reader could not read.
func CheckRecord(ctx context.Context, bucket Bucket, key string, value []byte) error {
	if err := CheckBucket(ctx, bucket); err != nil {
		return err
	}
	if key == "" {
		return fmt.Errorf("%w: empty key in %s", ErrKey, bucket)
	}
	if !IsObject(value) {
		return fmt.Errorf("%w: value of %s/%s is not a JSON object", ErrRecord, bucket, key)
	}
	return nil
}

// IsObject reports whether value is one complete JSON object.
func IsObject(value []byte) bool {
	trimmed := bytes.TrimLeft(value, " \t\r\n")
	return len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(value)
}
