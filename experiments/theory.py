"""The paper's theory as code: both sides of each statement on a toy where both can be computed.

The toy is one token out of K = 2 or 3 with a known law. Its latent w in R^K matters only through the differences of
its entries: all happens on the vectors of sum 0, a line or a plane, by quadrature in float64. Nothing is sampled.

1. ``kernels``: Theorem 3.1's, which keep the argmax of a Gaussian reverse process at all times, and two that do not.
2. ``likelihoods``: Theorem 3.2 as the data-processing inequality it comes from, and the two sides as printed.
3. ``gaussian_path``, ``uniform_path``, ``shared_noise_path``: three laws of (z_s, z_t, ...) with equal marginals.

``python -m experiments.theory OUT.png`` prints the numbers of docs/results.md and draws its figure;
``python -m experiments.theory OUT.png 30522`` draws Figures 1, 5d and 6 of the paper at that vocabulary.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from duality.diffusion import gaussian, posterior
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import LinearSignal, LinearVariance
from duality.noise import Noise

_RADIUS = 8.0  # standard deviations of the prior: what lies outside is below 1e-13
_TRAPEZOID = torch.arange(-40, 41, dtype=torch.float64) * 0.2  # for ``cell_probs``, exact to 1e-15


class Nodes(NamedTuple):
    """``points`` (N, K) of sum 0, ``weights`` (N,) to integrate over them, and the argmax ``cell`` of each, one-hot."""

    points: Tensor
    weights: Tensor
    cell: Tensor


def hyperplane(vocab_size: int) -> Nodes:
    """Gauss-Legendre nodes inside each argmax cell: half-lines (K = 2) or sectors of 120 degrees (K = 3)."""
    if vocab_size not in (2, 3):
        raise ValueError(f"vocab_size is {vocab_size}: the cells of 2 and 3 tokens are known here; choose one of them")
    counts, width = ((400, 1), 0.5) if vocab_size == 2 else ((56, 20), math.pi / 3)
    (node, weight), (slant, share) = map(np.polynomial.legendre.leggauss, counts)
    u, du = torch.from_numpy(node + 1) / 2, torch.from_numpy(weight) / 2
    radius, dr = _RADIUS * u**2, _RADIUS * 2 * u * du  # u^2: more of them near the corner where cells meet
    angle, da = torch.from_numpy(slant) * math.pi / 3, torch.from_numpy(share) * width
    axes = centred(torch.eye(vocab_size, dtype=torch.float64))
    axes = axes / axes.norm(dim=-1, keepdim=True)  # the middle of each cell
    side = (axes.roll(-1, 0) - axes.roll(1, 0)) / math.sqrt(3)  # at right angles to it; 0 on a line
    ray = angle.cos()[:, None] * axes[:, None] + angle.sin()[:, None] * side[:, None]  # (cell, angle, K)
    points = (radius[:, None] * ray[:, :, None]).flatten(0, 2)
    weights = (radius ** (vocab_size - 2) * dr * da[:, None]).flatten().repeat(vocab_size)
    cell = torch.eye(vocab_size, dtype=torch.float64).repeat_interleave(len(points) // vocab_size, 0)
    return Nodes(points, weights, cell)


def centred(w: Tensor) -> Tensor:
    """The part of w that the argmax can see."""
    return w - w.mean(-1, keepdim=True)


def cell_probs(mean: Tensor, std: Tensor) -> Tensor:
    """P(argmax w = k) of w ~ N(mean, std^2 I), (..., K): int phi(u) prod_{j != k} Phi((m_k - m_j) / std + u) du, as in
    eqn:gaussian-kernel-discretized. At mean = alpha_tilde e_x it is ``functional.marginal`` at alpha = T."""
    weights = torch.exp(-0.5 * _TRAPEZOID**2) * 0.2 / math.sqrt(2 * math.pi)
    gaps = (mean[..., :, None] - mean[..., None, :]) / std
    log_below: Tensor = torch.special.log_ndtr(gaps[..., None] + _TRAPEZOID)
    own = torch.eye(mean.shape[-1], dtype=torch.bool)[:, :, None]
    return (log_below.masked_fill(own, 0.0).sum(-2).exp() * weights).sum(-1)


def spread(mass: Tensor, mean: Tensor, std: Tensor, points: Tensor) -> Tensor:
    """The densities sum_i mass_i N(mean_i, std^2) at ``points`` of the hyperplane; ``mass`` is (..., N)."""
    scale = (2 * math.pi * std**2) ** (-(points.shape[-1] - 1) / 2)
    total = torch.zeros(*mass.shape[:-1], len(points), dtype=torch.float64)
    for part, centre in zip(torch.split(mass, 32, -1), torch.split(mean, 32)):  # cache-sized
        far = torch.cdist(centre, points, compute_mode="donot_use_mm_for_euclid_dist")
        total += part @ torch.exp(-((far / std) ** 2) / 2)
    return total * scale


def latents(mu: Tensor, nodes: Nodes) -> Tensor:
    """The densities q(w | x) of the Gaussian forward process at the nodes, for each token x: (K, N)."""
    alpha_tilde, sigma_tilde = gaussian._split_mu(mu)
    tokens = torch.eye(nodes.cell.shape[-1], dtype=torch.float64)
    return spread(tokens, centred(alpha_tilde * tokens), sigma_tilde, nodes.points)


def forward_step(mu_s: Tensor, mu_t: Tensor) -> tuple[Tensor, Tensor]:
    """(r, std): w_t ~ N(r w_s, std^2), the Markov Gaussian forward process (eqn:gaussian_kernel)."""
    (alpha_s, sigma_s), (alpha_t, sigma_t) = gaussian._split_mu(mu_s), gaussian._split_mu(mu_t)
    return alpha_t / alpha_s, (sigma_t**2 - (alpha_t / alpha_s * sigma_s) ** 2).sqrt()


@dataclass(frozen=True)
class Reverse:
    """An approximate Gaussian reverse process: N(0, I), then ``steps`` times q(w_s | w_t, x = denoiser(w_t)).

    ``law`` is the data's. The denoiser is softmax(log believed + sharpness * logits of w): the posterior mean at
    ``sharpness`` 1 with ``believed`` the law (None), and wrong otherwise. ``end`` is the variance of the last noise.
    """

    law: tuple[float, ...] = (0.7, 0.3)
    believed: tuple[float, ...] | None = None
    sharpness: float = 1.0
    steps: int = 16
    end: float = 0.02

    def mus(self) -> Tensor:
        return LinearVariance().mu(torch.linspace(1, self.end, self.steps + 1, dtype=torch.float64))

    def denoise(self, w: Tensor, mu: Tensor) -> Tensor:
        believed = torch.tensor(self.believed or self.law, dtype=torch.float64)
        return torch.softmax(believed.log() + self.sharpness * mu * (1 + mu**2).sqrt() * w, -1)

    def step(self, w: Tensor, mu_t: Tensor, mu_s: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of w_s given w_t = w."""
        (alpha_s, sigma_s), (_, sigma_t) = gaussian._split_mu(mu_s), gaussian._split_mu(mu_t)
        ratio, std = forward_step(mu_s, mu_t)
        mean = ratio * (sigma_s / sigma_t) ** 2 * w + alpha_s * (std / sigma_t) ** 2 * self.denoise(w, mu_t)
        return centred(mean), std * sigma_s / sigma_t


