package tinyllama

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"remora/internal/tinymodel"
)

// The sizes that the built-in model's config.json promises; TestSizesAgree holds them together.
const (
	layers   = 4
	hidden   = 256
	inner    = 512
	heads    = 4
	kvHeads  = 2
	headSize = 64
)

// Write puts the model folder into dir, made where missing. Files that exist are replaced.
func Write(dir string, seed uint64) error {
	if err := tinymodel.Write(dir); err != nil {
		return fmt.Errorf("tinyllama: %w", err)
	}
	path := filepath.Join(dir, "model.safetensors")
	tmp, err := os.CreateTemp(dir, ".weights-*")
	if err != nil {
		return fmt.Errorf("tinyllama: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // fails once it is renamed, which is the good case
	out := bufio.NewWriterSize(tmp, 1<<20)
	err = writeSafetensors(out, tensors(seed))
	if err == nil {
		err = out.Flush()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("tinyllama: write %s: %w", path, err)
	}
	return nil
}

// tensor is a named array of float32, row by row.
type tensor struct {
	name  string
	shape []int
	data  []float32
}

// tensors draws all weights. Gains are relative to 1/sqrt(columns), which keeps the size of a vector that passes through.
func tensors(seed uint64) []tensor {
	rng := rand.New(rand.NewPCG(seed, 0))
	normal := func(n int, scale float64) []float32 {
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(rng.NormFloat64() * scale)
		}
		return data
	}
	var all []tensor
	matrix := func(name string, rows, cols int, gain float64) {
		all = append(all, tensor{name, []int{rows, cols}, normal(rows*cols, gain/math.Sqrt(float64(cols)))})
	}
	ones := func(name string) {
		data := make([]float32, hidden)
		for i := range data {
			data[i] = 1
		}
		all = append(all, tensor{name, []int{hidden}, data})
	}

	all = append(all, tensor{"model.embed_tokens.weight", []int{tinymodel.VocabSize, hidden}, normal(tinymodel.VocabSize*hidden, 1)})
	for n := range layers {
		p := fmt.Sprintf("model.layers.%d.", n)
		ones(p + "input_layernorm.weight")
		ones(p + "post_attention_layernorm.weight")
		matrix(p+"self_attn.q_proj.weight", heads*headSize, hidden, 1.2) // moderate: a soft preference
		matrix(p+"self_attn.k_proj.weight", kvHeads*headSize, hidden, 1.2)
		matrix(p+"self_attn.v_proj.weight", kvHeads*headSize, hidden, 1)
		matrix(p+"self_attn.o_proj.weight", hidden, heads*headSize, 6) // large: the cache speaks louder than the token
		matrix(p+"mlp.gate_proj.weight", inner, hidden, 1.5)
		matrix(p+"mlp.up_proj.weight", inner, hidden, 1.5)
		matrix(p+"mlp.down_proj.weight", hidden, inner, 1.5)
	}
	ones("model.norm.weight")
	head := tensor{"lm_head.weight", []int{tinymodel.VocabSize, hidden}, make([]float32, tinymodel.VocabSize*hidden)}
	for id := range uint32(tinymodel.VocabSize) {
		if isPlain(tinymodel.TokenBytes(id)) {
			copy(head.data[int(id)*hidden:], normal(hidden, 4/math.Sqrt(hidden)))
		}
	}
	return append(all, head)
}

// isPlain reports whether a token is printable ASCII through and through.
func isPlain(token []byte) bool {
	for _, b := range token {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return len(token) > 0
}

// writeSafetensors writes the format of that name: the header's length (64 bit, little endian), a JSON header with the
// place of each tensor, padded with blanks to eight bytes, then the data in the header's order.
func writeSafetensors(w io.Writer, all []tensor) error {
	type place struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	end := 0
	for _, t := range all {
		begin := end
		end += 4 * len(t.data)
		header[t.name] = place{"F32", t.shape, [2]int{begin, end}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		return fmt.Errorf("header: %w", err)
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	if err := binary.Write(w, binary.LittleEndian, uint64(len(text))); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	for _, t := range all {
		if err := binary.Write(w, binary.LittleEndian, t.data); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}
