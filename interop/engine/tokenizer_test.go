package engine

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"remora/internal/tinymodel"
	"remora/interop/harness"
)

// TestTokenizerIsHuggingFaces makes the built-in model's golden file again with the Hugging Face library, which the engine's
// environment has. What the Go tokenizer is tested against at home must be what that library says today.
func TestTokenizerIsHuggingFaces(t *testing.T) {
	folder := t.TempDir()
	if err := tinymodel.Write(folder); err != nil {
		t.Fatal(err)
	}
	testdata := filepath.Join(harness.Root(t), "internal", "tinymodel", "testdata")
	cmd := exec.CommandContext(t.Context(), filepath.Join(harness.VLLMVenv(t), "bin", "python"), filepath.Join(testdata, "golden.py"), folder)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	got, err := cmd.Output()
	if err != nil {
		t.Fatalf("golden.py: %v\n%s", err, stderr.Bytes())
	}
	want, err := os.ReadFile(filepath.Join(testdata, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the library's answers differ from golden.json: make it again with golden.py and look at the difference")
	}
}
