package modelcard

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func environment(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestResolveLocalFolder(t *testing.T) {
	dir := modelDir(t, plain)
	link := filepath.Join(modelDir(t, nil), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(dir))
	for _, id := range []string{dir, dir + "/", link, filepath.Base(dir), "./" + filepath.Base(dir)} {
		if got, err := Resolve(id); err != nil || got != dir {
			t.Errorf("Resolve(%q) = %q, %v", id, got, err)
		}
	}
}

func TestResolveHubID(t *testing.T) {
	home := modelDir(t, map[string]string{
		"a/models--Org--My.Model/refs/main":                      "abc123\n",
		"a/models--Org--My.Model/snapshots/abc123/config.json":   "{}",
		"a/models--Org--My.Model/snapshots/other/config.json":    "{}",
		"a/models--gpt2/snapshots/only/config.json":              "{}",
		"hf/hub/models--Org--M/refs/main":                        "r1",
		"hf/hub/models--Org--M/snapshots/r1/config.json":         "{}",
		"xdg/huggingface/hub/models--Org--M/refs/main":           "r2",
		"xdg/huggingface/hub/models--Org--M/snapshots/r2/x":      "",
		"h/.cache/huggingface/hub/models--Org--M/refs/main":      "r3",
		"h/.cache/huggingface/hub/models--Org--M/snapshots/r3/x": "",
		"a/models--Org--Gone/refs/main":                          "r9",
		"a/models--Org--Two/snapshots/r1/x":                      "",
		"a/models--Org--Two/snapshots/r2/x":                      "",
		"a/models--Org--Evil/refs/main":                          "../../models--gpt2/snapshots/only",
		"a/models--Org--File/refs/main":                          "r1",
		"a/models--Org--File/snapshots/r1":                       "a file",
	})
	t.Chdir(modelDir(t, nil)) // where no folder is called like a model
	hub := map[string]string{"HF_HUB_CACHE": filepath.Join(home, "a"), "HF_HOME": "/nowhere", "HOME": "/nowhere"}
	for name, c := range map[string]struct {
		id   string
		env  map[string]string
		want string
	}{
		"branch main":   {"Org/My.Model", hub, "a/models--Org--My.Model/snapshots/abc123"},
		"only snapshot": {"gpt2", hub, "a/models--gpt2/snapshots/only"},
		"HF_HOME":       {"Org/M", map[string]string{"HF_HOME": filepath.Join(home, "hf"), "XDG_CACHE_HOME": "/nowhere"}, "hf/hub/models--Org--M/snapshots/r1"},
		"XDG":           {"Org/M", map[string]string{"XDG_CACHE_HOME": filepath.Join(home, "xdg"), "HOME": "/nowhere"}, "xdg/huggingface/hub/models--Org--M/snapshots/r2"},
		"HOME":          {"Org/M", map[string]string{"HOME": filepath.Join(home, "h")}, "h/.cache/huggingface/hub/models--Org--M/snapshots/r3"},
	} {
		if got, err := resolve(c.id, environment(c.env)); err != nil || got != filepath.Join(home, c.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for id, says := range map[string]string{
		"":               "names no model",
		"  ":             "names no model",
		"/models/tiny-1": "does not exist here",
		"./tiny":         "does not exist here",
		"../x":           "does not exist here",
		"a/b/c":          "does not exist here",
		"Org/NotThere":   `hf download Org/NotThere`,
		"Org/Gone":       "r9",
		"Org/Two":        "2 snapshots and no refs/main",
		"Org/Evil":       "no revision",
		"Org/File":       "not a folder",
		"Org/..":         "does not exist here",
		home + "/a/models--Org--My.Model/refs/main":   "is a file",
		home + "/a/models--Org--My.Model/refs/main/x": "not a directory",
	} {
		if got, err := resolve(id, environment(hub)); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %q, %v, want an error that says %s", id, got, err, says)
		}
	}
}
