"""Writes golden.json: what the Hugging Face library makes of the model folder.

    remora sim --write-model DIR
    python golden.py DIR > golden.json        # needs transformers and jinja2

Seeded: the same library and folder give the same file.
"""
import json
import random
import sys

from tokenizers import Tokenizer
from transformers import AutoTokenizer

SPECIALS = ["<|bos|>", "<|eos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"]
FIXED = [
    "", " ", "  ", "   ", "\n", "\r\n\t ", "a", " a", "  a", "Hello, world!", "What is the time? I do not know.",
    "the quick brown fox\njumps over\n\n\nthe lazy dog", "It's 2026-01-31, 12:00:59 (UTC+1)...", "1234567890123",
    "日本語のテキスト", "中文字符，没有空格。", "한국어 문장", "Привет, мир", "שלום עולם", "مرحبا بالعالم", "नमस्ते",
    "😀", "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "e\u0301 vs \u00e9", "\u00a0nbsp\u00a0", "\u2003em\u3000space", "\u2028line\u2029par",
    "\u0085nel\u000bvt\u000cff", "\x00\x01\x7f", "\ufeffbom", "\ufffd", "\U0010ffff", "ſKK", "ŉ ½ ² ٣ Ⅷ",
    "a" * 31, "a" * 32, "a" * 33, "a" * 100, " " + "a" * 32, " " + "a" * 33, " " * 31, " " * 33, "the " * 40, "." * 70,
    "é" * 33, "😀" * 33, "\n" * 65, "9" * 10, "()" * 40, "<|", "|>", "<|end|", "<|end|>", "<<|end|>>", "<|<|end|>|>",
    " <|end|> ", "<|user|>Hi<|end|><|assistant|>", "<|unknown|>", "<|USER|>", "<| user |>", "x<|bos|>y<|eos|>z<|pad|>",
    "<|tool|><|system|>", "the<|end|>the", " the<|end|> the", "\"quoted\" 'single' `back`", "if (a == b) { return c; }",
    "https://example.org/path?x=1&y=2#z", "C:\\temp\\file.txt", "{\"json\": [1, 2.5e-3, null]}", "thethethe", "THE The tHe",
]
PIECES = [
    " the", " you", "and", "tion", "ing", " ", "  ", "\n", "\t", "\r\n", "7", "42", "2026", ".", ", ", "...", "--", "//",
    "é", "ß", "Ж", "日", "本", "한", "😀", "👍🏽", "\u200d", "\u0301", "\u00a0", "\x00", "<|", "|>", "Hello", "zq", "QX",
] + SPECIALS


def texts(rng):
    yield from FIXED
    for _ in range(220):
        yield "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 24)))
    for _ in range(60):
        yield "".join(chr(rng.choice([rng.randint(0, 127), rng.randint(0, 0xD7FF), rng.randint(0xE000, 0x10FFFF)]))
                      for _ in range(rng.randint(1, 40)))


def id_lists(rng):
    yield from ([], [0xE2], [0xE2, 0x82], [0xE2, 0x82, 0xAC], [0xE2, 0x82, 0x61], [0xF0, 0x9F, 0x98], [0xF0, 0x9F, 0x98, 0x80],
                [0xC0, 0x80], [0xED, 0xA0, 0x80], [0xF4, 0x90, 0x80, 0x80], [0xFF, 0xFE], [0x80, 0x80], [0xE2, 504, 0x82, 0xAC])
    for _ in range(120):
        yield [rng.choice([rng.randint(0, 127), rng.randint(128, 255), rng.randint(0xE0, 0xF4), rng.randint(256, 511)])
               for _ in range(rng.randint(1, 24))]


CHATS = [
    [("user", "Hello")],
    [("system", "Be brief."), ("user", "What is 1+1?"), ("assistant", "2"), ("user", " why?\n")],
    [("developer", "d"), ("user", ""), ("assistant", ""), ("tool", "{\"t\": 20}")],
    [("user", "<b>&amp; 'quoted' \"too\"</b> {{ not a template }} <|end|> 😀")],
]


def main():
    folder, rng = sys.argv[1], random.Random(512)
    plain, full = Tokenizer.from_file(folder + "/tokenizer.json"), AutoTokenizer.from_pretrained(folder)
    assert plain.get_vocab_size() == 512 and len(full) == 512
    encode = []
    for t in texts(rng):
        ids = plain.encode(t).ids
        assert ids == full(t)["input_ids"], t
        encode.append({"text": t, "ids": ids})
    decode = [{"ids": i, "text": plain.decode(i, skip_special_tokens=True)} for i in id_lists(rng)]
    chat = []
    for turns in CHATS:
        messages = [{"role": r, "content": c} for r, c in turns]
        for add in (False, True):
            text = full.apply_chat_template(messages, tokenize=False, add_generation_prompt=add)
            chat.append({"messages": messages, "add": add, "text": text})
    json.dump({"encode": encode, "decode": decode, "chat": chat}, sys.stdout, indent=None, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
