package tinyllama

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"remora/internal/tinymodel"
)

func TestSizesAgree(t *testing.T) {
	dir := t.TempDir()
	if err := tinymodel.Write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads,
		"num_key_value_heads": kvHeads, "head_dim": headSize, "vocab_size": tinymodel.VocabSize,
	} {
		if got[name] != want {
			t.Errorf("config.json says %s = %v, the weights have %v", name, got[name], want)
		}
	}
}

func TestWriteIsDeterministicAndWellFormed(t *testing.T) {
	var files [2][]byte
	for i := range files {
		dir := t.TempDir()
		if err := Write(dir, 7); err != nil {
			t.Fatal(err)
		}
		var err error
		if files[i], err = os.ReadFile(filepath.Join(dir, "model.safetensors")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("one seed gave two files")
	}

	size := binary.LittleEndian.Uint64(files[0])
	var header map[string]struct {
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(files[0][8:8+size], &header); err != nil {
		t.Fatal(err)
	}
	end := 0
	for name, place := range header {
		n := 4
		for _, d := range place.Shape {
			n *= d
		}
		if name != "__metadata__" && place.Offsets[1]-place.Offsets[0] != n {
			t.Errorf("%s: shape %v but offsets %v", name, place.Shape, place.Offsets)
		}
		end = max(end, place.Offsets[1])
	}
	if got := len(files[0]) - 8 - int(size); got != end {
		t.Errorf("%d bytes of data, the header says %d", got, end)
	}
}

func TestEveryOutputRowIsPlainText(t *testing.T) {
	all := tensors(7)
	head := all[len(all)-1]
	rows := 0
	for id := range uint32(tinymodel.VocabSize) {
		row := head.data[int(id)*hidden : (int(id)+1)*hidden]
		used := false
		for _, x := range row {
			used = used || x != 0
		}
		if used != isPlain(tinymodel.TokenBytes(id)) {
			t.Errorf("token %d %q: output row used = %v", id, tinymodel.TokenBytes(id), used)
		}
		if used {
			rows++
		}
	}
	if rows < 100 {
		t.Errorf("only %d tokens can be said", rows)
	}
}
