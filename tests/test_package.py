"""The package as a whole: parts import only earlier parts, and imports load no pickle and open no connection."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import duality

SOURCE = Path(duality.__file__).parent

# A part imports from itself and from the parts before it. Of the hub, the room of what others have and get, reading
# stands below the models and giving above them; ``Model``, which is also given, is above both.
PARTS = (
    "registry",
    "extras",
    "files",
    "devices",
    "noise",
    "ranks",
    "protocols",
    "diffusion",
    "fused",
    "networks",
    "denoisers",
    "objectives",
    "samplers",
    "methods",
    "tokenizers",
    "data",
    "training",
    "recipes",
    "hub.package",
    "hub.fetch",
    "models",
    "hub",
    "models.model",
    "runs",
    "evaluation",
    "integrations",
    "studio",
    "papers",
    "cli",
)
DEPTH = 16  # modules in the longest chain of imports
PUBLIC = 774  # functions and classes without an underscore
# In these parts files do not import each other, except the files listed here.
SEPARATE = {"objectives": {"base"}, "samplers": {"base", "grids"}, "methods": {"base"}}


def module_of(path: Path) -> str:
    return str(path.relative_to(SOURCE).with_suffix("")).replace("/", ".").removesuffix(".__init__")


MODULES = {module_of(path) for path in SOURCE.rglob("*.py")}


def imports_of(path: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("duality"):
            base = node.module.removeprefix("duality").lstrip(".")
            for alias in node.names:
                joined = f"{base}.{alias.name}".lstrip(".")
                found.add(joined if joined in MODULES else base)
    return found - {""}


def test_the_root_contains_only_the_parts() -> None:
    found = {path.stem for path in SOURCE.iterdir() if not path.name.startswith("_") and path.name != "py.typed"}
    assert found == {part.split(".")[0] for part in PARTS}


def rank_of(module: str) -> int:
    """The place of a module in the order: that of the longest part that it belongs to."""
    return PARTS.index(max((part for part in PARTS if f"{module}.".startswith(f"{part}.")), key=len))


def test_a_part_imports_only_earlier_parts() -> None:
    for path in SOURCE.rglob("*.py"):
        module = module_of(path)
        if module.split(".")[0] in ("__init__", "__main__"):
            continue
        for imported in imports_of(path):
            assert rank_of(imported) <= rank_of(module), f"{module} imports {imported}"


def loaded_by(path: Path, inside_functions: bool) -> set[str]:
    """Modules that a file imports when it is imported; with ``inside_functions`` also when its functions run."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not inside_functions:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("duality."):
            base = node.module.removeprefix("duality.")
            found |= {f"{base}.{each.name}" if f"{base}.{each.name}" in MODULES else base for each in node.names}
        nodes.extend(ast.iter_child_nodes(node))
    return found & MODULES - {module_of(path)}


def longest_chains(graph: dict[str, set[str]]) -> dict[str, tuple[str, ...]]:
    """The longest chain of imports from each module; a cycle is an error."""
    chains: dict[str, tuple[str, ...]] = {}

    def chain(module: str, above: tuple[str, ...]) -> tuple[str, ...]:
        assert module not in above, f"a cycle of imports: {' > '.join((*above, module))}"
        if module not in chains:
            below = (chain(each, (*above, module)) for each in sorted(graph[module]))
            chains[module] = (module, *max(below, key=len, default=()))
        return chains[module]

    for module in graph:
        chain(module, ())
    return chains


def test_no_module_imports_itself_through_others() -> None:
    """Neither when it is imported nor when its functions run."""
    longest_chains({module_of(path): loaded_by(path, inside_functions=True) for path in SOURCE.rglob("*.py")})


def test_chains_of_imports_are_short() -> None:
    chains = longest_chains({module_of(path): loaded_by(path, inside_functions=False) for path in SOURCE.rglob("*.py")})
    longest = max(chains.values(), key=len)
    assert len(longest) <= DEPTH, " > ".join(longest)


def test_a_folder_has_few_modules() -> None:
    for folder in {path.parent for path in SOURCE.rglob("*.py")}:
        modules = [path.stem for path in folder.glob("*.py") if not path.name.startswith("_")]
        assert len(modules) <= 15, f"{folder.name} has {len(modules)} modules: {sorted(modules)}"


def test_siblings_do_not_import_each_other() -> None:
    for part, shared in SEPARATE.items():
        for path in (SOURCE / part).glob("*.py"):
            inside = {name.split(".")[1] for name in imports_of(path) if name.startswith(f"{part}.")}
            assert inside <= shared, f"{path.name} imports {inside - shared}"


