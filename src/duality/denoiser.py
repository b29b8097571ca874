"""A denoiser is a backbone and a readout: what the network's numbers mean.

The readout here is the mean parametrisation, x_theta = softmax(logits): the belief about the clean token at each
position. Whatever precision the network runs in, the softmax is taken in float32 (float64 if the network is): a
log-softmax in bfloat16 is wrong by up to 0.075 nats.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from duality.backbones.dit import Network
from duality.noise import Noise
from duality.protocols import Latent


class MeanDenoiser(nn.Module):
    """Belief = softmax of the network's logits, given the noise level -log(alpha)."""

    def __init__(self, backbone: Network):
        super().__init__()
        self.backbone = backbone

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        """log of the belief, (B, L, K)."""
        logits = self.backbone(z, -alpha.log(), mask, dropout)
        precise = logits if logits.dtype == torch.float64 else logits.float()
        return torch.log_softmax(precise, -1)
