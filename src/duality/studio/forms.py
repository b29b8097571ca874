"""The forms of requests: which fields each has.

What must hold: the fields of writing are arguments of ``Model.sample`` and ``Model.fill``, with their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from duality.protocols import Tail
from duality.samplers import GRIDS, SAMPLERS
from duality.studio.fields import Choice, Field, Form, Number, Pairs, Text, Whole, Yes
from duality.studio.limits import Limits

LIMITS = Limits()

SAMPLING: Mapping[str, Field] = {
    "run": Text("which model: an id that GET /api/runs lists", required=True, most=300),
    "steps": Whole("network calls; the model's own number if absent", least=1, most=LIMITS.steps),
    "sampler": Choice("how it is written; the model's own sampler if absent", words=("own", *SAMPLERS)),
    "eta": Number("the strength of a psi sampler", least=0.0, most=1.0),
    "grid": Choice("where the steps are", words=tuple(GRIDS)),
    "tail": Choice("how the last step chooses the tokens", words=get_args(Tail)),
    "temperature": Number("below 1 sharpens the belief", above=0.0, most=100.0),
    "top_p": Number("the share of the belief that is drawn from", 1.0, above=0.0, most=1.0),
    "label": Text("the class to write in", most=300),
    "guidance": Number("how much the class counts", least=0.0, most=100.0),
    "seed": Whole("the same seed gives the same text", 0, most=(1 << 63) - 1),
    "num": Whole("how many samples", 1, least=1, most=LIMITS.samples),
    "stream": Yes("whether every step is sent as it is taken (server-sent events)", False),
    "alternatives": Whole("how many of the most likely tokens of each place are sent with every step", 0, most=10),
}

GENERATE = Form(
    {
        **SAMPLING,
        "prompt": Text("what the text begins with", ""),
        "suffix": Text("what the text ends with", ""),
        "keep": Pairs("tokens that stay: pairs [place, token]", {}),
        "length": Whole("tokens of a sample; those of training if absent", least=1, most=LIMITS.length),
    }
)
FILL = Form(
    {
        **SAMPLING,
        "text": Text("a text with blanks", required=True),
        "blank": Text("how a blank is written", "___", most=100),
        "tokens_per_blank": Whole("tokens of a blank; those of a word if absent", least=1, most=LIMITS.length),
    }
)
LIKELIHOOD = Form(
    {
        "run": SAMPLING["run"],
        "text": Text("the text to measure", required=True),
        "draws": Whole("draws of time and noise", 16, least=1, most=LIMITS.draws),
        "seed": SAMPLING["seed"],
        "label": SAMPLING["label"],
    }
)
JUDGE = Form({"text": Text("the text that the judge reads", required=True)})
