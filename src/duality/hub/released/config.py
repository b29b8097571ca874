"""What a released model says about itself: the config.json of a folder, or the hyper-parameters of a checkpoint.

    config.json of Duo, MDLM, UDLM    flat: model_type, vocab_size, model_length, hidden_dim, n_blocks, n_heads, ...
    config.json of SEDD               sections: tokens, graph.type, noise.type, model.{hidden_size, n_blocks, ...}
    Lightning                         sections: algo.name, model.{hidden_size, ...}, noise.type

The three become one ``Settings``. A config.json is read strictly: a field that nobody knows, or of a wrong type, is
refused, all of them at once, with the nearest names. The hyper-parameters of a training have hundreds of fields; what
is known of them is read. ``cond_dim`` is not compared: released files say 129 where the tensors have 128.

What must hold: settings are what the file says, and nothing is assumed where it says something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from duality.diffusion.schedules import LogLinear
from duality.hub.released.weights import Sizes
from duality.methods.ar import AR
from duality.methods.d3pm import D3PM
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.sedd import SEDD
from duality.methods.udlm import UDLM
from duality.protocols import Method
from duality.registry import suggestion

MethodName = Literal["duo", "udlm", "mdlm", "sedd", "d3pm", "ar"]
METHOD_NAMES: tuple[MethodName, ...] = get_args(MethodName)
Config = Mapping[str, object]

# The fields of a config.json of Duo, MDLM and UDLM, their types, and the sizes that the tensors must have too.
FLAT: dict[str, type] = {
    "vocab_size": int,
    "model_length": int,
    "hidden_dim": int,
    "cond_dim": int,
    "n_blocks": int,
    "n_heads": int,
    "dropout": float,
    "causal": bool,
    "time_conditioning": bool,
    "var_min": bool,
    "cfg": bool,
    "cfg_num_classes": int,
    "noise": str,
    "num_steps": int,
    "bos_token_id": int,
    "eps": float,
}
_SIZES = {"vocab_size": "num_states", "hidden_dim": "width", "n_blocks": "depth", "n_heads": "heads"}
_SIZES["causal"] = "causal"
# Fields of every configuration of the library transformers, which say nothing about the model.
# fmt: off
GENERAL = (
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id",
    "id2label", "is_decoder", "is_encoder_decoder", "label2id", "model_type", "output_attentions",
    "output_hidden_states", "pad_token_id", "problem_type", "return_dict", "sep_token_id", "tie_word_embeddings",
    "tokenizer_class", "torch_dtype", "transformers_version", "use_cache",
)
# fmt: on
_SECTIONS = ("model", "graph", "noise")  # what is read of a config.json of SEDD; the rest is about its training
_SEDD = ("ngpus", "tokens", "training", "data", "sampling", "eval", "optim", "hydra", "work_dir", "wandb_name")
_SEDD_MODEL: dict[str, type] = {
    "name": str,
    "type": str,
    "hidden_size": int,
    "cond_dim": int,
    "length": int,
    "n_blocks": int,
    "n_heads": int,
    "scale_by_sigma": bool,
    "dropout": float,
}
_MODEL_TYPES: dict[str, MethodName] = {name: name for name in METHOD_NAMES}
_ALGORITHMS: dict[str, MethodName] = {**_MODEL_TYPES, "duo_base": "duo", "distillation": "duo", "dcd": "duo"}
_ALGORITHMS |= {"d3pm-absorb": "d3pm", "sedd-absorb": "sedd"}
_PARAMETERISATIONS: dict[str, MethodName] = {"subs": "mdlm", "sedd": "sedd", "score": "sedd", "ar": "ar"}


@dataclass(frozen=True)
class Settings:
    """What a released model says about itself; None where it says nothing. ``sizes`` are to be those of the tensors."""

    method: MethodName | None = None
    length: int | None = None
    dropout: float = 0.1
    sizes: Mapping[str, int] = field(default_factory=dict)
    time: bool = False
    noise: str = "absorbing"
    num_steps: int = 1000
    begin: int | None = None
    eps: float = 1e-3

    def assembled(self, begin: int | None) -> Method:
        """The method; ``begin`` is the state that begins a sequence of an autoregressive model."""
        last = LogLinear(eps=self.eps)
        methods: dict[MethodName, Method] = {
            "duo": Duo(training_schedule=last),
            "udlm": UDLM(training_schedule=last),
            "mdlm": MDLM(time=self.time),
            "sedd": SEDD(noise=self.noise, training_schedule=last),
            "d3pm": D3PM(noise=self.noise, num_steps=self.num_steps),
            "ar": AR(begin=begin),
        }
        assert self.method is not None, "the method is decided before it is assembled"
        return methods[self.method]


def check_sizes(settings: Settings, sizes: Sizes, where: str) -> None:
    """Refuse a configuration that says other sizes than the tensors have."""
    own = {"num_states": sizes.num_states, "width": sizes.width, "depth": sizes.depth, "heads": sizes.heads}
    own["causal"] = sizes.causal
    wrong = [f"{name} {value} and {own[name]}" for name, value in settings.sizes.items() if value != own[name]]
    if wrong:
        raise ValueError(
            f"the configuration of {where} and its tensors differ ({'; '.join(wrong)}): they are not of one model; "
            "fetch both again"
        )


def folder_settings(config: Config, where: str) -> Settings:
    """The settings that a config.json says, of either kind."""
    if "graph" in config or isinstance(config.get("model"), dict):
        return sedd_settings(config, where)
    return flat_settings(config, where)


def refuse(problems: list[str], where: str) -> None:
    """One line with all that is wrong with a configuration."""
    if problems:
        raise ValueError(f"config.json of {where}: {'; '.join(problems)}: fetch it again, or correct it")


def wrong_fields(config: Config, kinds: Mapping[str, type], others: tuple[str, ...], inside: str = "") -> list[str]:
    """What is wrong with the fields of an object: unknown names, values of a wrong type."""
    found = []
    for name, value in config.items():
        if name in kinds:
            if value is not None and not fits(value, kinds[name]):
                found.append(f"{inside}{name} is {value!r}, and must be {described(kinds[name])}")
        elif name not in others:
            found.append(f"unknown field {inside}{name!r} ({suggestion(name, [*kinds, *others])})")
    return found


def fits(value: object, kind: type) -> bool:
    """Whether a value of JSON is of a kind: a whole number is also a number, and true is neither."""
    if kind is bool or isinstance(value, bool):
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float)) if kind is float else isinstance(value, kind)


def described(kind: type) -> str:
    """A kind of value, in words."""
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")


def flat_settings(config: Config, where: str) -> Settings:
    """The settings of a config.json of Duo, MDLM or UDLM, or of one that ``export`` wrote."""
    problems = wrong_fields(config, FLAT, GENERAL)
    kind = config.get("model_type")
    method = _MODEL_TYPES.get(kind.lower()) if isinstance(kind, str) else None
    if kind is not None and method is None:
        problems.append(f"model_type is {kind!r} ({suggestion(str(kind), METHOD_NAMES)})")
    if config.get("cfg"):
        problems.append("cfg is true, and a network with labels (cond_map) cannot be imported")
    if config.get("time_conditioning") is False and method in ("duo", "udlm", "sedd", "d3pm"):
        problems.append(f"time_conditioning is false, and the network of {method} is given the noise level here")
    noise = config.get("noise")
    if noise is not None and noise not in ("absorbing", "uniform"):
        problems.append(f"noise is {noise!r}, and must be absorbing or uniform")
    refuse(problems, where)
    given = {name: value for name, value in config.items() if value is not None}
    sizes = {own: int(cast(int, given[name])) for name, own in _SIZES.items() if name in given}
    if given.get("causal") and method in (None, "duo"):
        method = "ar"  # the folders of Duo have a field for it, and no other model_type
    default = Settings()
    return Settings(
        method=method,
        length=cast("int | None", given.get("model_length")),
        dropout=float(cast(float, given.get("dropout", default.dropout))),
        sizes=sizes,
        time=bool(given.get("time_conditioning", False)),
        noise=str(given.get("noise", default.noise)),
        num_steps=cast(int, given.get("num_steps", default.num_steps)),
        begin=cast("int | None", given.get("bos_token_id")),
        eps=float(cast(float, given.get("eps", default.eps))),
    )


def section(config: Config, name: str) -> dict[str, Any]:
    """A part of a configuration; empty if there is none."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def sedd_settings(config: Config, where: str) -> Settings:
    """The settings of a config.json of the code of the SEDD paper."""
    problems = wrong_fields(config, {}, (*_SEDD, *_SECTIONS, *GENERAL))
    model, graph, noise = (section(config, name) for name in _SECTIONS)
    problems += wrong_fields(model, _SEDD_MODEL, (), "model.")
    if graph.get("type") not in ("absorb", "uniform"):
        problems.append(f"graph.type is {graph.get('type')!r}, and must be absorb or uniform")
    absorbing = graph.get("type") == "absorb"
    if noise.get("type") != "loglinear":
        problems.append(f"noise.type is {noise.get('type')!r}, and only loglinear can be imported")
    if model.get("scale_by_sigma") is not absorbing and "scale_by_sigma" in model:
        problems.append(f"model.scale_by_sigma is {model['scale_by_sigma']}, and here it is {absorbing} for this graph")
    tokens = config.get("tokens")
    if not fits(tokens, int):
        problems.append(f"tokens is {tokens!r}, and must be a whole number")
    refuse(problems, where)
    sizes = {"num_states": int(cast(int, tokens)) + absorbing}
    sizes |= {own: model[name] for name, own in _MODEL_SIZES.items() if name in model}
    length, dropout = model.get("length"), float(model.get("dropout", 0.1))
    return Settings("sedd", length, dropout, sizes, time=True, noise="absorbing" if absorbing else "uniform")


