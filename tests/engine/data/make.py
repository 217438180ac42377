#!/usr/bin/env python3
"""Makes the expected ids in this folder with HF tokenizers and sentencepiece (see README.md).

    make.py

texts.bin holds 16 chosen and 190 random texts, each a 32-bit little-endian length and its bytes.
<pre>.ids has one line of ids for each, with the vocabulary of gpt-2.gguf under that pre-tokeniser;
spm-*.ids has them for the two small SentencePiece vocabularies, which are trained here too."""
import os, random, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../../evals/tokenizer"))
import compare
import texts


# What random texts rarely hold.
TRICKY = ["'There 'Several'several 'Dear 'Mother 'REally 'VEry", "'\u017fab '\u017f",
          "\u180ea \u180e \u180e1", "   1", "a  \u3000 1", "x \r\n\r\n y\n",
          "12345 6789012 \u0661\u0662\u0663\u0664 \u00bd\u00b2", "$+<=>^~|`a $`$ \u00ab$\u00bb",
          "\u4f60\u597d\u3002\uff01abc\u3000\uff41", "a\u0301\u0301 \u0301b",
          "abc\u4e2d\u6587Def \u4e2d\u3005\u3007 1\u3007\u3021 +\u2e80\u2e80! \u3042\u4e2d\u30ab\u30fc'S\u4e2d's",
          "HTTPServer XMLa \u01c5aB \u05d0B\u05d0\u05d1C \u0e01\u0e31AB \u05d0\u05d1Ab'LL\u0301'm A\u4e2da",
          "\u0301a\u0903b .\u0301 a\u20dd! 12\u03013 \U00016ff0\u0301\u4e2d",
          "#include<a> $x=-1 'quoted' _a__b /usr/bin///\n\n a.b,c ~`|^ \u20acuro \u2192x \u3002abc",
          " \n \n  a\n \n\nb \r\n\r\n c!\n\n/d!/\n", "12345678 1a2\u0661\u0662\u0663\u0664 \u00bd\u00b2\u00b3\u3007\u3007\u3007\u3007"]


def main():
    meta = compare.read(os.path.join(here, "gpt-2.gguf"))
    strings = TRICKY + compare.strings(7, 190, ["<|endoftext|>"])
    texts.write(strings)
    for name in compare.PRE:
        hf, _ = compare.hf_from(meta | {"pre": name})
        texts.put_ids(name, (hf.encode(t, add_special_tokens=False).ids for t in strings))
    rng = random.Random(7)
    words = [" ".join(rng.choices(compare.TEXT, k=12)) for _ in range(2000)]
    for fallback in (True, False):
        name = "spm-bytes" if fallback else "spm-unknown"
        path = os.path.join(here, name + ".gguf")
        compare.train_spm(path, "/tmp", 7, fallback, n_vocab=600 if fallback else 350, lines=words)
        spm = compare.spm_from(compare.read(path))
        texts.put_ids(name, (spm.encode(t) for t in strings))


main()
