"""The command that an error prints for a missing extra is one that works here."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from duality import extras
from duality.extras import import_extra, install_command, install_elsewhere

WHEEL = "file:///wheels/diffusion_duality-0.1.0-py3-none-any.whl"
CLONE = {"url": "file:///home/me/my%20clone", "dir_info": {}}
EDITABLE = {"url": "file:///work/duality", "dir_info": {"editable": True}}
ARCHIVE = {"url": WHEEL, "archive_info": {}}
GIT = {"url": "https://host.example/duality.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


def install_from(origin: object, monkeypatch: pytest.MonkeyPatch) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(extras, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))


@pytest.mark.parametrize(
    ("origin", "command", "elsewhere"),
    [
        (None, "pip install 'diffusion-duality[judge]'", "`pip install diffusion-duality`"),
        (CLONE, "pip install '/home/me/my clone[judge]'", "in a clone of its repository"),
        (EDITABLE, "pip install -e '/work/duality[judge]'", "in a clone of its repository"),
        (ARCHIVE, f"pip install 'diffusion-duality[judge] @ {WHEEL}'", "in a clone of its repository"),
        (GIT, "pip install 'diffusion-duality[judge] @ git+https://host.example/duality.git@abc'", "git@abc'`"),
    ],
)
def test_the_command_follows_the_origin(
    origin: object, command: str, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_from(origin, monkeypatch)
    assert install_command("judge") == command
    assert install_elsewhere().endswith(elsewhere)


def test_an_environment_of_uv_has_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    install_from(None, monkeypatch)
    monkeypatch.setattr(extras, "distributions", lambda name: ())
    assert install_command() == "uv pip install diffusion-duality"
    assert install_elsewhere() == "`pip install diffusion-duality`"


@pytest.mark.slow
def test_setuptools_can_be_imported_after_the_command_was_printed() -> None:
    """As torch.compile does; setuptools must not take the search for pip for the beginning of pip."""
    script = "from duality.extras import install_command\ninstall_command()\nimport setuptools"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_library_that_is_not_installed_is_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", refuse)
    assert install_command("hf") == f"pip install -e '{Path(__file__).parents[1]}[hf]'"


@pytest.mark.slow
def test_pip_takes_the_command_of_this_machine() -> None:
    """Without its work, and without -e, which needs a package for building: pip reads requirement and folder."""
    words = [word for word in shlex.split(install_command("lora")) if word != "-e"]
    command = [sys.executable, "-m", *words[:2], "--dry-run", "--no-deps", "--no-build-isolation", *words[2:]]
    if words[0] != "pip":
        pytest.skip("there is no pip in this environment")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_first_module_comes_back_and_a_missing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert import_extra("data", "this test", "json", "shlex") is json
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match=r"^a judge needs gguf, .*: (uv )?pip install .*\[judge\]'?, or none$"):
        import_extra("judge", "a judge", "json", "gguf.table", instead=", or none")