_MODEL_SIZES = {"hidden_size": "width", "n_blocks": "depth", "n_heads": "heads"}


def checkpoint_settings(config: Config, where: str) -> Settings:
    """The settings that the hyper-parameters of a Lightning checkpoint say, as far as they are known."""
    sections = {
        name: value if isinstance(value := config.get(name), dict) else {} for name in ("algo", "model", "noise")
    }
    algo, model, noise = sections["algo"], sections["model"], sections["noise"]
    method = _ALGORITHMS.get(str(algo.get("name"))) or older_method(config)
    kind, eps = noise.get("type", "log-linear"), noise.get("eps", 1e-3)
    if method in ("sedd", "d3pm") and kind not in ("log-linear", "loglinear"):
        raise ValueError(f"{where} was trained with the noise {kind!r}: of {method} only log-linear can be imported")
    number = {name: model[name] for name in (*_MODEL_SIZES, "length") if fits(model.get(name), int)}
    steps = algo.get("T", config.get("T"))
    uniform = "uniform" in (algo.get("noise"), config.get("diffusion"))
    return Settings(
        method=method,
        length=number.get("length"),
        dropout=float(model["dropout"]) if fits(model.get("dropout"), float) else 0.1,
        sizes={own: number[name] for name, own in _MODEL_SIZES.items() if name in number},
        time=algo.get("time_conditioning", config.get("time_conditioning")) is True,
        noise="uniform" if uniform else "absorbing",
        num_steps=steps if isinstance(steps, int) and steps > 0 else 1000,
        begin=algo["begin"] if fits(algo.get("begin"), int) else None,
        eps=float(eps) if fits(eps, float) else 1e-3,
    )


