#!/usr/bin/env python3
"""Compares our tokenizer with HF tokenizers (byte-level BPE) and sentencepiece, on random strings.

    compare.py MANY [--count 100000] [--seed 1] [--folder DIR] FILE.gguf...

MANY is the program made from many.c (make build/release/evals/tokenizer/many).  Each FILE is compared
with a reference tokenizer built from the vocabulary in the file and the published pre-tokeniser that it
names.  For each pre-tokeniser without a FILE, the reference trains a small vocabulary, which is written as
a GGUF file into DIR.  Needs the packages tokenizers, sentencepiece, protobuf and gguf.  The strings are
UTF-8 and use only characters of Unicode 14, the version of PCRE2 10.42.  Prints one CSV line per
vocabulary; differences go to stderr; exit status 1 if there are any."""
import argparse, json, os, random, struct, subprocess, sys, tempfile, unicodedata

import gguf, sentencepiece
from sentencepiece import sentencepiece_model_pb2 as spm_proto
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers as pre, trainers

# ---- the published pre-tokenisers --------------------------------------------------------------

LEVEL = pre.ByteLevel(add_prefix_space=False, use_regex=True)
BYTES = pre.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
# from tokenization_kimi.py
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
          r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SEED = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BAILING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
           r"|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
LATIN = ("A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
         "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
         "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
         "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
         "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
         "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
         "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
         "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
         "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
         "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
         "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
         "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
         "\U000118a0-\U000118df\U0001e900-\U0001e943")


def split(pattern):
    return pre.Split(Regex(pattern), "isolated")


PRE = {
    "gpt-2": LEVEL,
    "starcoder": pre.Sequence([pre.Digits(True), LEVEL]),
    "refact": pre.Sequence([pre.Digits(True), LEVEL]),
    "falcon": pre.Sequence([pre.Punctuation("contiguous"), LEVEL, pre.Digits(False),
                            split("[0-9][0-9][0-9]")]),
    "default": pre.Sequence([split(r"[\p{P}\$\+<=>\^~\|]+"), split(GPT2), split(r"\p{N}+"),
                             split("[0-9][0-9][0-9]"), BYTES]),
    "llama-bpe": pre.Sequence([split(WORDS % "{1,3}"), BYTES]),
    "gpt-4o": pre.Sequence([split(O200K), BYTES]),
    "qwen2": pre.Sequence([split(WORDS % ""), BYTES]),
    "deepseek-llm": pre.Sequence([
        split("[\r\n]"), split(r"\s?[%s]+" % LATIN),
        split(r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
              .encode().decode("raw_unicode_escape")),
        split(r"\s+$"), split(CJK), pre.Digits(True), BYTES]),
    "deepseek-coder": pre.Sequence([split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"),
                                    split(CJK), pre.Digits(True), BYTES]),
    "deepseek-v3": pre.Sequence([split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                                 split(DEEPSEEK3), BYTES]),
    "glm4": pre.Sequence([split(WORDS % "{1,3}"), BYTES]),
    "tekken": pre.Sequence([split(TEKKEN), BYTES]),
    "kimi-k2": pre.Sequence([split(KIMI), BYTES]),
    "qwen35": pre.Sequence([split(QWEN35), BYTES]),
    "seed-coder": pre.Sequence([split(SEED), BYTES]),
    "bailingmoe": pre.Sequence([split(BAILING), BYTES]),
}
WHOLE_WORDS = ("llama-bpe", "tekken", "kimi-k2")    # a word that is in the vocabulary is one token without merges

# ---- random strings ----------------------------------------------------------------------------

SPACES = ("    \t\n\r\x0b\x0c\x85\xa0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029"
          "\u202f\u205f\u3000\ufeff\x1c\x1f")
SCRIPTS = [(0x41, 0x5a), (0x61, 0x7a), (0xc0, 0x24f), (0x250, 0x2af), (0x370, 0x3ff),
           (0x400, 0x4ff), (0x530, 0x58f), (0x590, 0x5ff), (0x600, 0x6ff), (0x900, 0x97f),
           (0xe00, 0xe7f), (0x10a0, 0x10ff), (0x1100, 0x11ff), (0x1780, 0x17ff),
           (0x1e00, 0x1fff), (0x2c00, 0x2dff), (0x3040, 0x30ff), (0x4e00, 0x9fff),
           (0xa640, 0xa7ff), (0xac00, 0xd7ff), (0xfb00, 0xfb4f), (0xff00, 0xffef),
           (0x10400, 0x104ff), (0x1e900, 0x1e95f), (0x20000, 0x2a6df)]
MARKS = [(0x300, 0x36f), (0x483, 0x489), (0x591, 0x5bd), (0x64b, 0x65f), (0x93a, 0x94f),
         (0xe31, 0xe3a), (0x20d0, 0x20f0), (0xfe00, 0xfe0f), (0xe0100, 0xe01ef)]
