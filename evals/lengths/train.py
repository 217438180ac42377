"""Trains the network that predicts how many tokens of a draft are accepted, from records of record.c.

    train.py RECORDS OUT.gguf D_MODEL [--hidden 128] [--held 0.2] [--epochs 40]

A share of the prompts, the last ones, is held out for compare; the first of them is printed as FIRST_PROMPT.  A tenth
of the other prompts is a validation set: the weights of the epoch with the lowest validation loss are written.  The
network outputs the mean number of accepted tokens divided by the depth; the loss is the cross entropy of that share."""

import argparse

import gguf
import numpy as np
import torch
from torch import nn

LENGTHS, DEPTHS = 15, 16
DEPTH = torch.tensor([1., 2., 4., 8., 16.] * 3)


def read(path, d_model):
    rows = np.fromfile(path, np.float32).reshape(-1, 1 + LENGTHS + DEPTHS + d_model)
    return rows[:, 0], torch.from_numpy(rows[:, 1:1 + LENGTHS].copy()), torch.from_numpy(rows[:, -d_model:].copy())


def network(n_in, n_hidden):
    return nn.Sequential(nn.Linear(n_in, n_hidden), nn.ReLU(), nn.Linear(n_hidden, n_hidden), nn.ReLU(),
                         nn.Linear(n_hidden, LENGTHS))


def loss_of(net, x, y):
    return nn.functional.binary_cross_entropy_with_logits(net(x), y / DEPTH)


def train(net, x, y, x_stop, y_stop, epochs):
    best, state = 1e9, None
    opt = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.05)
    for epoch in range(epochs):
        for at in torch.randperm(len(x)).split(256):
            loss = loss_of(net, x[at], y[at])
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            stop = loss_of(net, x_stop, y_stop).item()
        print(f"epoch {epoch}: {loss.item():.4f}, not trained on {stop:.4f}", flush=True)
        if stop < best:
            best, state = stop, {k: v.clone() for k, v in net.state_dict().items()}
    net.load_state_dict(state)


def write(net, mean, scale, out):
    g = gguf.GGUFWriter(out, "lengths")
    for i, layer in enumerate(m for m in net if isinstance(m, nn.Linear)):
        w, b = layer.weight.detach(), layer.bias.detach()
        if i == 0:                              # the engine gives raw features: the first layer includes their scaling
            b, w = b - w @ (mean / scale), w / scale
        g.add_tensor(f"lengths.{i}.weight", w.T.contiguous().numpy())
        g.add_tensor(f"lengths.{i}.bias", b.numpy())
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("records")
    p.add_argument("out")
    p.add_argument("d_model", type=int)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--held", type=float, default=0.2)
    p.add_argument("--epochs", type=int, default=40)
    a = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    prompt, y, x = read(a.records, a.d_model)
    first = int(prompt.max() * (1 - a.held)) + 1
    known, stop = prompt < first * 0.9, (prompt >= first * 0.9) & (prompt < first)
    mean, scale = x[known].mean(0), x[known].std(0) + 1e-6
    z = (x - mean) / scale
    net = network(a.d_model, a.hidden)
    train(net, z[known], y[known], z[stop], y[stop], a.epochs)
    write(net, mean, scale, a.out)
    held = prompt >= first
    with torch.no_grad():
        guess = torch.sigmoid(net(z[held])) * DEPTH
    flat = ((y[held] - y[known].mean(0)) ** 2).mean(0)
    left = ((y[held] - guess) ** 2).mean(0)
    for i in range(LENGTHS):
        print(f"width {2 ** (i // 5)} depth {2 ** (i % 5)}: kept {y[held].mean(0)[i]:.3f}, "
              f"foreseen {guess.mean(0)[i]:.3f}, of the variance {1 - left[i] / flat[i]:.3f}")
    print(f"{known.sum()} records for training, {stop.sum()} to stop by, {held.sum()} held out: FIRST_PROMPT {first}")


if __name__ == "__main__":
    main()
