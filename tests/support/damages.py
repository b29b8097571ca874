"""Damages of files: each is a function of the bytes and of a source of random numbers, and gives other bytes."""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from typing import Any

ODD = (0, 1, -1, 255, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -(1 << 63))
VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    1 << 40,
    10**30,
    1e308,
    float("nan"),
    "",
    "../../x",
    [],
    {},
    [[[[]]]],
    {"a": {"b": 1}},
)

Damage = Callable[[bytes, random.Random], bytes]


def flip_bits(data: bytes, draw: random.Random) -> bytes:
    """One to eight bits anywhere."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def flip_ends(data: bytes, draw: random.Random) -> bytes:
    """Bits of the first or last bytes, where the headers are."""
    size = min(len(data), 256)
    if draw.random() < 0.5:
        return flip_bits(data[:size], draw) + data[size:]
    return data[: len(data) - size] + flip_bits(data[len(data) - size :], draw)


def cut_short(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def cut_out(data: bytes, draw: random.Random) -> bytes:
    """Without some bytes in the middle."""
    start, stop = sorted(draw.randrange(len(data)) for _ in range(2))
    return data[:start] + data[stop:]


def repeat_part(data: bytes, draw: random.Random) -> bytes:
    """The whole twice, or a part."""
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data + data if draw.random() < 0.3 else data[:stop] + data[start:]


def zero_block(data: bytes, draw: random.Random) -> bytes:
    start, size = draw.randrange(len(data)), draw.choice((1, 8, 64, 512))
    return data[:start] + bytes(min(size, len(data) - start)) + data[start + size :]


def swap_blocks(data: bytes, draw: random.Random) -> bytes:
    """Two blocks of one size, exchanged."""
    size = min(draw.choice((4, 8, 64, 512)), len(data) // 2)
    one, other = sorted(draw.randrange(len(data) // size) * size for _ in range(2))
    ends = data[other + size :]
    return data[:one] + data[other : other + size] + data[one + size : other] + data[one : one + size] + ends


def change_length(data: bytes, draw: random.Random) -> bytes:
    """Another number of two, four or eight bytes: in the first or last ones, or anywhere on a multiple of its size."""
    size = draw.choice((2, 4, 8))
    last = max(0, len(data) - size)
    place = draw.choice((0, last, draw.randrange(min(last, 96) + 1), draw.randrange(last // size + 1) * size))
    own = int.from_bytes(data[place : place + size], "little")
    number = draw.choice((*ODD, own + 1, own - 1, own * 2, len(data), len(data) + 1))
    return data[:place] + (number % (1 << 8 * size)).to_bytes(size, "little") + data[place + size :]


def change_number(data: bytes, draw: random.Random) -> bytes:
    """Other digits for a number of a text, such as the header of a safetensors file."""
    found = list(re.finditer(rb"(?<![\w.])\d+", data[:4096]))
    if not found:
        return flip_bits(data, draw)
    one = draw.choice(found)
    return data[: one.start()] + str(draw.choice((*ODD, 10**30, int(one[0][:18]) + 1))).encode() + data[one.end() :]


def change_value(data: bytes, draw: random.Random) -> bytes:
    """Another value at a place of JSON, or a name that is missing; in a safetensors file the header is JSON."""
    size = int.from_bytes(data[:8], "little")
    head = (b"", data, b"") if size > len(data) else (data[:8], data[8 : 8 + size], data[8 + size :])
    try:
        content = json.loads(head[1])
    except ValueError:
        return change_number(data, draw)
    places: list[tuple[Any, Any]] = []
    level = [content]
    while level:
        inside = [(each, key) for each in level for key in (each if isinstance(each, dict) else range(len(each)))]
        places += inside
        level = [each[key] for each, key in inside if isinstance(each[key], (dict, list))]
    if not places:
        return flip_bits(data, draw)
    where, key = draw.choice(places)
    if draw.random() < 0.15:
        del where[key]
    else:
        other, name = draw.choice(places)
        where[key] = draw.choice((*VALUES, other[name]))
    text = json.dumps(content).encode()
    return text if not head[0] else len(text).to_bytes(8, "little") + text + head[2]


def repack_member(data: bytes, draw: random.Random) -> bytes:
    """A damaged member of a zip archive that has its right checksum all the same."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    except (zipfile.BadZipFile, OSError):
        return change_value(data, draw)
    chosen = draw.choice([name for name, content in entries if content])
    if draw.random() < 0.6:
        chosen = next(name for name, _ in entries if name.endswith("data.pkl"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in entries:
            change = draw.choice((flip_bits, cut_short, cut_out, swap_blocks, change_length, change_number))
            archive.writestr(name, change(content, draw) if name == chosen else content)
    return made.getvalue()


def swap_members(data: bytes, draw: random.Random) -> bytes:
    """The contents of two members of a zip archive, exchanged where they are, or written under each other's names."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [(entry, archive.read(entry)) for entry in archive.infolist()]
    except (zipfile.BadZipFile, OSError):
        return swap_blocks(data, draw)
    one, other = draw.sample(range(len(entries)), 2)
    size = min(len(entries[one][1]), len(entries[other][1]))
    contents = (entries[one][1][:size], entries[other][1][:size])
    places = [data.find(content) for content in contents]
    changed = bytearray(data)
    for place, content in zip(places, reversed(contents)):
        changed[place : place + size] = content
    return bytes(changed)


DAMAGES: tuple[Damage, ...] = (
    *(flip_bits, flip_bits, flip_ends, cut_short, cut_out, repeat_part, zero_block, swap_blocks),
    *(change_length, change_length, change_number, change_value, change_value, change_value),
    *(swap_members, repack_member, repack_member),
)


def damaged(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """The name of a damage, and other bytes than the file had."""
    for _ in range(100):
        damage = draw.choice(DAMAGES)
        if data and (changed := damage(data, draw)) != data:
            return damage.__name__, changed
    return "filled", b"\x00"
