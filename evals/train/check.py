"""Checks the training scripts on networks of a few thousand weights, in seconds.

    check.py

It checks that a pass with a cache equals a pass without; that the unrolled passes of EAGLE training equal
drafting token by token, with the head's cache refilled with the target's features after each round; that
rows of a batch are written as if computed alone; that a network read back from its GGUF file is equal, and so are a model and its
first layers where the others change nothing; that a llama's rotary positions are those of upcycle.py, and the loss by some words of the
vocabulary is that by all where "some" are all."""

import os
import tempfile

import numpy as np
import torch

import first_layers
from distil import logits_of, soft_loss
from files import load, save
from model import Cache, Eagle, Model, Shape, angles, rotate
from sample import write

TINY = dict(n_vocab=300, d_model=32, n_layer=2, n_head=4, n_kv=2, d_head=16, d_ff=64)


def same(what, a, b, tolerance=1e-4):
    apart = (a - b).abs().max().item()
    assert apart < tolerance, f"{what}: {apart:.1e} apart"


@torch.no_grad()
def cache_and_whole(model):
    ids = torch.randint(3, 300, (2, 24))
    cache = Cache(model.s, 2, 24, model.embed.weight)
    parts = [model.features(ids[:, a:b], cache) for a, b in ((0, 10), (10, 11), (11, 12), (12, 24))]
    same("cache and whole", torch.cat(parts, 1), model.features(ids))


@torch.no_grad()
def unrolled_and_drafting(model, n_step=4):
    head, ids = Eagle(Shape(**TINY | {"n_layer": 1}), model), torch.randint(3, 300, (1, 20))
    for p in head.parameters():                 # weights large enough that attention changes the result
        p.add_(torch.randn_like(p) * .1)
    f = model.features(ids)
    guesses = head.unroll(f[:, :-1], ids[:, 1:], n_step)
    for i in range(2, 19 - n_step):
        cache = Cache(head.s, 1, 20, f)
        g = head(f[:, :i + 1], ids[:, 1:i + 2], cache)[:, -1:]
        for j in range(n_step):
            same(f"guess {j} after row {i}", g[:, 0], guesses[j][:, i + j])
            g = head(g, ids[:, i + j + 2:i + j + 3], cache) if j + 1 < n_step else g


def rows_alone(model):
    prompts = [np.random.default_rng(i).integers(3, 300, n).astype(np.int32) for i, n in enumerate((4, 7, 5))]
    together = write(model, prompts, 30, lambda *_: 0)
    for p, t in zip(prompts, together):
        assert np.array_equal(write(model, [p], 30, lambda *_: 0)[0], t), "a row depends on the others"


def written_and_read(model, folder):
    import export
    model.half().float()
    save(model, f"{folder}/m.pt")
    vocab = {"tokens": [f"t{i}" for i in range(300)], "merges": []}
    for kind, tolerance in (("f16", 1e-6), ("q8_0", .5)):
        export.write_model(load(f"{folder}/m.pt"), vocab, f"{folder}/m.gguf", kind, "tiny")
        again = load(f"{folder}/m.gguf")
        ids = torch.randint(3, 300, (1, 16))
        with torch.no_grad():
            same(f"read back from {kind}", again(ids), model(ids), tolerance)
        os.remove(f"{folder}/m.gguf")
    export.write_model(model, vocab, f"{folder}/m.gguf", "f16", "tiny")
    head = Eagle(Shape(**TINY | {"n_layer": 1}), model).half().float()
    export.write_eagle(head, f"{folder}/m.gguf", f"{folder}/e.gguf", "f16", "tiny")
    again, f = load(f"{folder}/e.gguf", load(f"{folder}/m.gguf")), torch.randn(1, 16, 32)
    with torch.no_grad():
        same("an EAGLE head read back", again(f, ids), head(f, ids))


def first_layers_alone(model, folder):
    """With layers 1 .. that add nothing, the first layer alone is the model."""
    import export
    for layer in model.layers[1:]:
        layer.attention.o.weight.zero_()
        (layer.ffn.down if model.s.n_expert else layer.ffn.down.weight).zero_()
    model.head.weight.copy_(model.embed.weight)     # tied: the file has one of the two
    export.write_model(model, {"tokens": [f"t{i}" for i in range(300)], "merges": []}, f"{folder}/m.gguf", "f16", "tiny")
    first_layers.cut(f"{folder}/m.gguf", f"{folder}/f.gguf", [0])
    one, ids = load(f"{folder}/f.gguf"), torch.randint(3, 300, (1, 16))
    assert one.s.n_layer == 1 and one.s.family == model.s.family
    same("first layer alone", one(ids), load(f"{folder}/m.gguf")(ids))


def rotation():
    """Of a llama: by complex numbers, neighbours as real and imaginary parts."""
    s, x = Shape(**TINY, family="llama"), torch.randn(1, 4, 9, 16)
    z = torch.view_as_complex(x.reshape(1, 4, 9, 8, 2))
    angle = torch.arange(9)[:, None] * s.theta ** (-torch.arange(8) / 8)
    same("rotation", rotate(x, angles(s, 0, 9, "cpu"), s.family), torch.view_as_real(z * torch.polar(torch.ones(9, 8), angle)).flatten(-2))


@torch.no_grad()
def some_words_and_all(model):
    """Words drawn so often that all are there: the loss is that of the whole vocabulary."""
    x = torch.randn(7, 32)
    p, top = model.head(x).softmax(-1).topk(20)
    logits, at = logits_of(model.head, x, top, 20000, 1)
    same("some words", soft_loss(logits, at, p).mean(), soft_loss(model.head(x), top, p).mean())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rotation()
    for given in (TINY, TINY | {"n_expert": 5, "n_used": 2}, TINY | {"family": "llama"},
                  TINY | {"family": "llama", "n_expert": 5, "n_used": 2}):
        model = Model(Shape(**given)).eval()
        cache_and_whole(model)
        unrolled_and_drafting(model)
        rows_alone(model)
        some_words_and_all(model)
        with tempfile.TemporaryDirectory() as folder:
            written_and_read(model, folder)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            first_layers_alone(model, folder)
    print("all is well")


if __name__ == "__main__":
    main()
