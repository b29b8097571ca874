"""The command line: parses the arguments, runs a command, and turns an error into one line and an exit code.

0          done
1          a fault of this program; ``--debug`` shows where
2          a user's error: the line says what was got, what is allowed, what to do
128 + n    stopped by signal n; 130 is Ctrl-C, 141 a reader that closed the pipe, which needs no words

Started several times by torchrun, the processes are one job (``duality.ranks``): one of them prints the error.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from types import FrameType

import tyro
from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

from duality import __version__, ranks
from duality.cli import COMMANDS, DIVIDED, HOMES
from duality.files.cache import CACHE_VARIABLE
from duality.registry import one_line, visible

FAULT, USER_ERROR, INTERRUPTED, CLOSED_PIPE, TERMINATED = 1, 2, 130, 141, 143
CONFIG = (tyro.conf.FlagCreatePairsOff,)  # --json, and no --no-json
_TEXTS = ("--prompt", "--suffix")
_SPREAD = ("--set", "--keep")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_RESUMES = ("train", "distill")
_NARROWEST = 20  # columns; the parser's help does not end in less than 8
_NO_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")  # how torch says it


class _Terminated(BaseException):
    """SIGTERM came. It is no ``Exception``: like Ctrl-C, it is not an error that a command could handle."""


def _spread(arguments: list[str]) -> list[str]:
    """``--set a=1 b=2`` as ``--set a=1 --set b=2``, and ``--keep`` too; the parser refuses one with nothing after it.

    >>> _spread(["train", "duo-laptop", "--set", "a=1", "b=2", "--resume"])
    ['train', 'duo-laptop', '--set', 'a=1', '--set', 'b=2', '--resume']
    """
    result: list[str] = []
    repeated: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], "-"]):
        if argument in _SPREAD and not following.startswith("-"):
            repeated = [argument]
            continue
        repeated = [] if argument.startswith("-") else repeated
        result += [*repeated, argument]
    return result


def _check_values(arguments: list[str]) -> None:
    """Refuse an empty value, which an unset variable of a shell leaves behind; no option has a use for one.

    White space alone is a value only where a text is asked for.

    >>> _check_values(["train", "duo-laptop", "--data", ""])
    Traceback (most recent call last):
    ValueError: the value of --data is empty: give one, or leave --data out (an unset variable of the shell is empty)
    """
    remark = "(an unset variable of the shell is empty)"
    for before, argument in zip(["", *arguments], arguments):
        name, equals, value = argument.partition("=")
        if not argument.strip():
            if not before.startswith("--"):
                raise ValueError(f"an argument is empty: give its value, or leave it out {remark}")
            name, value = before, argument
        elif not (equals and (name.startswith("--") or before == "--set")):
            continue
        if not value.strip() and not (value and name in _TEXTS):
            raise ValueError(f"the value of {name} is empty: give one, or leave {name} out {remark}")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and give its exit code; rank 0 of the processes that torchrun has started speaks for all."""
    given = _spread(sys.argv[1:] if arguments is None else arguments)
    arguments, debug = [each for each in given if each != "--debug"], "--debug" in given
    name = arguments[0] if arguments else ""
    resumes = name in _RESUMES

    with _handle_errors(debug, resumes) as result, _raise_on_sigterm(), _hide_warnings(debug):
        _check_values(arguments)
        place = ranks.Job.from_environment()
        if not place.alone and name in COMMANDS and name not in DIVIDED:
            if not place.first:
                raise ranks.Refused
            raise ValueError(
                f"`duality {name}` runs in one process, and torchrun has started {place.size}: start it without "
                f"torchrun; several are for {', '.join(DIVIDED)}"
            )
        with ranks.join_job() as place, nullcontext() if place.first else _print_errors_only():
            with _handle_errors(debug, resumes) as own:
                own.code = _run_command(arguments)
            result.code = own.code
    return result.code


@contextmanager
def _hide_warnings(debug: bool) -> Iterator[None]:
    """Show no warnings of packages, about which a user can do nothing, unless asked to: --debug, PYTHONWARNINGS."""
    with warnings.catch_warnings():
        for kind in (UserWarning, FutureWarning, RuntimeWarning) if not (debug or sys.warnoptions) else ():
            warnings.simplefilter("ignore", kind)
        yield


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise ``_Terminated`` in the main thread, through every ``finally``, until the block is left.

    A training handles the signal itself (``runs.session``) and saves. A process that was told to ignore the
    signal goes on ignoring it.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before == signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _read_path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
    """How the parser reads a path: ~ is the user's home, also where the shell has left it as it is."""
    if info.type is not Path:
        return None

    def read(words: list[str]) -> Path:
        try:
            return Path(words[0]).expanduser()
        except RuntimeError:  # no such user, or nobody's home
            raise ValueError(
                f"{words[0]}: the home folder is not known; write the whole path, or ./~ for a name"
            ) from None

    return PrimitiveConstructorSpec(1, "PATH", read, lambda value: isinstance(value, Path), lambda path: [str(path)])


