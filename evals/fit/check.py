#!/usr/bin/env python3
"""Solves what points.c fitted again, with SciPy's trust-region solver and this file's own formulas.

    points > points.csv; python3 check.py points.csv > check.csv        (needs numpy, scipy)

Columns for each case: the sum of squares that the C fit printed, the same computed here from its constants, and the
smallest sum that SciPy reached within the same bounds, from 40 starting points (12 for the paper's ten constants).
excess: C's sum divided by SciPy's, minus 1. At most a few thousandths means that both found the same minimum; below 0
means that C found a better one.  apart: the largest relative difference between the two models' predictions at the
measured points.  With few speed-ups, the paper's ten constants have a long flat valley: two ends of it whose sums
differ by a tenth predict the same speed-ups within 1 or 2 %.
"""
import csv
import sys

import numpy as np
from scipy.optimize import least_squares


def grow(t, ridge, s):
    """The paper's G(t)."""
    t = np.asarray(t, float)
    inside = np.exp(np.minimum(t, ridge) * np.log(s))
    return np.where(t <= ridge, inside, np.exp(ridge * np.log(s)) * (1 + np.log(s) * (t - ridge)))


def distinct(experts, used, t):
    return experts * (1 - ((experts - used) / experts) ** t)


def cost(x, t, experts, used):
    fixed, dense, load, expert, ridge, growth = x
    total = fixed + dense * (grow(t, ridge, growth) - 1)
    if experts:
        u = distinct(experts, used, t)
        total = total + load * u + expert * u * (grow(t * used / u, ridge, growth) - 1)
    return total


def speedup(x, batch, depth, used, experts, sigma):
    bias, k1, k2, k3, draft_bias, draft_k, reject_bias, reject_k, lam, s = x
    ridge = lam * 156

    def target(t):
        n = distinct(experts, used, t)
        return bias + k1 * grow(t, ridge, s) + k2 * n + k3 * grow(t * used / n, ridge, s)

    draft = draft_bias + draft_k * grow(batch, ridge, s)
    below = depth * draft + target(batch * depth) + reject_bias + reject_k * batch
    return sigma * (depth + 1) * target(batch) / below


def solve(residual, low, high, starts):
    best = None
    for x0 in starts:
        try:
            r = least_squares(residual, np.clip(x0, low + 1e-9, high - 1e-9), bounds=(low, high), x_scale="jac",
                              max_nfev=4000, xtol=1e-13, ftol=1e-13, gtol=1e-13)
        except (ValueError, FloatingPointError):
            continue
        if np.isfinite(r.cost) and (best is None or r.cost < best.cost):
            best = r
    return 2 * best.cost, best.x


def check_pass(points, f):
    experts, used, least, most = (float(v) for v in f[:4])
    fitted = [(t, ns) for t, ns, hold in points if not hold]
    t, ns = np.array(fitted).T
    theirs = np.array([float(v) for v in f[7:13]])

    def unpack(y):
        return (*y[:4], np.exp(y[4]), 1 + np.exp(y[5]))

    free = [0, 1, 2, 3, 4, 5] if experts else [0, 1, 4, 5]
    unit = ns.min()

    def full(z):
        y = np.zeros(6)
        y[free] = z
        y[:4] *= unit
        return unpack(y)

    low = np.array([0, 0, 0, 0, np.log(least), np.log(1e-5)])[free]
    high = np.array([np.inf] * 4 + [np.log(most), 0])[free]
    random = np.random.default_rng(1)
    starts = [np.array([random.uniform(0, 1), random.lognormal(), random.uniform(0, 0.1), random.uniform(0, 0.3),
                        random.uniform(np.log(least), np.log(most)), random.uniform(np.log(1e-3), -1)])[free]
              for _ in range(40)]
    sum_squares, z = solve(lambda z: cost(full(z), t, experts, used) / ns - 1, low, high, starts)
    own = np.sum((cost(theirs, t, experts, used) / ns - 1) ** 2)
    every = np.linspace(t.min(), t.max(), 400)
    apart = np.max(np.abs(cost(theirs, every, experts, used) / cost(full(z), every, experts, used) - 1))
    return float(f[4]), own, sum_squares, apart


def check_paper(points, f):
    data = np.array(points, float)
    batch, depth, used, experts, sigma, measured = data.T
    theirs = np.array([float(v) for v in f[1:]])
    low = np.array([3.5, 0, 0.39, 0, 0.25, 0, 0, 0, 0.2, 1])
    high = np.array([17.5, np.inf, 1.95, np.inf, 1.25, np.inf, 0.6, 0.6, 1, 2])
    random = np.random.default_rng(2)      # SciPy is slow where the model hardly depends on a constant: fewer starts
    starts = [np.array([7, 1, 0.8, 1, 0.5, 0.1, 0.1, 0.01, 0.6, 1.02])]
    for _ in range(11):
        starts.append(np.array([random.uniform(3.5, 17.5), random.lognormal(), random.uniform(0.39, 1.95),
                                random.lognormal(), random.uniform(0.25, 1.25), random.lognormal() / 10,
                                random.uniform(0, 0.6), random.uniform(0, 0.05), random.uniform(0.2, 1),
                                1 + random.uniform(0.001, 0.05)]))
    with np.errstate(over="ignore", invalid="ignore"):
        sum_squares, x = solve(lambda x: speedup(x, batch, depth, used, experts, sigma) - measured, low, high, starts)
    own = np.sum((speedup(theirs, batch, depth, used, experts, sigma) - measured) ** 2)
    apart = np.max(np.abs(speedup(theirs, batch, depth, used, experts, sigma) /
                          speedup(x, batch, depth, used, experts, sigma) - 1))
    return float(f[0]), own, sum_squares, apart


def main():
    points, fits = {}, []
    for line in csv.reader(open(sys.argv[1])):
        if line[0] in ("point", "speedup"):
            values = [float(v) for v in line[2:]]
            points.setdefault((line[0], line[1]), []).append(values)
        else:
            fits.append(line)
    print("case,points,c_said,c_here,scipy,excess,apart")
    bad = False
    for kind, name, *f in fits:
        mine = points["point" if kind == "fit" else "speedup", name]
        said, own, best, apart = (check_pass if kind == "fit" else check_paper)(mine, f)
        n = sum(1 for p in mine if kind == "paper" or not p[2])
        print(f"{kind} {name},{n},{said:.8g},{own:.8g},{best:.8g},{own / best - 1:.2e},{apart:.2e}")
        bad |= abs(said / own - 1) > 1e-6 or own / best - 1 > (0.001 if kind == "fit" else 0.1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
