"""Our models as models of Hugging Face `transformers`. Importing this module registers them; no remote code is needed.

    import duality.integrations.transformers
    model = AutoModelForMaskedLM.from_pretrained(folder)     a diffusion model; AutoModelForCausalLM for AR
    logits = model(input_ids, timesteps=torch.tensor([0.5])).logits

The folder is one that ``Model.save_pretrained`` wrote, or a model of the hub. The logits are the log-probabilities that
our own model gives (``Denoiser.log_probs``), up to rounding: softmax(logits) is the belief about each clean token.
A score model (SEDD) gives its log ratios.

``timesteps`` are times t in [0, 1], 0 is clean, one for each row or one for all. The network is given alpha(t) of the
schedule that the model is sampled with (``Model.schedule``). Without them:

    MDLM, BERT-Mouth           nothing is missing: the network does not read the noise level
    other absorbing noise      alpha is the share of tokens that are not the mask token, row by row
    uniform noise (Duo, UDLM)  refused: tokens do not show how noisy they are

``attention_mask`` is 0 on padding, which is ignored; that of an autoregressive model must be on the right. ``labels``
(-100 is ignored) give a loss, ``class_labels`` are the classes of a class-conditional model. There is no dropout.

An autoregressive model reads ``bos_token_id`` first, as it was trained: ``logits[:, i]`` is about the token after
``input_ids[:, i]``. ``generate`` works, without a cache of keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duality.denoisers.conditioning import with_labels
from duality.denoisers.readouts import LEAST_ALPHA, CausalDenoiser, SubsDenoiser
from duality.extras import install_command
from duality.fused.lazy import Belief
from duality.hub.package import FORMAT, MODEL_TYPE, PretrainedConfig
from duality.protocols import Denoiser, Score, Valid, Vocabulary

try:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
    from transformers.generation import GenerationMixin
    from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput
except ImportError as error:
    raise ImportError(f"transformers cannot be imported ({error}): {install_command('hf')}") from error


class DualityConfig(PreTrainedConfig):
    """config.json of a model alone (``package``), as `transformers` holds it."""

    model_type = MODEL_TYPE
    format: int = FORMAT
    recipe: dict | None = None  # type: ignore[type-arg]  # plain JSON; transformers checks that it is a dict
    step: int = 0
    weights: str = "ema"
    label_names: list | None = None  # type: ignore[type-arg]
    num_tokens: int = 0
    tokenizer_sha256: str = ""
    versions: dict | None = None  # type: ignore[type-arg]
    vocab_size: int = 0
    mask_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    use_cache: bool = False

    def __post_init__(self, **kwargs: object) -> None:
        kwargs.pop("weights_sha256", None)  # of the file as it was, which may be saved again with other weights
        super().__post_init__(**kwargs)


def _valid_tokens(attention_mask: Tensor | None) -> Valid:
    """Where tokens are; None if they are everywhere, which is computed sooner and as our own models do."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask.bool()


