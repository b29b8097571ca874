"""What a released model says about itself: the config.json of a folder, or the hyper-parameters of a checkpoint.

    config.json of Duo, MDLM, UDLM    flat: model_type, vocab_size, model_length, hidden_dim, n_blocks, n_heads, ...
    config.json of SEDD               sections: tokens, graph.type, noise.type, model.{hidden_size, n_blocks, ...}
    Lightning                         sections: algo.name, model.{hidden_size, ...}, noise.type
    config.json of SDTT               the same as of Lightning: parameterization.name, model.{hidden_size, ...}

They become one ``Settings``; the tables say which field is which. A config.json is read strictly: a field that is
not known, or of a wrong type, is refused, with the nearest names and the first of them in one line. The configuration
of a training, which a folder of SDTT has too, has hundreds of fields; what is known of them is read. ``cond_dim`` is
not compared: released files say 129 where the tensors have 128.

What must hold: settings are what the file says, and nothing is assumed where it says something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from duality.diffusion.schedules import LogLinear
from duality.hub.package import FIELDS, OF_TRANSFORMERS
from duality.hub.released.files import Layout
from duality.hub.released.weights import Sizes
from duality.methods import METHODS
from duality.methods.base import last_level
from duality.protocols import Method
from duality.recipes.config import check, describe
from duality.registry import suggestion

MethodName = Literal["duo", "udlm", "mdlm", "sedd", "d3pm", "ar"]
METHOD_NAMES: tuple[MethodName, ...] = get_args(MethodName)

_Config = Mapping[str, object]
# The class of a method, and what of the settings it has as fields; eps is the last level of its training schedule.
_METHODS: dict[MethodName, tuple[str, tuple[str, ...]]] = {
    "duo": ("Duo", ("eps",)),
    "udlm": ("UDLM", ("eps",)),
    "mdlm": ("MDLM", ("time",)),
    "sedd": ("SEDD", ("noise", "eps")),
    "d3pm": ("D3PM", ("noise", "num_steps")),
    "ar": ("AR", ("begin",)),
}
# The fields of a config.json of Duo, MDLM and UDLM, and those of the section ``model`` of the others: their types, and
# the setting or the size that each of them is.
_TYPES: dict[str, type] = {kind.__name__: kind for kind in (int, float, bool, str)}
_FLAT, _MODEL = (
    {name: (_TYPES[kind], own) for name, (kind, own) in FIELDS[part].items()} for part in ("duo", "sedd_model")
)
_SIZES = ("num_states", "width", "depth", "heads", "causal")
_GENERAL = ("model_type", *OF_TRANSFORMERS)
# What is read of a config.json of SEDD; the rest is about its training.
_SEDD = ("ngpus", "tokens", "training", "data", "sampling", "eval", "optim", "hydra", "work_dir", "wandb_name")
_SECTIONS = ("model", "graph", "noise")
_ALGORITHMS: dict[str, MethodName] = {name: name for name in METHOD_NAMES}
_ALGORITHMS |= {"duo_base": "duo", "distillation": "duo", "dcd": "duo", "d3pm-absorb": "d3pm", "sedd-absorb": "sedd"}
_PARAMETERISATIONS: dict[str, MethodName] = {"subs": "mdlm", "sedd": "sedd", "score": "sedd", "ar": "ar"}
_PARAMETERISATIONS |= {"d3pm": "d3pm", "multi-round-sdtt": "mdlm"}  # the last is MDLM, distilled by itself
_SHOWN = 6  # problems of a configuration in one line


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

    @staticmethod
    def of(method: Method, length: int, dropout: float, num_tokens: int) -> Settings | None:
        """The settings of a method; None if it is none of the released ones."""
        for name, (kind, fields) in _METHODS.items():
            if type(method) is METHODS[kind]:
                values: dict[str, Any] = {"time": name != "ar"}
                values |= {own: vars(method)[own] for own in fields if own != "eps"}
                if "eps" in fields:
                    values["eps"] = last_level(vars(method)["training_schedule"])
                if name == "ar" and values["begin"] is None:
                    values["begin"] = num_tokens
                return Settings(name, length, dropout, **values)
        return None

    def build_method(self, begin: int | None) -> Method:
        """The method; ``begin`` is the state that begins a sequence of an autoregressive model."""
        assert self.method is not None, "the method is decided before it is built"
        kind, fields = _METHODS[self.method]
        values = {**vars(self), "begin": begin}
        schedule = {"training_schedule": LogLinear(eps=self.eps)} if "eps" in fields else {}
        return cast(Method, METHODS[kind](**schedule, **{own: values[own] for own in fields if own != "eps"}))


def read_settings(layout: Layout, config: _Config, where: str) -> Settings:
    """The settings that a config.json of either kind says, or the hyper-parameters of a Lightning checkpoint.

    One line has what is wrong with a config.json; of hyper-parameters is read what is known.
    """
    if layout == "duo-ckpt" or isinstance(config.get("parameterization"), dict):
        return _checkpoint_settings(config, where)
    of_sedd = "graph" in config or isinstance(config.get("model"), dict)
    problems, settings = (_sedd_settings if of_sedd else _flat_settings)(config)
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] * (len(problems) > _SHOWN)
        raise ValueError(
            f"config.json of {where}: {'; '.join(problems[:_SHOWN] + more)}: fetch it again, or correct it"
        )
    return settings


def _value(config: _Config, name: str, kind: type) -> Any:
    """A field that has this type: a whole number is also a number, and true is neither; None for any other."""
    try:
        return check(config.get(name), kind, name)
    except ValueError:
        return None


def _read_fields(
    config: _Config, fields: Mapping[str, tuple[type, str]], others: tuple[str, ...] = (), inside: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """The settings that the fields of an object are, and what is wrong with them: unknown names, wrong types.

    ``sizes`` are those among the settings that the tensors have too.
    """
    given, sizes, problems = dict[str, Any](), dict[str, int](), list[str]()
    for name, value in config.items():
        if name in fields and value is not None:
            kind, own = fields[name]
            if (found := _value(config, name, kind)) is None:
                problems.append(f"{inside}{name} is {value!r}, and must be {describe(kind)}")
            elif own:
                (sizes if own in _SIZES else given)[own] = found
        elif name not in fields and name not in others:
            close = suggestion(name, [*fields, *others])  # without one it lists all names, which are many
            problems.append(f"unknown field {inside}{name!r:.60}" + f" ({close})" * close.startswith("did"))
    return {**given, "sizes": {own: int(sizes[own]) for own in _SIZES if own in sizes}}, problems


def _flat_settings(config: _Config) -> tuple[list[str], Settings]:
    """What is wrong with a config.json of Duo, MDLM or UDLM, or one that ``export`` wrote; and its settings."""
    given, problems = _read_fields(config, _FLAT, _GENERAL)
    kind, noise = config.get("model_type"), config.get("noise")
    method = next((name for name in METHOD_NAMES if isinstance(kind, str) and name == kind.lower()), None)
    if kind is not None and method is None:
        problems.append(f"model_type is {kind!r} ({suggestion(str(kind), METHOD_NAMES)})")
    if config.get("cfg"):
        problems.append("cfg is true, and a network with labels (cond_map) cannot be imported")
    if config.get("time_conditioning") is False and method in ("duo", "udlm", "sedd", "d3pm"):
        problems.append(f"time_conditioning is false, and the network of {method} is given the noise level here")
    if noise is not None and noise not in ("absorbing", "uniform"):
        problems.append(f"noise is {noise!r}, and must be absorbing or uniform")
    if given["sizes"].get("causal") and method in (None, "duo"):
        method = "ar"  # the folders of Duo have a field for it, and no other model_type
    return problems, Settings(method=method, **given)


def _sedd_settings(config: _Config) -> tuple[list[str], Settings]:
    """What is wrong with a config.json of the code of the SEDD paper, and its settings."""
    model, graph, noise = (_section(config, name) for name in _SECTIONS)
    given, wrong = _read_fields(model, _MODEL, inside="model.")
    problems = _read_fields(config, {}, (*_SEDD, *_SECTIONS, *_GENERAL))[1] + wrong
    absorbing, tokens = graph.get("type") == "absorb", _value(config, "tokens", int)
    if graph.get("type") not in ("absorb", "uniform"):
        problems.append(f"graph.type is {graph.get('type')!r}, and must be absorb or uniform")
    last = _value(noise, "sigma_max", float)
    if noise.get("type") not in ("loglinear", "geometric"):
        problems.append(f"noise.type is {noise.get('type')!r}, and only loglinear and geometric can be imported")
    elif noise["type"] == "geometric" and not (last and 0 < last < 500):
        problems.append(f"noise.sigma_max is {noise.get('sigma_max')!r}, and must be a number above 0, such as 20")
    if model.get("scale_by_sigma") is not absorbing and "scale_by_sigma" in model:
        problems.append(f"model.scale_by_sigma is {model['scale_by_sigma']}, and here it is {absorbing} for this graph")
    if tokens is None:
        problems.append(f"tokens is {config.get('tokens')!r}, and must be a whole number")
    given["sizes"]["num_states"] = (tokens or 0) + absorbing
    if not problems and noise["type"] == "geometric":
        given["eps"] = math.exp(-last)  # the network is given sigma itself: only how far it goes is of the schedule
    return problems, Settings(method="sedd", time=True, noise="absorbing" if absorbing else "uniform", **given)


def _section(config: _Config, name: str) -> dict[str, Any]:
    """A part of a configuration; empty if there is none."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _checkpoint_settings(config: _Config, where: str) -> Settings:
    """The settings that the hyper-parameters of a Lightning checkpoint say, as far as they are known."""
    algo, model, noise = (_section(config, name) for name in ("algo", "model", "noise"))
    method = _ALGORITHMS.get(str(algo.get("name")))
    if method is None:  # the code of the MDLM and UDLM papers
        parameterisation = str(_section(config, "parameterization").get("name") or config.get("parameterization"))
        method = _PARAMETERISATIONS.get(parameterisation)
        if method == "d3pm" and config.get("diffusion") == "uniform" and not config.get("T"):
            method = "udlm"
    kind = noise.get("type", "log-linear")
    if method in ("sedd", "d3pm") and kind not in ("log-linear", "loglinear"):
        raise ValueError(f"{where} was trained with the noise {kind!r}: of {method} only log-linear can be imported")
    steps, eps = algo.get("T", config.get("T")), _value(noise, "eps", float)
    said: dict[str, Any] = {
        "begin": _value(algo, "begin", int),
        "eps": eps if eps is None or eps > 0 else None,  # the paper's code says 0, and trains with 1e-3 all the same
        "num_steps": steps if isinstance(steps, int) and steps > 0 else None,
    }
    return Settings(
        method=method,
        time=algo.get("time_conditioning", config.get("time_conditioning")) is True,
        noise="uniform" if "uniform" in (algo.get("noise"), config.get("diffusion")) else "absorbing",
        **_read_fields({name: model.get(name) for name in _MODEL}, _MODEL)[0],
        **{name: value for name, value in said.items() if value is not None},
    )


def layout_config(layout: Layout, settings: Settings, sizes: Sizes) -> dict[str, object]:
    """The config.json of a folder or the hyper-parameters of a checkpoint that are read as these settings."""
    assert settings.method is not None, "a run has a method"
    said = {**vars(sizes), **vars(settings)}
    if layout == "duo-hf":
        always = ("length", "dropout", "time", *_SIZES, *_METHODS[settings.method][1])
        fields = {name: said[own] for name, (_, own) in _FLAT.items() if own in always}
        return {"model_type": settings.method, "cond_dim": sizes.time_width, **fields}
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
    model = {name: said[own] for name, (_, own) in _MODEL.items() if own}
    model |= {"cond_dim": sizes.time_width, "scale_by_sigma": True}
    return {"algo": algo, "model": model, "noise": {"type": "log-linear", "eps": settings.eps}}