def gaussian_marginals(reverse: Reverse, nodes: Nodes) -> Tensor:
    """The densities of w at every level of the reverse process, (steps + 1, N): each is an integral over the last."""
    densities = [latents(reverse.mus()[0], nodes)[0]]
    for mu_t, mu_s in pairwise(reverse.mus()):
        mean, std = reverse.step(nodes.points, mu_t, mu_s)
        densities.append(spread(densities[-1] * nodes.weights, mean, std, nodes.points))
    return torch.stack(densities)


class Kernels(NamedTuple):
    """Discrete kernels P(z_s | z_t) for every step, (steps, z_t, z_s), from one Gaussian reverse process."""

    exact: Tensor  # eqn:marginal_preserving_reverse: the Gaussian step averaged over w_t given z_t
    centre: Tensor  # the Gaussian step from the mean of w_t given z_t
    plug_in: Tensor  # the uniform posterior at the mean of the denoiser given z_t


def kernels(reverse: Reverse, nodes: Nodes, densities: Tensor) -> Kernels:
    """The three kernels for the process whose ``gaussian_marginals`` are ``densities``."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    states, prior = torch.arange(nodes.cell.shape[-1]), Uniform(nodes.cell.shape[-1]).prior()
    for (mu_t, mu_s), density in zip(pairwise(reverse.mus()), densities):
        within = (density * nodes.weights)[:, None] * nodes.cell
        within = (within / within.sum(0)).T  # p(w_t | z_t), (K, N)
        exact = within @ cell_probs(*reverse.step(nodes.points, mu_t, mu_s))
        centre = cell_probs(*reverse.step(within @ nodes.points, mu_t, mu_s))
        belief = within @ reverse.denoise(nodes.points, mu_t)
        alpha_t, alpha_s = (gaussian.level(mu, len(states)).expand(len(states)) for mu in (mu_t, mu_s))
        found.append((exact, centre, posterior.posterior(belief, states, alpha_t, alpha_s, prior)))
    return Kernels(*(torch.stack(each) for each in zip(*found)))


def discrete_marginals(start: Tensor, steps: Tensor) -> Tensor:
    """The discrete chain's law at every level, (steps + 1, K), from ``start`` and its kernels alone. Theorem 3.1
    (theorem:consistency_reverse_process): with ``Kernels.exact`` and the uniform start it is the argmax of
    ``gaussian_marginals`` at every level, however wrong the denoiser."""
    return torch.stack(list(accumulate(steps, torch.matmul, initial=start)))


def belief_of_kernel(kernel: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The denoiser at which the uniform posterior *is* this kernel: eqn:consistency_discrete_denoising_model, (z_t, K).
    ``functional.posterior`` of it gives the kernel back; rows sum to 1, but nothing keeps the entries above 0."""
    num, ratio = len(kernel), alpha_t / alpha_s
    fresh = (1 - ratio) * (1 - alpha_s) / num
    stay = kernel.diagonal()
    own = (stay * (1 - alpha_t) - (ratio - alpha_t) - fresh) / (num * alpha_t * (1 - stay) + alpha_s - alpha_t)
    others = (kernel * (num * alpha_t * own + 1 - alpha_t)[:, None] - fresh) / (alpha_s - alpha_t)
    return torch.where(torch.eye(num, dtype=torch.bool), own[:, None], others)


