"""The command line: parses the arguments, runs a command, and turns an error into one line and an exit code."""

from __future__ import annotations

import errno
import sys

import tyro

from duality.cli.commands import COMMANDS
from duality.cli.termination import Terminated, terminable


def spread(arguments: list[str]) -> list[str]:
    """``--set a=1 b=2`` as ``--set a=1 --set b=2``; the parser refuses a ``--set`` with nothing after it.

    >>> spread(["train", "duo-laptop", "--set", "a=1", "b=2", "--resume"])
    ['train', 'duo-laptop', '--set', 'a=1', '--set', 'b=2', '--resume']
    """
    result: list[str] = []
    setting = False
    for argument, following in zip(arguments, [*arguments[1:], "-"]):
        if argument == "--set" and not following.startswith("-"):
            setting = True
            continue
        setting = setting and not argument.startswith("-")
        result += ["--set", argument] if setting else [argument]
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a user's error, or 128 + the signal that stopped it."""
    arguments = spread(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    try:
        with terminable():
            code: int = tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="duality",
                description="Discrete diffusion language models: train, distill, evaluate, sample. "
                "With --debug, an error shows where it came from.",
                args=[argument for argument in arguments if argument != "--debug"],
            )
        return code
    except (ValueError, TypeError, OSError) as error:
        if debug:
            raise
        print(f"duality: error: {explain(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("duality: interrupted", file=sys.stderr)
        return 130
    except Terminated:
        print("duality: terminated", file=sys.stderr)
        return 143


def explain(error: Exception) -> str:
    """One line: what was got, what is allowed, what to do."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        about = "" if error.filename is None else f": {error.filename}"
        return f"{error.strerror}{about}; make room, then give the same command again"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}; check the path and its permissions"
    return " ".join(str(error).split())


def script() -> None:
    """The ``duality`` command."""
    sys.exit(main())