SIGNS = [(0x21, 0x2f), (0x3a, 0x40), (0x5b, 0x60), (0x7b, 0x7e), (0xa1, 0xbf), (0x2010, 0x205e),
         (0x20a0, 0x20bf), (0x2190, 0x23ff), (0x3000, 0x303f), (0xff01, 0xff20),
         (0x2500, 0x27bf)]
DIGITS = [(0x30, 0x39)] * 6 + [(0xb2, 0xb3), (0xb9, 0xbe), (0x660, 0x669), (0x966, 0x96f),
          (0x2150, 0x218b), (0x2460, 0x249b), (0x3007, 0x3029), (0xff10, 0xff19),
          (0x1d7ce, 0x1d7ff)]
EMOJI = [(0x1f300, 0x1f64f), (0x1f680, 0x1f6c5), (0x1f900, 0x1f9ff), (0x1f1e6, 0x1f1ff),
         (0x200d, 0x200d), (0xfe0f, 0xfe0f), (0x1f3fb, 0x1f3ff)]
TAILS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Re", "'\u017f", "\u2019s", "'"]
TEXT = ("the of and to in a is that for it was on as with are be this by at I'm don't we've "
        "they'll Paris function return int main void struct if (x == 0) { y += 1; } import "
        "numpy as np def f(x): 1234567890 3.14159 2026-11-20 http://example.org/a?b=c#d "
        "<b>bold</b> \u4f60\u597d \u043f\u0440\u0438\u0432\u0435\u0442 caf\u00e9 na\u00efve "
        "stra\u00dfe \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4").split()


# Punctuation added in Unicode 9 and 14. The HF package's own table, which the rule of falcon uses, is of Unicode 8.
TOO_NEW = "\u061d\U0001e95e\U0001e95f"


def drawn(rng, ranges):
    while True:
        c = chr(rng.randint(*rng.choice(ranges)))
        if unicodedata.category(c) not in ("Cn", "Cs", "Co") and c not in TOO_NEW:
            return c


def run(rng, extra):
    kind, n = rng.randrange(11), min(int(rng.expovariate(0.35)) + 1, 24)
    if kind < 2: return " ".join(rng.choices(TEXT, k=n))
    if kind == 2: return "".join(rng.choices(SPACES, k=n))
    if kind == 3: return rng.choice(SPACES) * n
    if kind == 4: return rng.choice(TAILS)
    if kind == 5: return "".join(drawn(rng, SCRIPTS[:8]) + drawn(rng, MARKS) for _ in range(n))
    if kind == 6: return "".join(drawn(rng, DIGITS) for _ in range(n))
    if kind == 7: return "".join(drawn(rng, EMOJI) for _ in range(n))
    if kind == 8: return "".join(drawn(rng, SIGNS) for _ in range(n))
    if kind == 9 and extra and rng.random() < 0.2: return rng.choice(extra)
    one = [rng.choice(SCRIPTS)]
    return "".join(drawn(rng, one) for _ in range(n))


def strings(seed, count, extra=()):
    rng = random.Random(seed)
    return ["".join(run(rng, extra) for _ in range(rng.randint(1, 8))) for _ in range(count)]

# One character of each class that a pattern distinguishes: Chinese letters, marks, numbers and signs (U+3005,
# U+16FF0, U+3007, U+2E80), upper, lower, no and title case, marks, digits, blanks.
KINDS = ("aZ\u01c5\u00e9\u4e2d\u3005\u3007\u3021\u2e80\U00016ff0\u3042\u30ab\u30fc\uac00\u0e01\u02b0\u0301\u0903\u20dd"
         "19\u00b2\u0661 \u00a0\u3000\t\n\r'.,!/$+_-\u3002\u20ac\u2192\u200d\u0000\u001b")


def mixtures(seed, count):
    rng = random.Random(seed)
    return ["".join(rng.choices(KINDS, k=rng.randint(1, 20))) for _ in range(count)]

# ---- vocabularies ------------------------------------------------------------------------------


def read(path):
    """Reads the tokenizer.* values of a GGUF file."""
    fields = gguf.GGUFReader(path).fields
    return {k[len("tokenizer.ggml."):]: f.contents() for k, f in fields.items()
            if k.startswith("tokenizer.ggml.")}


def write(path, model, tokens, types, pre_name=None, merges=None, scores=None, **ids):
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(model)
    if pre_name: w.add_tokenizer_pre(pre_name)
    w.add_token_list(tokens)
    w.add_token_types(types)
    if scores: w.add_token_scores(scores)
    if merges: w.add_token_merges(merges)
    for key, value in ids.items(): w.add_uint32("tokenizer.ggml." + key, value)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.close()


