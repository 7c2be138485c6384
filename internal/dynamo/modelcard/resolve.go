package modelcard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Resolve finds the folder of a model as the engine names it: a local folder, or an id of the Hugging Face hub that lies in
// the local cache. It never downloads. The folder comes back absolute and with its own links resolved, as the Rust sidecar
// writes it into cards.
func Resolve(modelID string) (dir string, err error) {
	return resolve(modelID, os.Getenv)
}

var (
	hubID    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$`)
	revision = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
)

func resolve(modelID string, getenv func(string) string) (string, error) {
	if strings.TrimSpace(modelID) == "" {
		return "", fmt.Errorf("%w: the engine names no model", ErrNotFound)
	}
	info, err := os.Stat(modelID)
	switch {
	case err == nil && info.IsDir():
		return canonical(modelID)
	case err == nil:
		return "", fmt.Errorf("%w: %s is a file, not a model folder; start the engine with the folder that holds config.json",
			ErrNotFound, modelID)
	case !errors.Is(err, fs.ErrNotExist) && !hubID.MatchString(modelID):
		return "", fmt.Errorf("%w: %w", ErrNotFound, err)
	case !hubID.MatchString(modelID):
		return "", fmt.Errorf("%w: folder %s does not exist here; mount the model under the path that the engine was started with",
			ErrNotFound, modelID)
	}
	cache := cacheFolder(getenv)
	dir, err := cachedSnapshot(cache, modelID)
	if err != nil {
		return "", fmt.Errorf("%w: %q is neither a folder nor in the Hugging Face cache %s (%w); "+
			"download it with \"hf download %s\", point HF_HUB_CACHE to the cache that has it, or start the engine with a local folder",
			ErrNotFound, modelID, cache, err, modelID)
	}
	return canonical(dir)
}

func canonical(dir string) (string, error) {
	absolute, err := filepath.Abs(dir)
	if err == nil {
		absolute, err = filepath.EvalSymlinks(absolute)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return absolute, nil
}

// cacheFolder follows the order of the hub's own tools.
func cacheFolder(getenv func(string) string) string {
	if hub := getenv("HF_HUB_CACHE"); hub != "" {
		return hub
	}
	if home := getenv("HF_HOME"); home != "" {
		return filepath.Join(home, "hub")
	}
	base := getenv("XDG_CACHE_HOME")
	if base == "" {
		base = filepath.Join(getenv("HOME"), ".cache")
	}
	return filepath.Join(base, "huggingface", "hub")
}

// cachedSnapshot finds the snapshot that the branch main points to; without that branch (the model was fetched by revision)
// the only snapshot there is.
func cachedSnapshot(cache, modelID string) (string, error) {
	repository := filepath.Join(cache, "models--"+strings.ReplaceAll(modelID, "/", "--"))
	snapshots := filepath.Join(repository, "snapshots")
	ref, err := os.ReadFile(filepath.Join(repository, "refs", "main"))
	if err == nil {
		commit := strings.TrimSpace(string(ref))
		if !revision.MatchString(commit) {
			return "", fmt.Errorf("refs/main holds %q, which is no revision", commit)
		}
		return existing(filepath.Join(snapshots, commit))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	entries, err := os.ReadDir(snapshots)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errors.New("no snapshot of it")
	}
	if err != nil {
		return "", err
	}
	if len(entries) != 1 {
		return "", fmt.Errorf("%d snapshots and no refs/main to choose by", len(entries))
	}
	return existing(filepath.Join(snapshots, entries[0].Name()))
}

func existing(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is not a folder", dir)
	}
	return dir, nil
}
