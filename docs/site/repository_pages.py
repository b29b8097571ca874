"""A hook of mkdocs: pages for what the documentation links to outside docs/, and for its notebooks.

The pages of docs/ are read in the repository and in the site. In the repository a link to ``../src/duality/noise.py``
leads to the file. In the site it leads to ``source/src/duality/noise.py.html``, a page with the text of the file, which
is made here. A Markdown file outside docs/ (CONTRIBUTING.md) becomes a page, a notebook becomes one with its pictures.
The README of the repository is the first page of the site.

What must hold: a link that leads nowhere in the repository is left as it is, so that ``mkdocs build --strict`` refuses
it; what stands in a block of code is no link.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
CODE = re.compile(r"(^```.*?^```|^~~~.*?^~~~|``[^`\n]+``|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".json": "json"}
CELL_CODE = re.compile(r"`[^`\n]+`")
HOME = "README.md"
PICTURES = {"image/png": "png", "image/svg+xml": "svg"}


def root_of(config: MkDocsConfig) -> Path:
    """The repository."""
    return Path(config.docs_dir).parent


def place_in_repository(uri: str) -> str:
    """The path, from the root of the repository, of what a page of the site shows."""
    if uri == HOME:
        return uri
    if not uri.startswith("source/"):
        return f"docs/{uri}"
    path = uri.removeprefix("source/")
    return path if path.count("/") == 0 and path.endswith(".md") else path.removesuffix(".md")


def place_in_site(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path == HOME:
        return path
    if path.startswith("docs/"):
        notebook = path.endswith(".ipynb")
        return path.removeprefix("docs/").removesuffix(".ipynb") + (".md" if notebook else "")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def links(markdown: str, page: str) -> list[str]:
    """The files of the repository, as paths from its root, that a page of the repository links to."""
    prose = CODE.sub("", markdown)
    targets = [target for _, target, _ in LINK.findall(prose) if "://" not in target]
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in targets]


def with_links_of_the_site(markdown: str, uri: str, root: Path) -> str:
    """The text of a page, its links to files of the repository replaced by links to pages of the site."""
    page = place_in_repository(uri)

    def replaced(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if "://" in target or not (root / path).is_file():
            return match.group(0)
        return before + posixpath.relpath(place_in_site(path), posixpath.dirname(uri) or ".") + after

    parts = CODE.split(markdown)
    return "".join(part if number % 2 else LINK.sub(replaced, part) for number, part in enumerate(parts))


def with_pipes_in_code(markdown: str) -> str:
    """A pipe in the code of a table is written with a backslash in the repository, and without one in the site."""

    def unescaped(line: str) -> str:
        return CELL_CODE.sub(lambda match: match.group(0).replace("\\|", "|"), line) if line.startswith("|") else line

    return "\n".join(unescaped(line) for line in markdown.split("\n"))


def page_of_file(path: Path, name: str) -> str:
    """A page with the text of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    not_searched = "---\nsearch:\n  exclude: true\n---\n\n"  # the search has the documentation, not the code
    return f"{not_searched}# {name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"


def page_of_notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and the pictures among its outputs by their names."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            for kind in PICTURES.keys() & data.keys():
                name = f"{path.stem}-{len(pictures) + 1}.{PICTURES[kind]}"
                content = "".join(data[kind])
                pictures[name] = base64.b64decode(content) if kind == "image/png" else content.encode()
                parts.append(f"![what the cell above draws]({name})")
            text = "".join(
                output.get("text", "") or ("" if PICTURES.keys() & data.keys() else data.get("text/plain", ""))
            )
            if text:
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of notebooks, and those of all files outside docs/ that pages link to."""
    root = root_of(config)
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts[HOME] = (root / HOME).read_text(encoding="utf-8")
    files.append(File.generated(config, HOME, content=texts[HOME]))
    for notebook in sorted((root / "docs").rglob("*.ipynb")):
        text, pictures = page_of_notebook(notebook)
        uri = place_in_site(notebook.relative_to(root).as_posix())
        files.append(File.generated(config, uri, content=text))
        texts[f"docs/{uri}"] = text
        for name, picture in pictures.items():
            files.append(File.generated(config, posixpath.join(posixpath.dirname(uri), name), content=picture))
    waiting, seen = list(texts.items()), set(texts)
    while waiting:
        for target in links(*reversed(waiting.pop())):
            if target in seen or target.startswith(("docs/", "..")) or not (root / target).is_file():
                continue
            seen.add(target)
            content, markdown = page_of_file(root / target, target), target.endswith(".md")
            level = InclusionLevel.INCLUDED if markdown else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, place_in_site(target), content=content, inclusion=level))
            if markdown:
                waiting.append((target, content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs gives all four
    """What is written for the repository becomes what the site's Markdown reads."""
    return with_pipes_in_code(with_links_of_the_site(markdown, page.file.src_uri, root_of(config)))
