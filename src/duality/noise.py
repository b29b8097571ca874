"""Randomness as a function instead of a state.

Every random number is ``mix(key of the sample, tag, counter)`` where a sample's key is
``mix(seed, step, index of the sample in the global batch)``. Nothing is consumed and nothing has to
be saved, so

- splitting a batch over processes, devices or accumulation steps changes no number;
- a resumed run draws what the uninterrupted run would have drawn;
- the i-th generated sample of a seed does not depend on how many others are generated.

One rule must be followed: the same tag gives the same numbers again, therefore each draw has its
own tag (``noise.uniform("route", L)``) and loops fold their counter in (``noise.fold(i)``).

The mixer is the finaliser of SplitMix64 (Steele, Lea & Flood, 2014) in wrapping 64-bit integers: it is
exact on every device, and fast, because tags and counters are mixed once for the whole batch, and because a CPU makes
its dozen passes over a block of words that fits its cache.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = (1 << 64) - 1
_BLOCK = 1 << 16  # words mixed at a time on a CPU: half a megabyte, a core's cache


def _to_signed(value: int) -> int:
    """The two's-complement int64 with the same 64 bits."""
    value &= _WORD
    return value - (1 << 64) if value >> 63 else value


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift, as a new tensor; torch's ``>>`` on int64 copies the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection of 64-bit words in which every input bit reaches every output bit."""
    x = _shift_right(x, 30).bitwise_xor_(x).mul_(_to_signed(_FACTORS[0]))
    x = _shift_right(x, 27).bitwise_xor_(x).mul_(_to_signed(_FACTORS[1]))
    return _shift_right(x, 31).bitwise_xor_(x)


def _mix_on_host(x: int) -> int:
    """``_mix`` of one word, as an integer of the host: a device is given it without a copy or a wait."""
    x &= _WORD
    x = (x ^ x >> 30) * _FACTORS[0] & _WORD
    x = (x ^ x >> 27) * _FACTORS[1] & _WORD
    return _to_signed(x ^ x >> 31)


def _word(value: int | str) -> int:
    """A mixed 64-bit word for an integer or a tag."""
    return _mix_on_host((_checksum(value) if isinstance(value, str) else value) * _GOLDEN + _FACTORS[0])


def _checksum(tag: str) -> int:
    """The number of a tag."""
    return zlib.crc32(tag.encode())


# To torch.compile it is a constant. ``torch.compiler.assume_constant_result`` does this, and takes a second to import.
_checksum._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_seed(seed: int, name: str = "seed") -> None:
    """Refuse a seed that is negative, or so large that it would have the noise of another one.

    >>> check_seed(2**63)
    Traceback (most recent call last):
    ValueError: seed is 9223372036854775808: it must be a whole number from 0 to 2**63 - 1
    """
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"{name} is {seed}: it must be a whole number from 0 to 2**63 - 1")


@dataclass(frozen=True)
class Noise:
    """One 64-bit key per sample; results have the shape ``(len(keys), *shape)``."""

    keys: Tensor

    @staticmethod
    def of(seed: int, step: int, index: Tensor) -> Noise:
        """The noise of samples ``index`` of the global batch at ``step`` of the run with ``seed``."""
        check_seed(seed)
        keys = _mix(index.to(torch.int64) * _to_signed(_GOLDEN) ^ _word(seed))
        return Noise(_mix(keys ^ _word(step)))

    def fold(self, data: int | str) -> Noise:
        """Independent noise for the same samples, named by ``data``."""
        return Noise(_mix(self.keys ^ _word(data)))

    def select(self, rows: Tensor) -> Noise:
        """The noise of some of the samples."""
        return Noise(self.keys[rows])

    def bits(self, tag: str, *shape: int) -> Tensor:
        """Uniform 64-bit words as int64; a new tensor, which the caller may overwrite."""
        keys, count, device = self.fold(tag).keys[:, None], prod(shape), self.keys.device
        words = torch.empty(len(keys), count, dtype=torch.int64, device=device)
        # numbers on a CPU, and no shapes alone, whose work is calls
        cached = device.type == "cpu" and type(self.keys) is Tensor and not torch.compiler.is_compiling()
        block = max(1, _BLOCK // max(1, len(keys)) if cached else count)
        for start in range(0, count, block):
            counter = torch.arange(start, min(start + block, count), dtype=torch.int64, device=device)
            words[:, start : start + block] = _mix(keys ^ _mix(counter * _to_signed(_GOLDEN)))
        return words.view(len(self.keys), *shape)

    def uniform(self, tag: str, *shape: int) -> Tensor:
        """Uniform float64 in the open interval (0, 1), on a grid of 2^-52 centred so that 0 and 1 never occur."""
        words = self.bits(tag, *shape).bitwise_right_shift_(12).bitwise_and_((1 << 52) - 1)
        return words.to(torch.float64).add_(0.5).mul_(2.0**-52)

    def normal(self, tag: str, *shape: int) -> Tensor:
        """Standard normal float64, by the inverse distribution function."""
        values: Tensor = torch.special.ndtri(self.uniform(tag, *shape))
        return values

    def integers(self, tag: str, high: int, *shape: int) -> Tensor:
        """Uniform integers in [0, high); the bias is at most high / 2^52."""
        return self.uniform(tag, *shape).mul_(high).to(torch.int64)

    def keep(self, tag: str, probability: float, *shape: int) -> Tensor:
        """Factors of dropout: 1 / q with probability q, else 0; q is ``probability`` in 16 bits, neither 0 nor 1."""
        level = min(max(round(probability * 65536), 1), 65535)
        words = self.bits(tag, (prod(shape) + 3) // 4).view(torch.int16)[:, : prod(shape)]
        # Compared in place: torch's comparison of two-byte integers is several times slower when it has to make a bool.
        kept = words.lt_(level - 32768).to(torch.get_default_dtype()).mul_(65536.0 / level)
        return kept.view(len(self.keys), *shape)


def stratified_times(seed: int, step: int, batch_size: int, device: torch.device | str = "cpu") -> Tensor:
    """One time in each of ``batch_size`` equal strata of (0, 1), in random order: float64, for the global batch.

    The order is random so that a process, which has a slice of the batch, gets times from all of (0, 1).
    """
    noise = Noise.of(seed, step, torch.zeros(1, dtype=torch.int64, device=device)).fold("times")
    stratum = noise.uniform("order", batch_size)[0].argsort()
    return (stratum + noise.uniform("offset", batch_size)[0]) / batch_size
