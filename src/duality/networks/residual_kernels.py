"""Kernels of ``networks.residual``: dropout, gate and residual in one pass, from the keys of the noise.

The factors of dropout are those of ``Noise.keep``, bit for bit: word w of a sample is mix(key xor mix(w times the
golden ratio)) and decides four elements, 16 bits each. A program has ``ROWS`` positions of one sample and 4 ``WORDS``
of its D columns. This module needs triton and is imported where a kernel runs.
"""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _draw_factors(key, word, level, scale):
    """Factors of dropout (WORDS, 4) from the words of a sample."""
    bits = _mix(key ^ _mix(word.to(tl.uint64) * 0x9E3779B97F4A7C15))
    shift = 16 * tl.arange(0, 4).to(tl.uint64)
    signed = (bits[:, None] >> shift[None, :]).to(tl.int16)
    return tl.where(signed.to(tl.int32) < level, scale, 0.0)


@triton.jit
def add_dropped(
    x_ptr, update_ptr, gate_ptr, keys, out, length, level, scale,
    D: tl.constexpr, GATE: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """x + gate * (update * factors of dropout)."""
    sample = tl.program_id(0).to(tl.int64)
    word = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    column = 4 * word[:, None] + tl.arange(0, 4)[None, :]
    inside = column < D
    key = tl.load(keys + sample).to(tl.uint64, bitcast=True)
    gate = tl.full((WORDS, 4), 1.0, tl.float32)
    if GATE:
        gate = tl.load(gate_ptr + sample * D + column, mask=inside, other=0.0).to(tl.float32)
    first = tl.program_id(1) * ROWS
    for row in range(first, tl.minimum(first + ROWS, length)):
        place = (sample * length + row) * D + column
        factor = _draw_factors(key, row * (D // 4) + word, level, scale)
        update = tl.load(update_ptr + place, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + place, (x + gate * (update * factor)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def pull_dropped(
    slope_ptr, update_ptr, gate_ptr, keys, out, sums, length, level, scale,
    D: tl.constexpr, GATE: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """The gradient of update, and parts of that of gate: (B, programs, D)."""
    sample = tl.program_id(0).to(tl.int64)
    word = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    column = 4 * word[:, None] + tl.arange(0, 4)[None, :]
    inside = column < D
    key = tl.load(keys + sample).to(tl.uint64, bitcast=True)
    gate = tl.full((WORDS, 4), 1.0, tl.float32)
    if GATE:
        gate = tl.load(gate_ptr + sample * D + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((WORDS, 4), tl.float32)
    first = tl.program_id(1) * ROWS
    for row in range(first, tl.minimum(first + ROWS, length)):
        place = (sample * length + row) * D + column
        factor = _draw_factors(key, row * (D // 4) + word, level, scale)
        slope = tl.load(slope_ptr + place, mask=inside, other=0.0).to(tl.float32) * factor
        tl.store(out + place, (slope * gate).to(out.dtype.element_ty), mask=inside)
        if GATE:
            total += slope * tl.load(update_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if GATE:
        tl.store(sums + (sample * tl.num_programs(1) + tl.program_id(1)) * D + column, total, mask=inside)
