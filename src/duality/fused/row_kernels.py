"""Row kernels for GPUs: what the formulas of ``fused.formulas`` read of a row of logits, and what they write into it.

A *reduction* has one program per row, which passes over the row in blocks: the largest logit, then sums. The first pass
reads memory, later ones the cache. A *pull* replaces the logits by their gradient and needs no more than a few numbers
per row: a program has some columns of ``ROWS`` rows, and adds up the gradient of the bias on the way.

float32 is enough for a state, not for a sum of 50 000: every lane of a block has its own sum with the part that
rounding lost (Kahan), the lanes are added in float64, and what is computed once per row is float64. The states that a
loss names, x and z, are left out of the sums: what happens at them is computed in float64 by the caller.

This module needs triton and is imported where a kernel runs (``fused.kernels``). A row is ``ld`` elements long, K of
them are logits; numbers per row are (C, n), one row for each.

What must hold: the numbers and gradients are those of ``fused.formulas`` (tests/gpu/test_row_kernels.py).
"""

import triton
import triton.language as tl


@triton.jit
def _exp(x):
    """e^x of x <= 0, to one unit of the last place; 0 below -87."""
    shifted = x * 1.4426950408889634 + 12582912.0  # the nearest whole number is in its last bits
    whole = shifted - 12582912.0
    rest = (x - whole * 0.693359375) + whole * 2.1219444e-4  # x - whole log 2, whose first part is exact
    power = 0.008333334 + rest * (0.0013888889 + rest * 0.0001984127)
    power = 1.0 + (rest + rest * rest * (0.5 + rest * (0.16666667 + rest * (0.041666667 + rest * power))))
    scale = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
    return tl.where(x < -87.0, 0.0, power * scale)


@triton.jit
def _log_excess(f):
    """f - log(1 + f) of f in [-0.25, 1], without a difference of large parts."""
    ratio = f / (2.0 + f)
    square = ratio * ratio
    series = 0.2857143 + square * (0.22222222 + square * (0.18181819 + square * 0.15384616))
    series = square * (0.6666667 + square * (0.4 + square * series))
    half = 0.5 * f * f
    return half - ratio * (half + series)


@triton.jit
def _log1p(u):
    """k and l with log(1 + u) = k log 2 + l, u >= 0, |l| < 0.41: sums of k are exact, and l has a small error."""
    near = 1.0 + u
    lost = tl.where(u < 1.0, u - (near - 1.0), 1.0 - (near - u))
    bits = near.to(tl.int32, bitcast=True)
    k = (bits - 0x3F400000) >> 23
    f = (bits - (k << 23)).to(tl.float32, bitcast=True) - 1.0
    f += lost * ((127 - k) << 23).to(tl.float32, bitcast=True)
    return k, f - _log_excess(f)


@triton.jit
def _add(total, lost, value):
    """A sum and what rounding lost of it, with one more value."""
    value -= lost
    after = total + value
    return after, (after - total) - value


@triton.jit
def _finish(total, lost):
    return tl.sum(total.to(tl.float64) - lost.to(tl.float64), 0)


@triton.jit
def _load(base, column, state, evidence, K: tl.constexpr, EVIDENCE: tl.constexpr):
    """Logits, with ``evidence`` added at one state."""
    logits = tl.load(base + column, mask=column < K, other=-float("inf")).to(tl.float32)
    if EVIDENCE:
        logits = tl.where(column == state, logits + evidence, logits)
    return logits


@triton.jit
def _find_largest(base, state, evidence, K: tl.constexpr, EVIDENCE: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, K, BLOCK):
        largest = tl.maximum(largest, _load(base, start + lane, state, evidence, K, EVIDENCE))
    return tl.max(largest, 0)


