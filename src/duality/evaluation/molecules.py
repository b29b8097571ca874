"""Molecules: a scorer of texts that are SMILES, and pictures of them. RDKit is imported when it is first needed.

    validity     share of the texts that are a molecule: RDKit reads them, and there is an atom (an empty text has none)
    uniqueness   of the molecules, those that are different, divided by all
    coverage     different molecules of the held-out texts that are hit, divided by the number of texts
    novelty      share of the molecules that the training texts do not contain
    diversity    1 - Tanimoto similarity, mean over the pairs of molecules (Morgan fingerprints, radius 2, 2048 bits)

Molecules are compared by their canonical SMILES. All but validity and coverage are among the valid texts; an invalid
text has no number there. Coverage falls both when texts are wrong and when they repeat, and what was learned by heart
does not count. Novelty says whether a model repeats its training texts; it is no diversity: where a corpus lists nearly
all molecules of its size, as QM9 does, a perfect model writes known ones, and novelty falls as a model gets better.

Diversity, uniqueness and coverage are statistics of the set and not means over texts. They are given as numbers whose
mean is the statistic, and whose spread gives the bootstrap its right interval:

- diversity U, a mean over pairs: the jackknife pseudo-values 2 r_i - U, where r_i is the molecule's mean distance to
  the others. Their mean is U, as the mean of r_i is U, and their variance divided by n is the variance of U (to order 1
  / n), because a molecule has a part in two of n of the pairs.
- uniqueness and coverage: ``metrics.occupancy``. The interval of a set with few equal molecules may end above 1.

What must hold: the numbers of a set of texts do not depend on anything but the texts and the training texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from duality.data.conversions import rdkit
from duality.evaluation.metrics import occupancy
from duality.evaluation.scorers import Numbers, ScorerContext, Texts
from duality.files.atomic import readable_size, write_atomically
from duality.files.cache import cache_errors, cache_folder

_PICTURES = 12
_PANEL = (230, 190)
_WIDTH = 4  # molecules beside each other in a picture


def _read(text: str) -> Any:
    """The molecule that RDKit makes of a text, without a message about one that is none; None for that."""
    with rdkit("rdkit.rdBase").BlockLogs():
        return rdkit("rdkit.Chem").MolFromSmiles(text)


def _canonical(text: str) -> str | None:
    """The canonical SMILES of a text, CCO for OCC; None if the text is no molecule."""
    molecule = _read(text)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    return str(rdkit("rdkit.Chem").MolToSmiles(molecule))


@dataclass(frozen=True)
class Molecules:
    """The scorer of SMILES. Without training texts, given by a context, there is no novelty."""

    context: ScorerContext | None = None

    @classmethod
    def from_context(cls, context: ScorerContext) -> Molecules:
        """The scorer for runs that were trained on these texts."""
        rdkit("rdkit.Chem")  # a user should know before anything is sampled
        return cls(context)

    @property
    def name(self) -> str:
        return "molecules"

    @property
    def version(self) -> str:
        """The version of the numbers and of RDKit, and the training texts, decide the numbers."""
        known = "" if self.context is None else f", training texts {self.context.training_id[:12]}"
        return f"2, RDKit {rdkit().__version__}{known}"

    @property
    def columns(self) -> tuple[str, ...]:
        known = ((), ()) if self.context is None else (("coverage",), ("novelty",))
        return ("validity", *known[0], "uniqueness", *known[1], "diversity")

    @cached_property
    def known(self) -> frozenset[str]:
        """The canonical SMILES of the training texts."""
        if self.context is None:
            raise ValueError("novelty needs training texts: make the scorer with Molecules.from_context")
        return self._canonical_set("", self.context.training_texts)

    @cached_property
    def held_out(self) -> frozenset[str]:
        """The canonical SMILES of the held-out texts that are not among the training texts."""
        if self.context is None:
            raise ValueError("coverage needs held-out texts: make the scorer with Molecules.from_context")
        return self._canonical_set("held out ", self.context.held_out_texts) - self.known

    def _canonical_set(self, part: str, texts: Callable[[], Texts]) -> frozenset[str]:
        """The canonical SMILES of some texts; made once, and kept in the cache folder with a checksum."""
        assert self.context is not None
        digest = hashlib.sha256(f"{part}{self.context.training_id} {self.version}".encode()).hexdigest()
        path = cache_folder() / "molecules" / f"{digest}.txt"
        if self.context.training_id and path.is_file():
            first, _, data = path.read_bytes().partition(b"\n")
            if first == f"sha256 {hashlib.sha256(data).hexdigest()}".encode():  # else the file was changed
                return frozenset(data.decode("utf-8").splitlines())
        found = frozenset(filter(None, map(_canonical, texts())))
        if self.context.training_id:
            content = "".join(f"{text}\n" for text in sorted(found))
            with cache_errors(cache_folder(), "the training molecules", lambda: readable_size(len(content))):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, f"sha256 {hashlib.sha256(content.encode('utf-8')).hexdigest()}\n{content}")
        return found

    def __call__(self, texts: Texts) -> Numbers:
        molecules = [_canonical(text) for text in texts]
        valid = [text for text in molecules if text is not None]
        among_valid: dict[str, Sequence[float | None]] = {
            "uniqueness": occupancy(valid),
            **({} if self.context is None else {"novelty": [float(text not in self.known) for text in valid]}),
            "diversity": _diversity([text for text, known in zip(texts, molecules) if known]),
        }
        found: dict[str, Sequence[float | None]] = {"validity": [float(text is not None) for text in molecules]}
        if self.context is not None:
            found["coverage"] = occupancy([text if text in self.held_out else None for text in molecules])
        for name, numbers in among_valid.items():
            following = iter(numbers)
            found[name] = [None if text is None else next(following) for text in molecules]
        return found

    def draw(self, texts: Texts, path: Path) -> list[Path]:
        """The first twelve texts as a grid of molecules, in PATH.svg and PATH.png: the valid ones first.

        Below each molecule stands its canonical SMILES; a text that is no molecule stands below the word "invalid".
        """
        drawing = rdkit("rdkit.Chem.Draw.rdMolDraw2D")
        if not texts:
            raise ValueError("nothing to draw: give at least one text")
        found = sorted(((_canonical(text), text) for text in texts[:_PICTURES]), key=lambda pair: pair[0] is None)
        legends = [known or text or "(empty)" for known, text in found]
        invalid = rdkit("rdkit.Chem").MolFromSmiles("*")  # an atom of no element, drawn as its label
        invalid.GetAtomWithIdx(0).SetProp("_displayLabel", "invalid")
        molecules = [invalid if known is None else _read(text) for known, text in found]
        width, height = min(_WIDTH, len(legends)) * _PANEL[0], -(-len(legends) // _WIDTH) * _PANEL[1]
        kinds = {".svg": drawing.MolDraw2DSVG, ".png": drawing.MolDraw2DCairo}
        written = [path.with_name(path.name + ending) for ending in kinds]
        for target, kind in zip(written, kinds.values()):
            canvas = kind(width, height, *_PANEL)
            canvas.drawOptions().legendFraction = 0.16
            canvas.DrawMolecules(molecules, legends=legends)
            canvas.FinishDrawing()
            picture = canvas.GetDrawingText()
            target.write_bytes(picture if isinstance(picture, bytes) else picture.encode("utf-8"))
        return written


def _diversity(texts: Texts) -> list[float | None]:
    """The jackknife pseudo-values of the mean distance between two molecules; None without a pair.

    The texts are valid ones as they were written: not every canonical SMILES can be read again.
    """
    size = len(texts)
    if size < 2:
        return [None] * size
    structures = rdkit("rdkit.DataStructs")
    generator = rdkit("rdkit.Chem.rdFingerprintGenerator").GetMorganGenerator(radius=2, fpSize=2048)
    prints = [generator.GetFingerprint(_read(text)) for text in texts]
    # a fingerprint is in its own row with similarity 1, and thus with distance 0
    means = [sum(structures.BulkTanimotoSimilarity(each, prints, returnDistance=True)) / (size - 1) for each in prints]
    mean = sum(means) / size
    return [2 * value - mean for value in means]
