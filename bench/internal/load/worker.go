package load

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
)

// Worker is where requests go.
type Worker struct {
	Address string // host:port
	Path    string // the endpoint's
	Codec   protocol.Codec
}

// ErrNoWorker means that no instance is registered (yet).
var ErrNoWorker = errors.New("no instance is registered")

// FindWorker reads the one instance record of a discovery folder.
func FindWorker(folder string) (Worker, error) {
	var found []string
	root := filepath.Join(folder, string(discovery.Instances))
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") {
			found = append(found, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Worker{}, fmt.Errorf("discovery folder: %w", err)
	}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			return Worker{}, fmt.Errorf("instance record: %w", err)
		}
		record, err := discovery.DecodeInstance(text)
		if err != nil {
			return Worker{}, err
		}
		if record.Endpoint != "generate" {
			continue
		}
		address, path, ok := strings.Cut(record.Transport.TCP, "/")
		if !ok {
			return Worker{}, fmt.Errorf("instance record: transport %q", record.Transport.TCP)
		}
		w := Worker{Address: address, Path: path}
		if record.RequestPlaneCodec == discovery.CodecMsgPack {
			w.Codec = protocol.MsgPack
		}
		return w, nil
	}
	return Worker{}, ErrNoWorker
}
