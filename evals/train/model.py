"""The qwen3, qwen3moe and llama networks and the EAGLE head, small enough to read in one sitting.

Shape has the sizes; n_expert = 0 gives the dense family.  A llama has no norms of queries and keys, and its files pair neighbouring
values for the rotary positions, where those of qwen3 pair the two halves of a head.  Model is a language model: features() ends
with the final norm, forward() adds the output head.  Eagle predicts a target's next feature from the
current feature and the token after it (README.md, "The EAGLE head").  With a Cache, a pass continues where the
last one stopped.  Products run in the dtype and on the device of the weights."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Shape:
    """The sizes of a network; read from shapes/*.json or from a GGUF file."""

    def __init__(self, **given):
        self.n_vocab, self.d_model, self.n_layer, self.n_head, self.n_kv, self.d_head = 4096, 256, 6, 4, 2, 64
        self.d_ff, self.n_expert, self.n_used, self.theta, self.eps = 256, 0, 0, 10000.0, 1e-6
        self.family = "qwen3"                   # or llama
        unknown = set(given) - set(self.__dict__)
        if unknown:
            raise ValueError(f"a shape has no {', '.join(sorted(unknown))}")
        self.__dict__.update(given)


class Cache:
    """Keys and values of the rows so far; for each layer [n_row][n_kv][n_max][d_head]."""

    def __init__(self, s, n_row, n_max, like):
        def room():
            return [torch.zeros(n_row, s.n_kv, n_max, s.d_head, dtype=like.dtype, device=like.device)
                    for _ in range(s.n_layer)]
        self.k, self.v, self.n = room(), room(), 0

    def put(self, layer, k, v):
        end = self.n + k.shape[2]
        self.k[layer][:, :, self.n:end], self.v[layer][:, :, self.n:end] = k, v
        return self.k[layer][:, :, :end], self.v[layer][:, :, :end]


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps).to(x.dtype) * self.weight


def angles(s, first, n, device):
    """cos and sin [n][d_head] of rotary positions first .. first+n-1; each angle stands at both values of its pair."""
    rate = s.theta ** (-torch.arange(0, s.d_head, 2, device=device).float() / s.d_head)
    f = torch.outer(torch.arange(first, first + n, device=device).float(), rate)
    f = f.repeat_interleave(2, -1) if s.family == "llama" else torch.cat((f, f), -1)
    return f.cos(), f.sin()


def rotate(x, turn, family):
    cos, sin = turn
    if family == "llama":
        swapped = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    else:
        a, b = x.chunk(2, -1)
        swapped = torch.cat((-b, a), -1)
    return (x * cos + swapped * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q = nn.Linear(s.d_model, s.n_head * s.d_head, bias=False)
        self.k = nn.Linear(s.d_model, s.n_kv * s.d_head, bias=False)
        self.v = nn.Linear(s.d_model, s.n_kv * s.d_head, bias=False)
        self.o = nn.Linear(s.n_head * s.d_head, s.d_model, bias=False)
        self.q_norm, self.k_norm = (Norm(s.d_head, s.eps) if s.family == "qwen3" else nn.Identity() for _ in range(2))

    def project(self, x, turn):
        """q [b][n_head][t][d_head], k and v [b][n_kv][t][d_head]."""
        s, (b, t, _) = self.s, x.shape
        q = self.q_norm(self.q(x).view(b, t, s.n_head, s.d_head)).transpose(1, 2)
        k = self.k_norm(self.k(x).view(b, t, s.n_kv, s.d_head)).transpose(1, 2)
        v = self.v(x).view(b, t, s.n_kv, s.d_head).transpose(1, 2)
        return rotate(q, turn, s.family), rotate(k, turn, s.family), v

    def forward(self, x, turn, layer, cache):
        q, k, v = self.project(x, turn)
        mask = None
        if cache is not None:
            k, v = cache.put(layer, k, v)
            if cache.n and x.shape[1] > 1:
                mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device).tril(cache.n)
        whole = mask is None and q.shape[2] == k.shape[2]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=whole, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """Softmax over all experts; the weights of the best n_used are scaled to a sum of 1. Each expert is a SwiGLU."""

    def __init__(self, s):
        super().__init__()
        self.s, self.balance, self.chosen = s, 0., None
        self.router = nn.Linear(s.d_model, s.n_expert, bias=False)
        self.gate = nn.Parameter(torch.randn(s.n_expert, s.d_ff, s.d_model) * .02)
        self.up = nn.Parameter(torch.randn(s.n_expert, s.d_ff, s.d_model) * .02)
        self.down = nn.Parameter(torch.randn(s.n_expert, s.d_model, s.d_ff) * .02)

    def forward(self, x):
        s, shape = self.s, x.shape
        x = x.reshape(-1, s.d_model)
        p = self.router(x).float().softmax(-1)
        w, e = p.topk(s.n_used, -1)
        w = (w / w.sum(-1, keepdim=True)).to(x.dtype)
        share = torch.bincount(e.reshape(-1), minlength=s.n_expert)
        self.balance, self.chosen = s.n_expert * (share / e.numel() * p.mean(0)).sum(), e
        order = e.reshape(-1).argsort()         # rows of expert 0, then rows of expert 1, ...
        row = order // s.n_used
        parts = zip(x[row].split(share.tolist()), self.gate.unbind(), self.up.unbind(), self.down.unbind())
        y = torch.cat([F.linear(F.silu(F.linear(t, g)) * F.linear(t, u), d) for t, g, u, d in parts])
        y = y * w.reshape(-1)[order, None]
        return torch.zeros_like(x).index_add(0, row, y.to(x.dtype)).view(shape)


class Dense(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.balance = 0.
        self.gate, self.up = (nn.Linear(s.d_model, s.d_ff, bias=False) for _ in range(2))
        self.down = nn.Linear(s.d_ff, s.d_model, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.n1, self.n2, self.attention = Norm(s.d_model, s.eps), Norm(s.d_model, s.eps), Attention(s)
        self.ffn = Experts(s) if s.n_expert else Dense(s)

    def forward(self, x, turn, layer=0, cache=None):
        x = x + self.attention(self.n1(x), turn, layer, cache)
        return x + self.ffn(self.n2(x))


def start_small(module, n_layer):
    """Normal weights of standard deviation 0.02; matrices that add to the residual stream start smaller."""
    for p in module.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=.02)
    for m in module.modules():
        if isinstance(m, (Dense, Experts, Attention)):
            out = m.o.weight if isinstance(m, Attention) else m.down
            (out.weight if isinstance(out, nn.Linear) else out).data.div_(math.sqrt(2 * n_layer))


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.embed = nn.Embedding(s.n_vocab, s.d_model)
        self.head = nn.Linear(s.d_model, s.n_vocab, bias=False)
        self.layers, self.norm = nn.ModuleList(Layer(s) for _ in range(s.n_layer)), Norm(s.d_model, s.eps)
        start_small(self, s.n_layer)

    def features(self, ids, cache=None):
        """The output head's input: [b][t][d_model], after the final norm.  ids: [b][t]."""
        x, first = self.embed(ids), cache.n if cache is not None else 0
        turn = angles(self.s, first, ids.shape[1], ids.device)
        for i, layer in enumerate(self.layers):
            x = layer(x, turn, i, cache)
        if cache is not None:
            cache.n += ids.shape[1]
        return self.norm(x)

    def forward(self, ids, cache=None):
        return self.head(self.features(ids, cache))

    def balance(self):
        return sum(layer.ffn.balance for layer in self.layers) / len(self.layers)


class Eagle(nn.Module):
    """Row i predicts feature i+1 from the target's feature i and the embedding of token i+1.

    x = fc(feature, embedding); one qwen3 layer with rotary position i; output norm.  The target's
    output head turns the guess into the distribution of token i+2.  Embedding and output head belong to the
    target and are not trained."""

    def __init__(self, s, target):
        super().__init__()
        self.s, self.target = s, [target]       # in a list, so that it is no submodule and its weights are not trained
        self.fc, self.layer = nn.Linear(2 * s.d_model, s.d_model, bias=False), Layer(s)
        self.norm = Norm(s.d_model, s.eps)
        start_small(self, 1)
        with torch.no_grad():                   # at the start both halves of fc give outputs of the same magnitude
            self.norm.weight.copy_(target.norm.weight)
            halves = self.fc.weight.chunk(2, 1)
            for half, rms in zip(halves, (target.norm.weight, target.embed.weight)):
                half.normal_(std=1 / (math.sqrt(2 * s.d_model) * rms.float().pow(2).mean().sqrt().item()))

    def join(self, feature, token):
        return self.fc(torch.cat((feature, self.target[0].embed(token).to(feature.dtype)), -1))

    def forward(self, feature, token, cache=None):
        """feature [b][t][d_model], token [b][t] (the one after each) to guesses [b][t][d_model]."""
        first = cache.n if cache is not None else 0
        turn = angles(self.s, first, token.shape[1], token.device)
        y = self.layer(self.join(feature, token), turn, 0, cache)
        if cache is not None:
            cache.n += token.shape[1]
        return self.norm(y)

    def unroll(self, feature, token, n_step):
        """Guesses of n_step passes; each pass reads the guesses of the pass before it, as in drafting.

        In pass j row i reads the guess of row i-1 in pass j-1; it sees the keys of pass 0 up to row i-j
        and, of each later pass m, row i-j+m: exactly what a draft of length j+1 has in its cache.
        Rows below j of pass j are not used."""
        a, t = self.layer.attention, token.shape[1]
        turn, repeat = angles(self.s, 0, t, token.device), self.s.n_head // self.s.n_kv
        every = torch.ones(t, t, dtype=torch.bool, device=token.device)
        keys, values, guesses = [], [], []
        for j in range(n_step):
            x = self.join(feature, token)
            q, k, v = a.project(self.layer.n1(x), turn)
            keys.append(k.repeat_interleave(repeat, 1))
            values.append(v.repeat_interleave(repeat, 1))
            if j == 0:
                y = F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
            else:
                score = q @ keys[0].transpose(-1, -2)
                score = score.masked_fill(~every.tril(-j), -1e9)
                own = [(q * keys[m].roll(j - m, 2)).sum(-1, keepdim=True) for m in range(1, j + 1)]
                w = (torch.cat([score, *own], -1) / math.sqrt(self.s.d_head)).softmax(-1)
                y = w[..., :t] @ values[0]
                for m in range(1, j + 1):
                    y = y + w[..., t + m - 1:t + m] * values[m].roll(j - m, 2)
            x = x + a.o(y.transpose(1, 2).flatten(2))
            guesses.append(self.norm(x + self.layer.ffn(self.layer.n2(x))))
            feature = guesses[-1].roll(1, 1)
        return guesses
