package modelcard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// maxConfigSize bounds the JSON files that are parsed; real ones stay below a few MB.
const maxConfigSize = 64 << 20

// contextLimit is the longest context that the model was built for, 0 if its files do not say. It is part of the card's
// fingerprint where the engine gives no limit, so the order and the strictness are the Rust sidecar's: max_position_embeddings
// of config.json, that of its text_config, model_max_length of tokenizer_config.json; a value of the first two that
// is there but is not an unsigned 32-bit integer is an error, one of the last is passed over (many tokenizers say 10^30 there).
// Other keys (n_positions, max_seq_len, seq_length) are not looked at.
func contextLimit(dir string) (uint32, error) {
	config, err := readObject(filepath.Join(dir, configFile))
	if err != nil {
		return 0, err
	}
	const key = "max_position_embeddings"
	if raw, ok := config[key]; ok {
		return limitOf(raw, key)
	}
	if raw, ok := config["text_config"]; ok && !bytes.Equal(raw, []byte("null")) {
		var text map[string]json.RawMessage
		if err = json.Unmarshal(raw, &text); err != nil {
			return 0, fmt.Errorf("%w: %s: text_config is not an object", ErrFolder, configFile)
		}
		if raw, ok = text[key]; ok {
			return limitOf(raw, "text_config."+key)
		}
	}
	tokenizer, err := readObject(filepath.Join(dir, tokenizerConfigFile))
	if err != nil {
		return 0, nil //nolint:nilerr // a last resort: that it does not say is no error, and the file may be missing
	}
	limit, err := limitOf(tokenizer["model_max_length"], "model_max_length")
	if err != nil {
		return 0, nil //nolint:nilerr // as above
	}
	return limit, nil
}

func limitOf(raw json.RawMessage, key string) (uint32, error) {
	limit, err := strconv.ParseUint(string(raw), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %s is %.40s, not an unsigned 32-bit integer", ErrFolder, configFile, key, raw)
	}
	return uint32(limit), nil
}

// readObject reads a JSON file of the model. Python writes Infinity and NaN for floats, and configs of real models hold
// them, so these read as null.
func readObject(path string) (map[string]json.RawMessage, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing", ErrFolder, path)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	if info.Size() > maxConfigSize {
		return nil, fmt.Errorf("%w: %s has %d bytes, more than the %d that are read", ErrFolder, path, info.Size(), maxConfigSize)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	var object map[string]json.RawMessage
	if err = json.Unmarshal(nonFiniteToNull(text), &object); err != nil {
		return nil, fmt.Errorf("%w: %s is not a JSON object: %w", ErrFolder, path, err)
	}
	return object, nil
}

// nonFiniteToNull replaces the bare words Infinity, -Infinity and NaN outside of strings; valid JSON comes back unchanged.
func nonFiniteToNull(text []byte) []byte {
	var out []byte // nil as long as nothing was replaced
	start := 0
	for i := 0; i < len(text); i++ {
		if text[i] == '"' {
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			continue
		}
		for _, word := range [...]string{"-Infinity", "Infinity", "NaN"} {
			if bytes.HasPrefix(text[i:], []byte(word)) {
				out = append(append(out, text[start:i]...), "null"...)
				start = i + len(word)
				i = start - 1
				break
			}
		}
	}
	if out == nil {
		return text
	}
	return append(out, text[start:]...)
}