def older_method(config: Config) -> MethodName | None:
    """The method in the hyper-parameters of the code of the MDLM and UDLM papers; None if they say none."""
    parameterisation = str(config.get("parameterization"))
    if parameterisation == "d3pm":
        return "udlm" if config.get("diffusion") == "uniform" and not config.get("T") else "d3pm"
    return _PARAMETERISATIONS.get(parameterisation)


def folder_config(settings: Settings, sizes: Sizes) -> dict[str, object]:
    """The content of the config.json of a folder that ``folder_settings`` reads as these settings."""
    assert settings.method is not None, "a run has a method"
    config: dict[str, object] = {
        "model_type": settings.method,
        "vocab_size": sizes.num_states,
        "model_length": settings.length,
        "hidden_dim": sizes.width,
        "cond_dim": sizes.time_width,
        "n_blocks": sizes.depth,
        "n_heads": sizes.heads,
        "dropout": settings.dropout,
        "causal": sizes.causal,
        "time_conditioning": settings.time,
    }
    if settings.method in ("sedd", "d3pm"):
        config["noise"] = settings.noise
    if settings.method == "d3pm":
        config["num_steps"] = settings.num_steps
    if settings.method == "ar":
        config["bos_token_id"] = settings.begin
    if settings.method in ("duo", "udlm", "sedd"):
        config["eps"] = settings.eps
    return config


def checkpoint_config(settings: Settings, sizes: Sizes) -> dict[str, object]:
    """The hyper-parameters of a checkpoint that ``checkpoint_settings`` reads as these settings."""
    model = {"hidden_size": sizes.width, "cond_dim": sizes.time_width, "n_blocks": sizes.depth, "n_heads": sizes.heads}
    algo: dict[str, object] = {
        "name": settings.method,
        "backbone": "dit",
        "causal_attention": sizes.causal,
        "time_conditioning": settings.time,
        "noise": settings.noise,
        "T": settings.num_steps if settings.method == "d3pm" else 0,
    }
    if settings.begin is not None:
        algo["begin"] = settings.begin
    return {
        "algo": algo,
        "model": {**model, "length": settings.length, "dropout": settings.dropout, "scale_by_sigma": True},
        "noise": {"type": "log-linear", "eps": settings.eps},
    }
