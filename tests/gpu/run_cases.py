"""Run the cases of a group on the pretend GPU and print what came out as JSON: ``run_cases.py LIBRARY GROUP FOLDER``.

The library of ``guard.cpp`` has to be loaded before torch is imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from pathlib import Path


def main(library: str, group: str, folder: str) -> None:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    import torch
    from gpu import device
    from gpu.cases import GROUPS

    torch.set_num_threads(1)
    device.install()
    found: dict[str, object] = {}
    for number, (name, case) in enumerate(GROUPS[group].items()):
        place = Path(folder) / str(number)
        place.mkdir()
        try:
            found[name] = case(place, device)
        except Exception:
            found[name] = traceback.format_exc()
    sys.__stdout__.write(json.dumps(found))  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
    os._exit(0)  # what PyTorch does at its end asks the GPU, which is not there


if __name__ == "__main__":
    main(*sys.argv[1:])
