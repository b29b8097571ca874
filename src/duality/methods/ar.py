"""The autoregressive transformer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from duality.denoisers.readouts import CausalDenoiser
from duality.methods.base import ProcesslessMethod
from duality.objectives.next_token import NextToken
from duality.protocols import Backbone, Phase, Vocabulary
from duality.samplers.autoregressive import Autoregressive


@dataclass(frozen=True)
class AR(ProcesslessMethod):
    """The autoregressive transformer. It has one state more than tokens, which begins a sequence.

    ``begin`` is another state that does, for a model that was trained so: the released one begins with the end-of-text.
    """

    begin: int | None = None

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        network = backbone.build(vocabulary.num_tokens + 1, causal=True, num_labels=vocabulary.num_labels)
        return CausalDenoiser(network, self.begin)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("next token", NextToken(), steps),)

    def measure(self, num_tokens: int) -> NextToken:
        return NextToken()

    def sampler(self, num_tokens: int) -> Autoregressive:
        return Autoregressive(begin=num_tokens if self.begin is None else self.begin)
