"""The paper *The Diffusion Duality*: its index, its claims and its studies.

index       the paper's tables and figures, and the trainings that give ours (paper.json)
page        the page docs/paper.md, and how long the trainings of the index take (gpu_days.json)
reproduce   the paper's claims, tried by one command
variance    the variance of gradients

What the paper says and what is tried are JSON files, with the fields of the classes that read them.
"""

from __future__ import annotations

from typing import Any

Entry = dict[str, Any]  # an object of one of these files
