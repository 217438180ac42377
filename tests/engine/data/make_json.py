#!/usr/bin/env python3
"""Makes hf-*.json and hf-*.ids in this folder with HF tokenizers (see README.md).

    make_json.py

hf-bytes.json is a byte-level BPE with NFC, whole words and tokens of both kinds added; hf-pieces.json is
spm-bytes.gguf as the transformers package converts such vocabularies: its pieces, and every pair of pieces
that makes a third, best first; hf-gemma.ids is of the same with the normalizer and pre_tokenizer of Gemma 3.  NAME.ids has the ids of texts.bin and of the texts below.  hf-pre.json has the
pre_tokenizer of published tokenizer.json files by its name in GGUF files; MiniMax-M2's is gpt-4o with the matches kept
and the gaps between them removed, which are none."""
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../../evals/tokenizer"))
import compare
import texts
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers

MORE = ["e\u0301te\u0301 cafe\u0301 \u1100\u1161\u11a8 \u0344a", "\u212bngstr\u00f6m \u2126 \uf900\u4e2d",
        "<|start|>a<|start|> <tool>b</tool><|end|>", "   <|end|>   x", "aaaa aaaaaaa      aaa"]


def put(name, hf):
    hf.save(os.path.join(here, name + ".json"), pretty=False)
    texts.put_ids(name, (hf.encode(t, add_special_tokens=False).ids for t in [*texts.read(), *MORE]))


def bytes_kind():
    hf = Tokenizer(models.BPE(ignore_merges=True))
    hf.normalizer = normalizers.NFC()
    hf.pre_tokenizer = compare.PRE["llama-bpe"]
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=compare.pre.ByteLevel.alphabet(), show_progress=False)
    hf.train_from_iterator(compare.strings(11, 4000), trainer)
    state = json.loads(hf.to_str())
    del state["model"]["merges"][300]           # a token that only a whole word can be
    hf = Tokenizer.from_str(json.dumps(state))
    hf.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|start|>", "<|end|>", "<|pad|>")])
    hf.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("<tool>", "</tool>")])
    hf.post_processor = processors.TemplateProcessing(single="<|start|> $A", pair="$A $B",
                                                      special_tokens=[("<|start|>", hf.token_to_id("<|start|>"))])
    hf.decoder = decoders.ByteLevel()
    put("hf-bytes", hf)


def pieces_kind():
    meta = compare.read(os.path.join(here, "spm-bytes.gguf"))
    vocab = {t: i for i, t in enumerate(meta["tokens"])}
    merges = []
    for text, i in vocab.items():
        local = [(text[:k], text[k:]) for k in range(1, len(text)) if text[:k] in vocab and text[k:] in vocab]
        if meta["token_type"][i] == 1:
            merges += [(i, vocab[a], vocab[b], a, b) for a, b in local]
    merges = [(a, b) for *_, a, b in sorted(merges)]
    hf = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    hf.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    hf.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    put("hf-pieces", hf)
    # as Gemma's: no space before a text; after the normalizer the pre_tokenizer finds no space to split at
    hf.normalizer = normalizers.Replace(" ", "\u2581")
    hf.pre_tokenizer = compare.pre.Split(" ", "merged_with_previous")
    texts.put_ids("hf-gemma", (hf.encode(t, add_special_tokens=False).ids for t in [*texts.read(), *MORE]))


def pre_tokenizers():
    kept = compare.pre.Sequence([compare.pre.Split(compare.Regex(compare.O200K), "removed", invert=True), compare.BYTES])
    names = ("starcoder", "llama-bpe", "gpt-4o", "qwen2", "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken",
             "kimi-k2", "qwen35", "seed-coder", "bailingmoe")
    out = []
    for name, pre in [(n, compare.PRE[n]) for n in names] + [("gpt-4o", kept)]:
        hf = Tokenizer(models.BPE())
        hf.pre_tokenizer = pre
        state = json.loads(hf.to_str())["pre_tokenizer"]
        for step in state["pretokenizers"]:      # compare.py escapes a quotation mark, published files do not
            if "pattern" in step:
                step["pattern"]["Regex"] = step["pattern"]["Regex"].replace('\\"', '"')
        out.append({"name": name, "pre_tokenizer": state})
    with open(os.path.join(here, "hf-pre.json"), "w", encoding="utf-8", newline="\n") as f:
        json.dump(out, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    bytes_kind()
    pieces_kind()
    pre_tokenizers()
