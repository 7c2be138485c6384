package modelcard

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
)

// The files of a model folder in the Hugging Face layout.
const (
	configFile          = "config.json"
	tokenizerFile       = "tokenizer.json" //nolint:gosec // the name of a file, no credential
	tiktokenFile        = "tiktoken.model"
	tiktokenExtension   = ".tiktoken"
	tokenizerConfigFile = "tokenizer_config.json" //nolint:gosec // as above
	generationFile      = "generation_config.json"
	templateJinjaFile   = "chat_template.jinja"
	templateJSONFile    = "chat_template.json"
)

// checkedFile is a file of the card. The frontend refuses the model when the content does not fit the checksum.
type checkedFile struct {
	Path     string `json:"path"` // local path, or URL once hosted
	Checksum string `json:"checksum"`
	Size     int64  `json:"size"`
}

// check reads the whole file; a missing one is fs.ErrNotExist.
func check(path string) (*checkedFile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	defer func() { _ = file.Close() }()
	hash := blake3.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFolder, path, err)
	}
	return &checkedFile{Path: path, Checksum: "blake3:" + hex.EncodeToString(hash.Sum(nil)), Size: size}, nil
}

// checkOptional gives nil for a file that is not there.
func checkOptional(path string) (*checkedFile, error) {
	file, err := check(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // absent is one of the two good answers
	}
	return file, err
}

// tokenizer finds tokenizer.json, else a tiktoken file; both nil if there is none.
func tokenizer(dir string) (huggingFace, tiktoken *checkedFile, err error) {
	if huggingFace, err = checkOptional(filepath.Join(dir, tokenizerFile)); huggingFace != nil || err != nil {
		return huggingFace, nil, err
	}
	if tiktoken, err = checkOptional(filepath.Join(dir, tiktokenFile)); tiktoken != nil || err != nil {
		return nil, tiktoken, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	var found []string
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == tiktokenExtension {
			found = append(found, entry.Name())
		}
	}
	switch len(found) {
	case 0:
		return nil, nil, nil
	case 1:
		tiktoken, err = check(filepath.Join(dir, found[0]))
		return nil, tiktoken, err
	default:
		return nil, nil, fmt.Errorf("%w: %s has several tiktoken files (%s) and no %s to choose by",
			ErrFolder, dir, strings.Join(found, ", "), tiktokenFile)
	}
}

// weightExtensions are the files that a frontend has no use for. The comparison minds case, as the Rust sidecar's does.
var weightExtensions = []string{".bin", ".safetensors", ".h5", ".msgpack", ".pt", ".pth", ".gguf", ".onnx", ".tflite"}

// extraFiles are the model's other small files (special_tokens_map.json, preprocessor_config.json, ...), which go along when
// the worker hosts the files itself, so that a frontend elsewhere gets a complete folder. They count for the fingerprint.
func extraFiles(dir string, taken []string) ([]*checkedFile, error) {
	entries, err := os.ReadDir(dir) // sorted by name; the frontend sorts as well
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	var extra []*checkedFile
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, ".") || name == "README.md" ||
			slices.Contains(weightExtensions, filepath.Ext(name)) || slices.Contains(taken, name) {
			continue
		}
		path := filepath.Join(dir, name)
		if info, statErr := os.Stat(path); statErr != nil || !info.Mode().IsRegular() { // through links, as in the hub's cache
			continue
		}
		file, checkErr := check(path)
		if checkErr != nil {
			return nil, checkErr
		}
		extra = append(extra, file)
	}
	return extra, nil
}

// HostedFile is a file that the worker must serve over HTTP because its card says so.
type HostedFile struct {
	URLPath string // absolute and unescaped
	Path    string // local
}

// Hosting says that the worker serves the model's files itself, and where.
type Hosting struct {
	BaseURL   string // http://host:port
	Namespace string
	Component string
	Endpoint  string
}

// move turns the file's local path into a URL of the worker. The names are those of the address and the model, in any script.
func (h Hosting) move(slug string, file *checkedFile) HostedFile {
	path, escaped := "/v1/metadata", "/v1/metadata"
	for _, segment := range []string{h.Namespace, h.Component, h.Endpoint, slug, "_base", filepath.Base(file.Path)} {
		path += "/" + segment
		escaped += "/" + url.PathEscape(segment)
	}
	hosted := HostedFile{URLPath: path, Path: file.Path}
	file.Path = strings.TrimSuffix(h.BaseURL, "/") + escaped
	return hosted
}