def hf_from(meta):
    """Makes the HF tokenizer of this file's vocabulary; returns it and the texts of the special tokens."""
    types = meta.get("token_type") or [1] * len(meta["tokens"])
    vocab = {t: i for i, t in enumerate(meta["tokens"])}
    bpe = models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in meta["merges"]],
                     ignore_merges=meta["pre"] in WHOLE_WORDS)
    hf = Tokenizer(bpe)
    hf.pre_tokenizer = PRE[meta["pre"]]
    special = [t for t, k in zip(meta["tokens"], types) if k == 3]
    user = [t for t, k in zip(meta["tokens"], types) if k == 4]
    hf.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    hf.add_tokens([AddedToken(t, special=False, normalized=False) for t in user])
    return hf, special + user[:40]


def train_hf(name, path, seed):
    """Trains a vocabulary with the HF package and this pre-tokeniser, on random text."""
    hf = Tokenizer(models.BPE())
    hf.pre_tokenizer = PRE[name]
    trainer = trainers.BpeTrainer(vocab_size=6000, special_tokens=["<|endoftext|>", "<|im_end|>"],
                                  initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False)
    hf.train_from_iterator(strings(seed + 1, 20000), trainer)
    vocab = hf.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    merges = [m if isinstance(m, str) else " ".join(m)
              for m in json.loads(hf.to_str())["model"]["merges"]]
    write(path, "gpt2", tokens, [3, 3] + [1] * (len(tokens) - 2), name, merges,
          bos_token_id=0, eos_token_id=1)


def spm_from(meta):
    """Makes the sentencepiece processor of this file's pieces."""
    proto = spm_proto.ModelProto()
    for text, score, kind in zip(meta["tokens"], meta["scores"], meta["token_type"]):
        proto.pieces.add(piece=text, score=score, type=kind)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = 6 in meta["token_type"]
    proto.trainer_spec.unk_id = meta["token_type"].index(2)
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def train_spm(path, folder, seed, byte_fallback, n_vocab=9000, lines=None):
    prefix = os.path.join(folder, "spm")
    lines = lines or [s.replace("\n", " ") for s in strings(seed + 2, 20000)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=prefix, model_type="bpe", vocab_size=n_vocab,
        character_coverage=0.98, byte_fallback=byte_fallback, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2)
    proto = spm_proto.ModelProto()
    proto.ParseFromString(open(prefix + ".model", "rb").read())
    p = proto.pieces
    write(path, "llama", [x.piece for x in p], [x.type for x in p], scores=[x.score for x in p],
          bos_token_id=1, eos_token_id=2, unknown_token_id=0)

# ---- the comparison ----------------------------------------------------------------------------


def ours(many, path, texts):
    data = b"".join(struct.pack("<I", len(t)) + t for t in (s.encode() for s in texts))
    done = subprocess.run([many, path, "special"], input=data, stdout=subprocess.PIPE, check=True)
    return [line.split("!") for line in done.stdout.decode().split("\n")[:-1]]


def compare(many, path, count, seed):
    meta = read(path)
    bpe = meta["model"] == "gpt2"
    name = meta["pre"] if bpe else "sentencepiece"
    reference, special = hf_from(meta) if bpe else (spm_from(meta), [])
    texts = strings(seed, count - count // 4, special) + mixtures(seed + 3, count // 4)
    if bpe:
        want = [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)]
    else:
        want = [reference.encode(t) for t in texts]
    got = ours(many, path, texts)
    wrong = lost = n_token = 0
    for text, ids, (line, *back) in zip(texts, want, got, strict=True):
        mine = [int(i) for i in line.split()]
        n_token += len(mine)
        lost += bool(back)
        if mine == ids: continue
        wrong += 1
        if wrong <= 3:
            print(f"{path}: {text!r}\n  reference {ids}\n  ours      {mine}", file=sys.stderr)
    size = sum(len(t.encode()) for t in texts)
    print(os.path.basename(path), name, len(meta["tokens"]), count, size, n_token, wrong, lost,
          sep=",", flush=True)
    return wrong


def main():
    p = argparse.ArgumentParser()
    p.add_argument("many"); p.add_argument("files", nargs="*")
    p.add_argument("--count", type=int, default=100000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--folder", default=None)
    a = p.parse_args()
    folder = a.folder or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    have = {read(f).get("pre") for f in a.files if read(f)["model"] == "gpt2"}
    files = list(a.files)
    for name in PRE:
        if name in have: continue
        files.append(os.path.join(folder, f"trained-{name}.gguf"))
        if not os.path.exists(files[-1]): train_hf(name, files[-1], a.seed)
    for fallback in (True, False):
        files.append(os.path.join(folder, f"trained-spm-{'bytes' if fallback else 'unknown'}.gguf"))
        if not os.path.exists(files[-1]): train_spm(files[-1], folder, a.seed, fallback)
    print("file,pre,n_vocab,strings,bytes,tokens,different,not_round_trip")
    return 1 if sum([compare(a.many, f, a.count, a.seed) for f in files]) else 0


if __name__ == "__main__":
    sys.exit(main())
