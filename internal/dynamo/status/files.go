package status

import (
	"net/http"
	"os"
	"path"
	"time"
)

// filePrefix is where frontends look for model files that a worker hosts itself.
const filePrefix = "/v1/metadata/"

// File is one file to be served.
type File struct {
	URLPath string // below /v1/metadata/, unescaped; only this exact path reaches the file
	Path    string // local; opened anew for each request
}

// SetFiles replaces the set of files served. Files whose URL path lies elsewhere are not served.
func (s *Server) SetFiles(files []File) {
	byPath := make(map[string]File, len(files))
	for _, file := range files {
		byPath[file.URLPath] = file
	}
	s.files.Store(&byPath)
}

func (s *Server) file(urlPath string) (File, bool) {
	files := s.files.Load()
	if files == nil || len(urlPath) <= len(filePrefix) || urlPath[:len(filePrefix)] != filePrefix {
		return File{}, false
	}
	file, ok := (*files)[urlPath]
	return file, ok
}

// serveFile sends no time and no tag: the reader verifies a checksum that came with the card.
func (s *Server) serveFile(w http.ResponseWriter, r *http.Request, file File) {
	f, err := os.Open(file.Path)
	if err != nil {
		s.log.Warn("a model file that the card names cannot be served", "file", file.Path, "error", err)
		writeJSON(w, http.StatusNotFound, map[string]string{"error": "file is gone"})
		return
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		s.log.Warn("a model file that the card names is no file any more", "file", file.Path, "error", err)
		writeJSON(w, http.StatusNotFound, map[string]string{"error": "file is gone"})
		return
	}
	w.Header().Set("Content-Type", contentType(file.Path))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, f)
}

// contentType does not ask the host's MIME tables, which differ.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".json":
		return "application/json"
	case ".txt", ".jinja", ".md":
		return "text/plain; charset=utf-8"
	default:
		return "application/octet-stream"
	}
}
