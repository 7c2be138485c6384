package tinymodel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// obj is a JSON object; encoding/json writes its keys in order, so the same folder comes out every time.
type obj = map[string]any

// Write puts the model folder's files into dir, which it makes where missing. Each file appears whole or not at all,
// config.json last: a folder that has it is complete. Files that are already right are left alone, so that Write may be
// called again, also by several processes at once.
func Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("tinymodel: make the folder: %w", err)
	}
	for _, f := range []struct {
		name    string
		content obj
	}{
		{"tokenizer.json", tokenizerJSON()},
		{"tokenizer_config.json", tokenizerConfigJSON()},
		{"generation_config.json", obj{"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}},
		{"config.json", configJSON()},
	} {
		if err := writeFile(filepath.Join(dir, f.name), f.content); err != nil {
			return fmt.Errorf("tinymodel: write %s: %w", f.name, err)
		}
	}
	return nil
}

func writeFile(path string, content obj) (err error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // the specials keep their angle brackets
	enc.SetIndent("", " ")
	if err = enc.Encode(content); err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if old, readErr := os.ReadFile(path); readErr == nil && bytes.Equal(old, text.Bytes()) {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	_, err = tmp.Write(text.Bytes())
	if err == nil {
		err = tmp.Chmod(0o644)
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // the first error counts
		return fmt.Errorf("replace: %w", err)
	}
	return nil
}

func tokenizerJSON() obj {
	v := vocabulary()
	ids := make(map[string]int, firstSpecial)
	for id, token := range &v.tokens {
		ids[printable(token)] = id
	}
	merges := make([]string, 0, len(v.merges))
	for _, m := range &v.merges {
		merges = append(merges, printable(v.tokens[m.left])+" "+printable(v.tokens[m.right]))
	}
	added := make([]obj, 0, VocabSize-firstSpecial)
	for i, text := range specialTexts() {
		added = append(added, obj{
			"id": firstSpecial + i, "content": text, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
	}
	return obj{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil, "post_processor": nil,
		"added_tokens": added,
		"pre_tokenizer": obj{"type": "Sequence", "pretokenizers": []obj{
			{"type": "Split", "pattern": obj{"Regex": splitPattern}, "behavior": "Isolated", "invert": false},
			{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		}},
		"decoder": obj{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		"model": obj{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": ids, "merges": merges,
		},
	}
}

func tokenizerConfigJSON() obj {
	return obj{
		"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MaxContext,
		"clean_up_tokenization_spaces": false, "chat_template": chatTemplate,
		"bos_token": SpecialText(BOS), "eos_token": SpecialText(EOS), "pad_token": SpecialText(PAD),
	}
}

// configJSON describes a model that nobody runs: only the vocabulary, the context and the token ids matter. The sizes are
// those of a Llama small enough to be believed.
func configJSON() obj {
	return obj{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "torch_dtype": "float32",
		"vocab_size": VocabSize, "max_position_embeddings": MaxContext,
		"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD,
		"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
		"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
		"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
		"tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
	}
}

// printable spells bytes in the alphabet of byte-level BPE files: bytes that are visible in Latin-1 stand for themselves, the
// others for the code points from 256 on, in order.
func printable(token []byte) string {
	text := make([]rune, 0, len(token))
	for _, b := range token {
		if isVisible(b) {
			text = append(text, rune(b))
			continue
		}
		r := rune(256)
		for c := range b {
			if !isVisible(c) {
				r++
			}
		}
		text = append(text, r)
	}
	return string(text)
}

func isVisible(b byte) bool {
	return b >= 0x21 && b <= 0x7e || b >= 0xa1 && b != 0xad
}
