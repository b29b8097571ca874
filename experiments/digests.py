"""Digests of short runs: what every recipe computes for a fixed seed, as a few hexadecimal digits each.

A change that should not change numbers (a move, a rename) must leave every line as it was:

    OMP_NUM_THREADS=1 python experiments/digests.py > before.txt      # on the commit before the change
    OMP_NUM_THREADS=1 python experiments/digests.py > after.txt       # on the commit after it
    diff before.txt after.txt

Everything goes through the command line, so that the same script runs on both commits. A line holds the digest of
the losses and gradient norms of every step, of the weights at the end (raw and averaged), of the likelihood, and of
samples.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = "12"
RECIPES = (
    "duo-laptop",
    "duo-laptop-authors",
    "udlm-laptop",
    "mdlm-laptop",
    "sedd-uniform-laptop",
    "sedd-absorb-laptop",
    "d3pm-uniform-laptop",
    "d3pm-absorb-laptop",
    "ar-laptop",
    "plaid-laptop",
    "diffusion-lm-laptop",
    "diffusion-bert-laptop",
    "bert-mouth-laptop",
)
SAMPLES: dict[str, tuple[str, ...]] = {
    "own": (),
    "greedy": ("--tail", "greedy", "--steps", "5"),
    "greedy, own steps": ("--tail", "greedy"),
    "filtered": ("--steps", "5", "--top-p", "0.9", "--temperature", "0.8", "--prompt", "The ", "--suffix", "."),
    "psi": ("--steps", "6", "--sampler", "psi-rescale", "--eta", "0.2"),
    "loop": ("--steps", "6", "--sampler", "psi-loop"),
    "guided": ("--steps", "4", "--label", "melville", "--guidance", "2"),
    "labelled": ("--steps", "4", "--label", "melville"),
}
EXTRA = {
    "duo-laptop": ("own", "greedy", "filtered", "psi", "loop"),
    "mdlm-laptop": ("own", "greedy", "filtered", "psi"),
    "duo-laptop-authors": ("own", "guided", "labelled"),
    "ar-laptop": ("own", "greedy, own steps"),
    "bert-mouth-laptop": ("own", "greedy, own steps"),
}


def duality(*arguments: str) -> str:
    """What the command prints on stdout."""
    command = [sys.executable, "-m", "duality.cli", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command)}\n{result.stderr}")
    return result.stdout


def short(data: object) -> str:
    """The digest of JSON data or of bytes."""
    content = data if isinstance(data, bytes) else json.dumps(data, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:12]


def training(run: Path) -> str:
    """The digest of the losses of every step, and of the weights."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [(row["step"], row["loss"], row["gradient_norm"]) for row in rows if "loss" in row]
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    weights = [short((newest / f"{group}.safetensors").read_bytes()) for group in ("model", "ema")]
    return f"losses {short(losses)} weights {' '.join(weights)}"


def results(run: Path, kinds: tuple[str, ...]) -> str:
    """The digest of likelihood and samples."""
    found = json.loads(duality("eval", str(run), "--limit", "8", "--draws", "2", "--json"))
    lines = [f"nats {found['nats_per_token']!r}"]
    for kind in kinds:
        written = duality("sample", str(run), "--num", "3", "--json", *SAMPLES[kind]).splitlines()
        lines.append(f"{kind} {short([json.loads(line)['tokens'] for line in written])}")
    return " ".join(lines)


def main() -> None:
    names = sys.argv[1:] or RECIPES
    every = ("--set", "training.log_every=1", "training.eval_every=0")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            run = Path(folder) / name
            duality("train", name, "--out", str(run), "--steps", STEPS, *every)
            print(name, training(run), results(run, EXTRA.get(name, ("own", "greedy"))), flush=True)
        for name in ("duo-laptop", "mdlm-laptop", "diffusion-bert-laptop"):
            if name in names:
                run, out = Path(folder) / name, Path(folder) / f"{name}-distilled"
                duality("distill", str(run), "--out", str(out), "--rounds", "2", "--round-steps", "4", *every)
                print(f"{name} distilled", training(out), results(out, ("own", "greedy")), flush=True)


if __name__ == "__main__":
    main()