def _run_command(arguments: list[str]) -> int:
    """Parse the arguments and run the command that they name; ``--version`` alone names none."""
    if arguments == ["--version"]:
        print(f"duality {__version__}", flush=True)
        return 0

    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_read_path)
    code: int | None = tyro.extras.subcommand_cli_from_dict(
        {name: COMMANDS[name] if arguments[:1] == [name] else _stand_in(name) for name in COMMANDS},
        prog="duality",
        description="Discrete diffusion language models: train, distill, evaluate, sample. "
        "With --debug, an error shows where it came from; --version alone shows the version.",
        args=arguments,
        config=CONFIG,
        registry=registry,
    )
    sys.stdout.flush()  # a closed pipe shows here and not when the interpreter ends
    return code or 0


def _stand_in(name: str) -> Callable[[], None]:
    """Nothing, with the first line of a command's help, read from its source: no command is imported for the list."""
    module, _, function = HOMES[name].partition(":")
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    found = re.search(rf'^def {function}\(.*?"""(.*?)\n', source, re.DOTALL | re.MULTILINE)

    def idle() -> None: ...

    idle.__doc__ = found and found[1]
    return idle


class _Result:
    """The exit code of a command."""

    code = FAULT


@contextmanager
def _handle_errors(debug: bool, resumes: bool = False) -> Iterator[_Result]:
    """Turn an error in the block into an exit ``code`` and one line, which the first of several ranks prints."""
    result = _Result()
    try:
        yield result
        return
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # what is still to be written has no reader; it may be no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        result.code = CLOSED_PIPE
        return
    except ranks.Refused:
        result.code = USER_ERROR
        return
    except KeyboardInterrupt:
        result.code, line = INTERRUPTED, "duality: interrupted"
    except _Terminated:
        result.code, line = TERMINATED, "duality: terminated"
    except Exception as error:
        if debug:
            raise
        if not ranks.job().alone:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others while this one says why
        words, who = _explain(error, resumes), "" if ranks.job().first else f"rank {ranks.job().rank}: "
        result.code, line = USER_ERROR, f"duality: error: {who}{words}"
        if words is None:
            result.code = FAULT
            line = (
                f"duality: internal error: {who}{type(error).__name__}: {one_line(error)}; this is a fault of "
                "duality, not of what you asked for: run the same command with --debug, and report what it prints"
            )
    if result.code in (TERMINATED, FAULT) and (gone := ranks.missing_ranks()):
        line = (
            f"duality: error: {gone} ended without a message, as after kill -9 or when memory runs out: what was saved "
            "is intact, and the same command with --resume continues a training"
        )
    if ranks.first_to_fail():  # no other rank of the job has said why it ends
        print(visible(line), file=sys.stderr, flush=True)
    ranks.wait_for_others()


@contextmanager
def _print_errors_only() -> Iterator[None]:
    """Print nothing but errors: for the ranks other than 0."""
    from duality.cli.console import stderr

    stderr.quiet = True
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        stderr.quiet = False


def _explain(error: Exception, resumes: bool = False) -> str | None:
    """One line: what was got, what is allowed, what to do; None for an error that no user can be the cause of.

    ``resumes`` says whether the command goes on with what it has saved only when it is given --resume.
    """
    refusal: BaseException | None = error
    while refusal is not None and not isinstance(refusal, (OSError, ValueError)):
        refusal = refusal.__cause__ or refusal.__context__  # an error of a library may hide that of the disk
    if isinstance(refusal, OSError) and refusal.errno in _NO_ROOM:  # the disk takes no more bytes
        about = "" if refusal.filename is None else f": {refusal.filename}"
        remedy = "raise the limit of a file (ulimit -f)" if refusal.errno == errno.EFBIG else "make room"
        again = ", with --resume" if resumes else ""
        return f"{refusal.strerror}{about}; {remedy}, then give the same command again{again}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}; check the path and its permissions"
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY):
        return (
            f"the memory of this machine is not enough ({one_line(error) or 'MemoryError'}): take a smaller batch, "
            "length or network"
        )
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # how pathlib and platformdirs say it
        return (
            f"the home folder is not known: set HOME, or {CACHE_VARIABLE} for the cache, and write whole paths, not ~"
        )
    return one_line(error) if isinstance(error, (ValueError, OSError)) else None


def _spin_shortly(environment: MutableMapping[str, str]) -> None:
    """Let threads that wait for each other spin for a short time only, unless the user has chosen otherwise.

    Threads that spin are fast alone and ten times slower beside another program; those that sleep are always a little
    slower. The library that torch computes with reads this when it is loaded, so it is set before.
    """
    if not environment.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        environment.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="10000")


def _prepare_streams() -> None:
    """Open the standard streams that the shell has closed (>&-) nowhere, or a file would get their number.

    A character that the encoding of stdout has not is shown by its number; a help needs ``_NARROWEST`` columns.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if shutil.get_terminal_size().columns < _NARROWEST:
        os.environ["COLUMNS"] = str(_NARROWEST)


def script() -> None:
    """The ``duality`` command."""
    _spin_shortly(os.environ)
    _prepare_streams()
    sys.exit(main())