@triton.jit
def _sum_exp(base, largest, skip, other, state, evidence, K: tl.constexpr, EVIDENCE: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of exp(logit - largest) over the states that are neither ``skip`` nor ``other``, in float64."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    lost = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, K, BLOCK):
        column = start + lane
        each = _exp(_load(base, column, state, evidence, K, EVIDENCE) - largest)
        total, lost = _add(total, lost, tl.where((column == skip) | (column == other), 0.0, each))
    return _finish(total, lost)


@triton.jit
def reduce_exponentials(
    logits, ld, skip_ptr, state_ptr, out, n, K: tl.constexpr, TOTAL: tl.constexpr, BLOCK: tl.constexpr
):
    """The largest logit, the sum of exp(logit - largest) without one state, the logit of a state; with ``TOTAL`` the
    sum of the logits without that one state."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * ld
    skip = tl.load(skip_ptr + row)
    largest = _find_largest(base, -1, 0.0, K, False, BLOCK)
    tl.store(out + row, largest.to(tl.float64))
    tl.store(out + n + row, _sum_exp(base, largest, skip, skip, -1, 0.0, K, False, BLOCK))
    tl.store(out + 2 * n + row, tl.load(base + tl.load(state_ptr + row)).to(tl.float64))
    if TOTAL:
        lane = tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        lost = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, K, BLOCK):
            column = start + lane
            each = _load(base, column, -1, 0.0, K, False)
            total, lost = _add(total, lost, tl.where((column < K) & (column != skip), each, 0.0))
        tl.store(out + 3 * n + row, _finish(total, lost))


@triton.jit
def reduce_log_count(logits, ld, kappa_ptr, z_ptr, x_ptr, out, n, K: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit, the sum of exp(logit - largest) without z and x, the logits of z and x, a factor f with which
    u = f exp(logit - largest) is kappa p up to rounding, and over the states that are neither z nor x

        kappa > 1     sum log(1 + u)        and  sum u / (1 + u)
        kappa <= 1    sum u - log(1 + u)    and  sum u^2 / (1 + u)
    """
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * ld
    z = tl.load(z_ptr + row)
    x = tl.load(x_ptr + row)
    kappa = tl.load(kappa_ptr + row)
    largest = _find_largest(base, -1, 0.0, K, False, BLOCK)
    rest = _sum_exp(base, largest, z, x, -1, 0.0, K, False, BLOCK)
    at_z = tl.load(base + z).to(tl.float32)
    at_x = tl.load(base + x).to(tl.float32)
    named = _exp(at_z - largest) + tl.where(z == x, 0.0, _exp(at_x - largest))
    factor = (kappa / (rest + named.to(tl.float64))).to(tl.float32)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    lost = tl.zeros((BLOCK,), tl.float32)
    share = tl.zeros((BLOCK,), tl.float32)
    lost_share = tl.zeros((BLOCK,), tl.float32)
    twos = tl.zeros((BLOCK,), tl.int32)
    if kappa > 1.0:
        for start in range(0, K, BLOCK):
            column = start + lane
            u = factor * _exp(_load(base, column, -1, 0.0, K, False) - largest)
            u = tl.where((column == z) | (column == x), 0.0, u)
            k, each = _log1p(u)
            twos += k
            total, lost = _add(total, lost, each)
            share, lost_share = _add(share, lost_share, u / (1.0 + u))
    else:
        for start in range(0, K, BLOCK):
            column = start + lane
            u = factor * _exp(_load(base, column, -1, 0.0, K, False) - largest)
            u = tl.where((column == z) | (column == x), 0.0, u)
            total, lost = _add(total, lost, _log_excess(u))
            share, lost_share = _add(share, lost_share, u * u / (1.0 + u))
    tl.store(out + row, largest.to(tl.float64))
    tl.store(out + n + row, rest)
    tl.store(out + 2 * n + row, at_z.to(tl.float64))
    tl.store(out + 3 * n + row, at_x.to(tl.float64))
    tl.store(out + 4 * n + row, factor.to(tl.float64))
    tl.store(out + 5 * n + row, _finish(total, lost) + tl.sum(twos, 0).to(tl.float64) * 0.6931471805599453)
    tl.store(out + 6 * n + row, _finish(share, lost_share))


@triton.jit
def pull_exponentials(
    logits, ld, z_ptr, x_ptr, factors, sums, n,
    K: tl.constexpr, SHARES: tl.constexpr, SUMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient  a exp(logit - largest) + b,  and given numbers at z and x; that of z if both are one.

    ``factors`` (C, n) are largest, the numbers at z and x, a, b. With ``SHARES`` instead of a and b: f, a, b, c for

        exp(logit - largest) (a - b u / (1 + u)) if u < 1, (b / (1 + u) - c) otherwise;    u = f exp(logit - largest)
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < K
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(first, tl.minimum(first + ROWS, n)):
        place = logits + row * ld + column
        each = tl.load(place, mask=inside, other=-float("inf")).to(tl.float32)
        each = tl.exp(each - tl.load(factors + row))
        if SHARES:
            u = each * tl.load(factors + 3 * n + row)
            b = tl.load(factors + 5 * n + row)
            inverse = 1.0 / (1.0 + u)
            few = tl.load(factors + 4 * n + row) - b * (u * inverse)
            each *= tl.where(u < 1.0, few, b * inverse - tl.load(factors + 6 * n + row))
        else:
            each = each * tl.load(factors + 3 * n + row) + tl.load(factors + 4 * n + row)
        each = tl.where(column == tl.load(x_ptr + row), tl.load(factors + 2 * n + row), each)
        each = tl.where(column == tl.load(z_ptr + row), tl.load(factors + n + row), each)
        tl.store(place, each.to(logits.dtype.element_ty), mask=inside)
        if SUMS:
            total += each
    if SUMS:
        tl.store(sums + tl.program_id(0).to(tl.int64) * K + column, total, mask=inside)


@triton.jit
def _load_pair(student, target, column, inside, z, evidence, target_z, target_evidence):
    """Both logits; a state that one of them excludes has a very small one, and -inf of both is no difference."""
    one = tl.load(student + column, mask=inside, other=-float("inf")).to(tl.float32)
    two = tl.load(target + column, mask=inside, other=-float("inf")).to(tl.float32)
    one = tl.maximum(tl.where(column == z, one + evidence, one), -1e30)
    return one, tl.maximum(tl.where(column == target_z, two + target_evidence, two), -1e30)


@triton.jit
def _normalise(base, state, evidence, K: tl.constexpr, BLOCK: tl.constexpr):
    largest = _find_largest(base, state, evidence, K, True, BLOCK)
    return largest, _sum_exp(base, largest, -1, -1, state, evidence, K, True, BLOCK)


@triton.jit
def _find_side(s, t):
    """Half the sign of s - t."""
    return tl.where(s > t, 0.5, tl.where(s < t, -0.5, 0.0))


@triton.jit
def reduce_divergence(
    student_ptr, ld, target_ptr, target_ld, z_ptr, target_z_ptr, evidence, out, n,
    KIND: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest logit and sum of exp(logit - largest) of both rows, a shift, and sums. With g = logit - target's
    logit - shift, e = exp(logit - largest), s = softmax, and t that of the target, the sums are

        kl-backward   e g                 kl-forward   the target's e g
        mse           g^2, g, and 1 of states that not both exclude
        tvd           |s - t|, s (side - side of z), and the side of z; a side is half the sign of s - t

    ``evidence`` (2, n) is added to the logits of z and of the target's z. The shift is the difference at z, or for
    z = -1 the difference of the logarithms of both sums.
    """
    row = tl.program_id(0).to(tl.int64)
    student, target = student_ptr + row * ld, target_ptr + row * target_ld
    z, target_z = tl.load(z_ptr + row), tl.load(target_z_ptr + row)
    own, other = tl.load(evidence + row), tl.load(evidence + n + row)
    largest, sum_s = _normalise(student, z, own, K, BLOCK)
    largest_t, sum_t = _normalise(target, target_z, other, K, BLOCK)
    shift = ((largest.to(tl.float64) + tl.log(sum_s)) - (largest_t.to(tl.float64) + tl.log(sum_t))).to(tl.float32)
    near = tl.maximum(z, 0)
    at_z, other_at_z = _load_pair(student, target, near, near < K, z, own, target_z, other)
    shift = tl.where(z >= 0, at_z - other_at_z, shift)
    scale, scale_t = (1.0 / sum_s).to(tl.float32), (1.0 / sum_t).to(tl.float32)
    side_near = 0.0
    if KIND == "tvd":
        side_near = _find_side(_exp(at_z - largest) * scale, _exp(other_at_z - largest_t) * scale_t)
        side_near = tl.where(z >= 0, side_near, 0.0)
    lane = tl.arange(0, BLOCK)
    total, lost = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    second, lost_second = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, K, BLOCK):
        column = start + lane
        one, two = _load_pair(student, target, column, column < K, z, own, target_z, other)
        gap = (one - two) - shift
        if KIND == "kl-backward":
            total, lost = _add(total, lost, _exp(one - largest) * gap)
        if KIND == "kl-forward":
            total, lost = _add(total, lost, _exp(two - largest_t) * gap)
        if KIND == "mse":
            known = tl.maximum(one, two) > -1e30
            gap = tl.where(known, gap, 0.0)
            count += known.to(tl.int32)
            total, lost = _add(total, lost, gap * gap)
            second, lost_second = _add(second, lost_second, gap)
        if KIND == "tvd":
            s, t = _exp(one - largest) * scale, _exp(two - largest_t) * scale_t
            total, lost = _add(total, lost, tl.abs(s - t))
            second, lost_second = _add(second, lost_second, s * (_find_side(s, t) - side_near))
    numbers = out + row
    tl.store(numbers, largest.to(tl.float64))
    tl.store(numbers + n, sum_s)
    tl.store(numbers + 2 * n, largest_t.to(tl.float64))
    tl.store(numbers + 3 * n, sum_t)
    tl.store(numbers + 4 * n, shift.to(tl.float64))
    tl.store(numbers + 5 * n, _finish(total, lost))
    tl.store(numbers + 6 * n, _finish(second, lost_second))
    tl.store(numbers + 7 * n, (tl.sum(count, 0).to(tl.float32) + side_near).to(tl.float64))


@triton.jit
def pull_divergence(
    student, ld, target, target_ld, z_ptr, target_z_ptr, evidence, factors, sums, n,
    KIND: tl.constexpr, K: tl.constexpr, SUMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient: a slope times, with the letters of ``reduce_divergence``, and e_t for the target's e,

        kl-backward   a e (g - b)         kl-forward   a e - b e_t
        mse           a (g - b - c e)     tvd          s (side - side of z - c), s = a e, t = b e_t

    ``factors`` (C, n) are largest, the target's largest, shift, slope, a, b, c, and the side of z.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < K
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(first, tl.minimum(first + ROWS, n)):
        z = tl.load(z_ptr + row)
        one, two = _load_pair(
            student + row * ld, target + row * target_ld, column, inside,
            z, tl.load(evidence + row), tl.load(target_z_ptr + row), tl.load(evidence + n + row),
        )  # fmt: skip
        a = tl.load(factors + 4 * n + row)
        b = tl.load(factors + 5 * n + row)
        c = tl.load(factors + 6 * n + row)
        gap = (one - two) - tl.load(factors + 2 * n + row)
        e = _exp(one - tl.load(factors + row))
        if KIND == "kl-backward":
            each = a * e * (gap - b)
        if KIND == "kl-forward":
            each = a * e - b * _exp(two - tl.load(factors + n + row))
        if KIND == "mse":
            known = tl.maximum(one, two) > -1e30
            each = tl.where(known, a * ((gap - b) - c * e), 0.0)
        if KIND == "tvd":
            s = a * e
            t = b * _exp(two - tl.load(factors + n + row))
            side = _find_side(s, t) - tl.load(factors + 7 * n + row)
            each = s * (tl.where(column == z, 0.0, side) - c)
        each *= tl.load(factors + 3 * n + row)
        tl.store(student + row * ld + column, each.to(student.dtype.element_ty), mask=inside)
        if SUMS:
            total += each
    if SUMS:
        tl.store(sums + tl.program_id(0).to(tl.int64) * K + column, total, mask=inside)