def _cross_entropy(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """The loss of labels, of which -100 is ignored, as transformers has it."""
    return None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class _DualityModel(PreTrainedModel):
    """What both kinds of models share: the recipe and the denoiser of a configuration.

    A configuration that is not sound is refused.
    """

    config_class = DualityConfig
    main_input_name = "input_ids"

    def __init__(self, config: DualityConfig):
        super().__init__(config)
        names = ("format", "recipe", "step", "weights", "label_names", "num_tokens", "tokenizer_sha256", "versions")
        fields = {"model_type": MODEL_TYPE} | {name: getattr(config, name) for name in names}
        with torch.device("cpu"):  # transformers makes models where there are no numbers, and a recipe checks its own
            found = PretrainedConfig.from_json(fields, "config.json")
        self.recipe = found.recipe
        vocabulary = Vocabulary(found.num_tokens, len(found.label_names))
        self.denoiser = self.recipe.method.network(self.recipe.backbone, vocabulary)
        self._check_kind()
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Weights are initialised where they are made."""


class DualityForMaskedLM(_DualityModel):
    """A diffusion model: noisy tokens and their times in, the belief about the clean tokens out."""

    def _check_kind(self) -> None:
        if isinstance(self.denoiser, CausalDenoiser):
            raise ValueError("this model is autoregressive: use AutoModelForCausalLM")
        if not isinstance(self.denoiser, (Denoiser, Score)):
            raise ValueError(
                f"{type(self.recipe.method).__name__} reads vectors, not tokens, and has no logits of tokens to give: "
                "use duality.load"
            )

    def forward(
        self,
        input_ids: Tensor,
        timesteps: Tensor | float | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        class_labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> MaskedLMOutput | tuple[Tensor, ...]:
        """The belief about each clean token, (B, L, vocab_size), and with ``labels`` its cross-entropy."""
        valid = _valid_tokens(attention_mask)
        alpha = self.signal_levels(input_ids, timesteps, valid)
        conditioned = self.denoiser if class_labels is None else with_labels(self.denoiser, class_labels)
        if isinstance(conditioned, Denoiser):
            logits = conditioned.log_probs(input_ids, alpha, valid)
        else:
            assert isinstance(conditioned, Score)
            logits = conditioned.log_ratios(input_ids, alpha, valid)
        output = MaskedLMOutput(loss=_cross_entropy(logits, labels), logits=logits)
        return output if return_dict is None or return_dict else output.to_tuple()

    def signal_levels(self, input_ids: Tensor, timesteps: Tensor | float | None, valid: Valid) -> Tensor:
        """alpha (B,): of the times that are given, or as the module says."""
        if timesteps is not None:
            times = torch.as_tensor(timesteps, dtype=torch.float64, device=input_ids.device)
            if times.numel() not in (1, len(input_ids)) or not bool(((times >= 0) & (times <= 1)).all()):
                raise ValueError(
                    f"timesteps of shape {tuple(times.shape)} from {times.min():g} to {times.max():g}: give one time "
                    f"in [0, 1], or one for each of the {len(input_ids)} rows"
                )
            return self.recipe.method.sampling_schedule().alpha(times.flatten().expand(len(input_ids)))
        if isinstance(self.denoiser, SubsDenoiser) and not self.denoiser.depends_on_alpha:
            return torch.ones(len(input_ids), dtype=torch.float64, device=input_ids.device)
        if self.config.mask_token_id is None:
            raise ValueError(
                f"{type(self.recipe.method).__name__} needs timesteps: its tokens do not show how noisy they are; give "
                "t in [0, 1], where 0 is clean"
            )
        shown = (input_ids != self.config.mask_token_id).double()
        counted = torch.ones_like(shown) if valid is None else valid.double()
        return torch.clamp_min((shown * counted).sum(1) / counted.sum(1).clamp_min(1), LEAST_ALPHA)


class DualityForCausalLM(_DualityModel, GenerationMixin):
    """The autoregressive model: the law of the next token, given the begin-of-sequence and the tokens behind it."""

    def _check_kind(self) -> None:
        if not isinstance(self.denoiser, CausalDenoiser):
            raise ValueError(
                f"{type(self.recipe.method).__name__} does not write from left to right: use AutoModelForMaskedLM"
            )

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Whether ``generate`` may give it a cache."""
        return False

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: object) -> dict[str, object]:
        """The whole sequence: there is no cache."""
        return {"input_ids": input_ids, "attention_mask": kwargs.get("attention_mask")}

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> CausalLMOutput | tuple[Tensor, ...]:
        """log p of the token after each one, (B, L, num_tokens), and with ``labels`` the cross-entropy."""
        valid = _valid_tokens(attention_mask)
        if valid is not None and bool((valid[:, 1:] & ~valid[:, :-1]).any()):
            raise ValueError("attention_mask has padding before tokens: pad on the right (padding_side='right')")
        assert isinstance(self.denoiser, CausalDenoiser)
        network, count = self.denoiser.backbone, self.denoiser.num_tokens
        unused = torch.ones(len(input_ids), dtype=torch.float64, device=input_ids.device)
        logits = Belief(network.hidden(input_ids, unused, valid), network.head, count, count).log_probs()
        loss = None if labels is None else _cross_entropy(logits[:, :-1], labels[:, 1:])
        output = CausalLMOutput(loss=loss, logits=logits)
        return output if return_dict is None or return_dict else output.to_tuple()


AutoConfig.register(MODEL_TYPE, DualityConfig, exist_ok=True)
AutoModelForMaskedLM.register(DualityConfig, DualityForMaskedLM, exist_ok=True)
AutoModelForCausalLM.register(DualityConfig, DualityForCausalLM, exist_ok=True)