class Likelihoods(NamedTuple):
    """Nats; p_0 is the model, q_0 the data at its last noise level. The first three are what is paid above the data's
    entropy and must rise; the last two are the sides of eqn:elbo_inequality as printed, which need not be in order."""

    discrete: float  # KL(argmax q_0 || argmax p_0)
    density: float  # KL(q_0 || p_0)
    bound: float  # ``gaussian_bound`` less the entropy: the KL of whole trajectories
    token: float  # E log p(x), p(x) = P(argmax w = x) under p_0: a probability
    at_one_hot: float  # E log p_0(e_x): a density on R^K


def gaussian_bound(reverse: Reverse, nodes: Nodes) -> float:
    """The Gaussian NELBO of a token: sum over steps of (mu_s^2 - mu_t^2) / 2 E|x - denoiser|^2, and E[-log q(x | w_0)]
    to read it from what noise is left (eqn:gaussian_elbo, which lacks the 1/2)."""
    law, total = torch.tensor(reverse.law, dtype=torch.float64), 0.0
    for mu_t, mu_s in pairwise(reverse.mus()):
        joint = law[:, None] * latents(mu_t, nodes) * nodes.weights
        miss = torch.eye(len(law), dtype=torch.float64)[:, None] - reverse.denoise(nodes.points, mu_t)
        total += float((mu_s**2 - mu_t**2) / 2 * (joint * (miss**2).sum(-1)).sum())
    joint = law[:, None] * latents(reverse.mus()[-1], nodes)
    return total + float((torch.xlogy(joint, joint.sum(0)) - torch.xlogy(joint, joint)).sum(0) @ nodes.weights)


