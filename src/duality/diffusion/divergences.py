"""How far a student's belief is from its teacher's, per token.

    kl-backward   KL(student || teacher) = sum_v S_v (log S_v - log T_v): the paper's, and the default
    kl-forward    KL(teacher || student)
    mse           mean over the vocabulary of (log S_v - log T_v)^2
    tvd           1/2 sum_v |S_v - T_v|

The direction decides what is learnt when one input z_t has several targets, one per z_s: kl-forward is smallest at
their mean, which a calibrated model already is; kl-backward at their normalised geometric mean, which keeps only the
states that no target excludes. All are 0 exactly where the two beliefs are the same numbers. A state that both exclude
(-inf) adds nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from duality.diffusion import Divergence


def _divergence(kind: Divergence, student: Tensor, teacher: Tensor) -> Tensor:
    """(B, L) float64 from log beliefs (B, L, K); the sums are taken in the beliefs' precision."""
    if kind == "tvd":
        return 0.5 * (student.exp() - teacher.exp()).abs().sum(-1).double()
    possible = (student > -torch.inf) | (teacher > -torch.inf)
    gap = torch.where(possible, student, 0.0) - torch.where(possible, teacher, 0.0)
    if kind == "mse":
        return (gap.square().sum(-1) / possible.sum(-1)).double()
    if kind == "kl-backward":
        return torch.where(student > -torch.inf, student.exp() * gap, 0.0).sum(-1).double()
    return -torch.where(teacher > -torch.inf, teacher.exp() * gap, 0.0).sum(-1).double()
