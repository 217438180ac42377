"""The training loop that train.py, distil.py and eagle.py share.

AdamW; the learning rate warms up over 60 steps and falls along a cosine to a tenth at the last step.  Step n
always gets the same batch, so a run that was stopped (by --minutes or by hand) and continued gives the same
weights as one that was not.  NAME.pt has the weights for inference, NAME.state the state to continue from,
NAME.csv means over 20 steps.  A stopped run can be continued with another --steps; the learning rate is then
that of a run of so many steps."""

import math
import os
import time

import torch

from files import DEVICE, save

WARM, KEEP_EVERY_S = 60, 60


def arguments(parser, steps, peak):
    parser.add_argument("--out", required=True, help="prefix of the output files: NAME.pt, NAME.state, NAME.csv")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--until", type=int, default=1 << 60, help="stop after this step; the same command continues")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes; the same command continues")
    parser.add_argument("--peak", type=float, default=peak, help="learning rate")
    parser.add_argument("--batch", type=int, default=4096, help="tokens per step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="products in bfloat16 on a CPU too: faster if it has AVX512-BF16")


def rate(step, a):
    return a.peak * min(1, (step + 1) / WARM) * (.1 + .45 * (1 + math.cos(math.pi * step / a.steps)))


def fit(net, loss_of, a, fixed=()):
    """Trains net but for its modules in fixed. loss_of(step) returns the loss and a dict of numbers for the CSV file."""
    torch.set_num_threads(a.threads)
    net.requires_grad_(True).train()
    for module in fixed:
        module.requires_grad_(False)
    params = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW([{"params": [p for p in params if p.dim() > 1], "weight_decay": .05},
                             {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.}],
                            lr=0, betas=(.9, .95))
    step, start, kept = 0, time.time(), time.time()
    if os.path.exists(a.out + ".state"):
        saved = torch.load(a.out + ".state", map_location=DEVICE, weights_only=True)
        net.load_state_dict(saved["net"])
        opt.load_state_dict(saved["opt"])
        step = saved["step"]
        if os.path.exists(a.out + ".csv"):      # drop the rows after the saved state
            with open(a.out + ".csv") as f:
                lines = [x for x in f if not x[0].isdigit() or int(x.split(",")[0]) <= step]
            with open(a.out + ".csv", "w") as f:
                f.writelines(lines)

    def keep():
        torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "step": step}, a.out + ".state.new")
        os.replace(a.out + ".state.new", a.out + ".state")
        save(net, a.out + ".pt")
    print(f"{sum(p.numel() for p in params) / 1e6:.2f} M parameters, step {step} of {a.steps}", flush=True)
    sums, count = {}, 0
    while step < min(a.steps, a.until) and time.time() - start < 60 * a.minutes:
        for g in opt.param_groups:
            g["lr"] = rate(step, a)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda" or a.bf16):
            loss, numbers = loss_of(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.)
        opt.step()
        opt.zero_grad()
        step += 1
        for k, v in {"loss": loss, **numbers}.items():
            sums[k] = sums.get(k, 0) + torch.as_tensor(v).detach()
        count += 1
        if step % 20 == 0:
            values = [f"{float(v) / count:.4f}" for v in sums.values()]
            if not os.path.exists(a.out + ".csv"):
                with open(a.out + ".csv", "w") as f:
                    print("step", *sums, sep=",", file=f)
            with open(a.out + ".csv", "a") as f:
                print(step, *values, sep=",", file=f)
            print(f"step {step} {time.time() - start:.0f}s", *map("{} {}".format, sums, values), flush=True)
            sums, count = {}, 0
        if time.time() - kept > KEEP_EVERY_S:
            keep()
            kept = time.time()
    keep()