def likelihoods(reverse: Reverse, nodes: Nodes) -> Likelihoods:
    """Theorem 3.2 (theorem:elbo) with both sides defined: the argmax can only lower a KL (eqn:dpi_inequality)."""
    law, mus = torch.tensor(reverse.law, dtype=torch.float64), reverse.mus()
    before, model = gaussian_marginals(reverse, nodes)[-2:]
    tokens = (model * nodes.weights) @ nodes.cell
    noisy = posterior.marginal(law, gaussian.level(mus[-1], len(law)), Uniform(len(law)).prior())
    data = law @ latents(mus[-1], nodes)
    discrete = float(torch.xlogy(noisy, noisy / tokens).sum())
    density = float(torch.xlogy(data, data / model.clamp_min(1e-300)) @ nodes.weights)  # both underflow far out
    bound = gaussian_bound(reverse, nodes) + float(law @ law.log())
    # At e_x itself: the last step once more, times the sum of the entries, whose law every such process has right.
    mean, std = reverse.step(nodes.points, mus[-2], mus[-1])
    at_tokens = spread(before * nodes.weights, mean, std, centred(torch.eye(len(law), dtype=torch.float64)))
    alpha_tilde, sigma_tilde = gaussian._split_mu(mus[-1])
    log_sum = -((1 - alpha_tilde) ** 2) / (2 * len(law) * sigma_tilde**2) - (2 * math.pi * sigma_tilde**2).log() / 2
    return Likelihoods(discrete, density, bound, float(law @ tokens.log()), float(law @ at_tokens.log() + log_sum))


def gaussian_path(mus: Tensor, vocab_size: int) -> Tensor:
    """P(z_1, ..., z_n | x = 0), z_i = argmax w_i on one Gaussian forward trajectory through the falling ``mus``: the
    marginals are those of ``uniform_path``, but it is no Markov chain (supp:diffusion_trajectories)."""
    nodes = hyperplane(vocab_size)
    mass = latents(mus[0], nodes)[0] * nodes.weights
    for mu_s, mu_t in pairwise(mus[:-1]):
        ratio, std = forward_step(mu_s, mu_t)
        mass = spread(mass[..., None, :] * nodes.cell.T, ratio * nodes.points, std, nodes.points) * nodes.weights
    ratio, std = forward_step(mus[-2], mus[-1])
    return mass[..., None, :] * nodes.cell.T @ cell_probs(ratio * nodes.points, std)


def uniform_path(mus: Tensor, vocab_size: int) -> Tensor:
    """The same for the uniform-state Markov chain at the levels T(mus) (eqn:discrete_kernel)."""
    one, prior = torch.eye(vocab_size, dtype=torch.float64), Uniform(vocab_size).prior()
    law = posterior.marginal(one[0], gaussian.level(mus[0], vocab_size), prior)
    for alpha_s, alpha_t in pairwise(gaussian.level(mus, vocab_size)):
        law = law[..., None] * posterior.marginal(one, (alpha_t / alpha_s).expand(vocab_size), prior)
    return law


def shared_noise_path(mus: Tensor, vocab_size: int) -> Tensor:
    """The same for one eps at all levels, as in ``gaussian.coupled_argmax``: x first, then one other token for ever."""
    hit = [1.0, *(gaussian.level(mus, vocab_size) * (1 - 1 / vocab_size) + 1 / vocab_size).tolist(), 0.0]
    law = torch.zeros((vocab_size,) * len(mus), dtype=torch.float64)
    for clean in range(len(mus) + 1):  # how many times show x
        for other in range(1, vocab_size):
            law[(0,) * clean + (other,) * (len(mus) - clean)] += (hit[clean] - hit[clean + 1]) / (vocab_size - 1)
    return law


def latent_path(mus: Tensor, vocab_size: int, noise: Noise) -> Tensor:
    """One Gaussian forward trajectory w_1, ..., w_n of the token x = 0 through the falling ``mus``: (n, K)."""
    alpha_tilde, sigma_tilde = gaussian._split_mu(mus[0])
    path = [sigma_tilde * noise.normal("start", vocab_size)[0]]
    path[0][0] += alpha_tilde
    for number, pair in enumerate(pairwise(mus)):
        ratio, std = forward_step(*pair)
        path.append(ratio * path[-1] + std * noise.fold(number).normal("step", vocab_size)[0])
    return torch.stack(path)