@pytest.mark.slow
def test_import_loads_nothing_that_only_some_commands_need() -> None:
    """Plots, judges and compilers are imported by the functions that use them."""
    everything = "import sys, duality\nfor name in duality.__all__: getattr(duality, name)\nprint(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", everything], capture_output=True, text=True, check=True
    ).stdout.split()
    optional = {"matplotlib", "transformers", "huggingface_hub", "datasets", "scipy", "lm_eval", "starlette", "uvicorn"}
    assert not {*optional, "torch._inductor.compile_fx"} & set(loaded)


@pytest.mark.slow
def test_help_loads_neither_torch_nor_the_hub() -> None:
    script = (
        "import sys\nfrom duality.cli.main import main\ntry: main(['publish', '--help'])\nfinally: print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "huggingface_hub", "tokenizers"} & set(loaded)


@pytest.mark.slow
def test_import_opens_no_connection() -> None:
    script = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network at import')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "import duality\nfor name in duality.__all__: getattr(duality, name)\nimport duality.cli.main"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_public_name_exists() -> None:
    for name in duality.__all__:
        assert getattr(duality, name) is not None
    assert duality.__version__


SAFE_READING = "torch.load(path, map_location=note, weights_only=True, mmap=True)"


def test_nothing_loads_a_pickle() -> None:
    forbidden = re.compile(
        r"\btorch\.load\b|\bpickle\b|allow_pickle=True|\bjoblib\b|\bmarshal\b|(?<!\.)\beval\(|\bexec\("
    )
    for path in SOURCE.rglob("*.py"):
        # weights of others are read by one line, which makes tensors and plain data alone
        lines = [line for line in path.read_text().splitlines() if not line.endswith(SAFE_READING)]
        assert not forbidden.search("\n".join(lines)), path
    safe = [path.name for path in SOURCE.rglob("*.py") if SAFE_READING in path.read_text()]
    assert safe == ["files.py"]


def test_no_figure_is_drawn_through_pyplot() -> None:
    """pyplot has one backend for the whole process: in a notebook it is the user's."""
    for path in SOURCE.rglob("*.py"):
        assert not re.search(r"\bpyplot\b(?!:)|matplotlib\.use\b", path.read_text()), path


def test_files_and_functions_stay_readable() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 400, f"{path} has more than 400 lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                assert size <= 60, f"{path}: {node.name} has {size} lines"


def test_few_names_are_public() -> None:
    """What no other module uses has an underscore."""
    names = [
        f"{module_of(path)}.{node.name}"
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    ]
    assert len(names) <= PUBLIC, f"{len(names)} functions and classes are public, {PUBLIC} were enough"


# Single words that end like a participle and are verbs, or nouns of the field.
VERBS = {"embed", "feed", "read", "speed", "seed", "string", "ring"}
PARTICIPLE = re.compile(
    r"_*([a-z]+(ed|ing)|begun|broken|drawn|found|given|held|kept|known|made|said|sent|shown|taken|told|written)"
)


def test_functions_are_verbs() -> None:
    """A function is not named by a participle alone; a property, which is a value, and a context manager may be."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and PARTICIPLE.fullmatch(node.name):
                marks = " ".join(ast.unparse(each) for each in (*node.decorator_list, node.returns) if each)
                value = re.search("property|contextmanager", marks, re.IGNORECASE) or node.name.strip("_") in VERBS
                assert value, f"{module_of(path)}.{node.name}: name it by a verb, such as find_... or make_..."


def test_every_module_says_what_it_is() -> None:
    for path in SOURCE.rglob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, path
        assert len(text) > 30, path


def test_few_types_are_any() -> None:
    assert sum(len(re.findall(r"\bAny\b", path.read_text())) for path in SOURCE.rglob("*.py")) < 60


def test_names_in_docstrings_exist() -> None:
    """``module.name`` names something that a module of that name defines, and ``file.py`` a file."""
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    stems = {path.stem for path in texts}
    for path, text in texts.items():
        for module, name in re.findall(r"``(?:\w+\.)*?(\w+)\.(\w+)(?:\(\))?``", text):
            if name == "py":
                assert module in stems, f"{path.name} mentions {module}.py"
            elif module in stems and not (SOURCE / module).is_dir():  # a name of a room is not that of a module
                defined = any(re.search(rf"\b{name}\b", texts[other]) for other in texts if other.stem == module)
                assert defined, f"{path.name} mentions {module}.{name}"