def deterministic_path(mus: Tensor, x: Tensor, vocab_size: int, noise: Noise) -> Tensor:
    """P_DDT (eqn:ddim-traj-discrete): the argmax at each of ``mus`` with one eps, for the tokens x (L,): (n, L)."""
    return gaussian.coupled_argmax(x[None], mus[:, None], mus[:, None], vocab_size, noise)[0]


def draw_duality(target: str, vocab_size: int) -> None:
    """Draw Figures 1, 5d and 6 of the paper for a vocabulary of this size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 5.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1.35, 0.9))
    blue, orange, grey, clock = "#1f6fb4", "#e07b1f", "0.45", LinearVariance()
    levels = torch.tensor([0.999, 0.95, 0.05, 0.03], dtype=torch.float64)
    ends = clock.gaussian_time(gaussian.inverse_level(levels, vocab_size))
    noise = Noise.of(6, 0, torch.zeros(1, dtype=torch.int64))

    times = torch.linspace(float(ends[0]), float(ends[-1]), 121, dtype=torch.float64)
    w = latent_path(clock.mu(times), vocab_size, noise)
    token, others = w.argmax(-1), w[:, 1:].max(-1).values
    for number in set(token.tolist()) - {0}:
        left.plot(times, w[:, number], color=grey, lw=0.8, alpha=0.6)
    left.plot(times, others, color=orange, label=f"largest of the other {vocab_size - 1:,}")
    left.plot(times, w[:, 0], color=blue, label="the clean token's")
    left.scatter(times, torch.full_like(times, 2.1), c=[orange if each else blue for each in token], marker="|", s=160)
    left.set(title="Figure 1: a Gaussian path (below), its argmax (above)", ylim=(0, 2.2))
    left.set(xlabel="noise variance", ylabel="entries of w")
    left.legend(loc="lower right")

    words = ["a", "uniform", "process", "is", "the", "argmax", "of", "a", "Gaussian", "one"]
    x = torch.arange(len(words))
    rows = torch.linspace(float(ends[-1]), float(ends[0]), 13, dtype=torch.float64)
    for row, line in enumerate(deterministic_path(clock.mu(rows), x, vocab_size, noise).tolist()):
        for place, state in enumerate(line):
            clean = state == place
            text, color = (words[place], blue) if clean else (str(state), grey)
            middle.text(
                place, row, text, ha="center", va="center", color=color, fontsize=9, weight="bold" * clean or None
            )
    middle.set(title="Figure 5d: a deterministic trajectory, one noise for all times", xlim=(-0.6, len(words) - 0.4))
    middle.set(ylim=(12.6, -0.6), xticks=[], yticks=range(0, 13, 3), ylabel="noise variance (generation runs down)")
    middle.set_yticklabels([f"{value:.2f}" for value in rows[::3].tolist()])

    t = torch.linspace(1e-3, 1 - 1e-3, 500, dtype=torch.float64)
    for schedule, style, name in ((clock, "-", "alpha_tilde² = 1 - t"), (LinearSignal(), "--", "alpha_tilde = 1 - t")):
        mu = schedule.mu(t)
        right.plot(t, gaussian._split_mu(mu)[0], style, color=orange, label=f"Gaussian: {name}")
        right.plot(t, gaussian.level(mu, vocab_size), style, color=blue, label="discrete: its T")
    right.axvspan(float(ends[1]), float(ends[2]), color=blue, alpha=0.12, label="0.95 > alpha > 0.05 (of the first)")
    right.set(title=f"Figure 6: the operator T, K = {vocab_size:,}", xlabel="t", ylabel="signal", xlim=(0, 1))
    right.legend()
    figure.savefig(target, dpi=100)
    print(f"K = {vocab_size}: alpha = 0.95 and 0.05 at the noise variances {ends[1]:.4f} and {ends[2]:.4f}")


def main(target: str, vocab_size: str = "") -> None:
    """Print the numbers of docs/results.md and draw its figure; with a size, the paper's figures instead."""
    if vocab_size:
        draw_duality(target, int(vocab_size))
        return
    from matplotlib import rcParams
    from matplotlib.figure import Figure  # without pyplot, a PNG is drawn by Agg

    rcParams.update({"font.size": 13, "axes.grid": True, "grid.alpha": 0.3, "lines.linewidth": 2.5})
    figure = Figure(figsize=(15, 5.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    blue, orange, green, clock = "#1f6fb4", "#e07b1f", "#2c9c5a", LinearVariance()
    three = Reverse((0.5, 0.3, 0.2), sharpness=0.5, steps=6, end=0.05)
    for reverse in (three, Reverse(steps=8), Reverse(), Reverse(steps=64), Reverse(sharpness=0.5)):
        nodes, levels = hyperplane(len(reverse.law)), gaussian.level(reverse.mus(), len(reverse.law))
        densities = gaussian_marginals(reverse, nodes)
        pushed, found = (densities * nodes.weights) @ nodes.cell, kernels(reverse, nodes, densities)
        chains = [discrete_marginals(pushed[0], steps) for steps in found]
        errors = [f"{name} {float((law - pushed).abs().max()):.1e}" for name, law in zip(Kernels._fields, chains)]
        lowest = min(float(belief_of_kernel(k, *pair).min()) for k, pair in zip(found.exact, pairwise(levels)))
        print(f"1. {reverse}: off by {', '.join(errors)}; smallest belief {lowest:.3f}")
    noise = clock.gaussian_time(reverse.mus())
    left.plot(noise, pushed[:, 0], color=orange, lw=9, alpha=0.5, label="argmax of the Gaussian process")
    for law, style, name in zip(chains, ("o", "--", ":"), ("Theorem 3.1", "from the mean latent", "plug-in posterior")):
        left.plot(noise, law[:, 0], style, color=blue, label=f"discrete: {name}")
    left.set(title="1. One kernel keeps the marginals", xlim=(1.03, 0), ylim=(0.48, 0.86))
    left.set(xlabel="noise variance (sampling runs to the right)", ylabel="P(z = first token)")

    cases = [Reverse(sharpness=sharpness) for sharpness in np.logspace(-2, 2, 25, base=2).tolist()]
    rows = [likelihoods(reverse, nodes) for reverse in cases]
    names = ("discrete: KL of tokens", "Gaussian: KL of densities", "Gaussian: its bound, 16 steps")
    for column, color, name in reversed(list(zip(zip(*rows), (blue, orange, green), names))):
        middle.semilogy([case.sharpness for case in cases], column, color=color, label=name)
    middle.set(title="2. The argmax lowers every divergence", ylim=(1e-4, 9), ylabel="nats above the data's entropy")
    middle.set_xscale("log", base=2)
    middle.set_xlabel("sharpness of the denoiser")
    for reverse in (*cases[::6], Reverse(steps=256), *(Reverse(steps=64, end=end) for end in (0.5, 0.2, 0.15, 0.02))):
        print("2.", reverse, [f"{name} {value:.4f}" for name, value in likelihoods(reverse, nodes)._asdict().items()])

    names, gaps = ("argmax of a Gaussian path", "uniform-state chain", "argmax, one noise"), np.logspace(-4, -0.5, 30)
    for path, color, name in zip((gaussian_path, uniform_path, shared_noise_path), (orange, blue, green), names):
        changes = [1 - float(path(clock.mu(0.3 + gap * torch.arange(2).double()), 2).trace()) for gap in gaps]
        right.loglog(gaps, changes, color=color, label=name)
        law = path(clock.mu(torch.tensor([0.2, 0.35, 0.5], dtype=torch.float64)), 2)
        once, twice = (law.sum(2)[:, 0] / law.sum((1, 2))).numpy(), (law[..., 0] / law.sum(2)).numpy()
        print(f"3. {name}: P(z_t = x | z_s = x, not x) {once.round(4)}; {changes[0]:.2e} change at {gaps[0]:.0e}")
        print(f"3. {name}: P(z_u = x | z_s, z_t) {twice.round(4).tolist()}")
    right.set(title="3. Equal marginals, unequal paths", xlabel="noise variance added", ylabel="P(the token changes)")
    for axis in (left, middle, right):
        axis.legend(fontsize=12)
    figure.savefig(target, dpi=100)


if __name__ == "__main__":
    main(*sys.argv[1:])
