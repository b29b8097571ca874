"""Tables and captions of a LaTeX source, as plain text: enough for the paper's own."""

from __future__ import annotations

import re

_MARKS = (
    (r"\$\s*\^\s*\{?[^$]*\$", ""),  # superscripts that mark a footnote
    (r"\(?Alg\.?~?\\ref\{[^}]*\}\)?|~?\(Alg\.~\\ref\{[^}]*\}\)", ""),
    (r"~?\\Eqn\{[^}]*\}", ""),
    (r"~?\{?\\scriptsize\s*\\citep\{[^}]*\}\}?", ""),
    (r"\(?\$\\(?:down|up)arrow\$\)?|\$\(\\(?:down|up)arrow\)\$", ""),
    (r"\\method\{\}", "Duo"),
    (r"\\shade\b|\\quad\b|\\footnotesize\b|\\scriptsize\b", ""),
    (r"\\(?:textbf|textit|underline)\b", ""),
    (r"\\&", "＆"),
    (r"[{}$]", ""),
    (r"~", " "),
)


def plain(cell: str) -> str:
    """A cell without commands, marks and citations."""
    for pattern, word in _MARKS:
        cell = re.sub(pattern, word, cell)
    return " ".join(cell.split()).replace("＆", "&").strip()


def environments(source: str, name: str) -> list[str]:
    """The environments of a name, starred or not, in the order in which LaTeX numbers them."""
    return re.findall(rf"\\begin\{{{name}\*?\}}(.*?)\\end\{{{name}\*?\}}", source, re.DOTALL)


def label(environment: str) -> str:
    """The label of an environment; empty if it has none."""
    found = re.search(r"\\label\{([^}]*)\}", environment)
    return found[1] if found else ""


def caption(environment: str) -> str:
    """Everything from the caption on."""
    return environment[environment.index("\\caption") :]


def cells(line: str) -> list[str]:
    """The cells of a line of a table; one that spans several columns counts as often."""
    found: list[str] = []
    for part in re.split(r"(?<!\\)&", line):
        wide = re.search(r"\\multicolumn\{(\d+)\}\{[^}]*\}\{(.*)\}", part, re.DOTALL)
        found += [plain(wide[2])] * int(wide[1]) if wide else [plain(part)]
    return found


def is_number(cell: str) -> bool:
    return re.fullmatch(r"-|\d+(\.\d+)?", cell) is not None


def tabular(environment: str) -> tuple[list[list[str]], list[tuple[str, str, list[str]]]]:
    """The lines of the heading, and the rows: group, label, numbers."""
    found = re.search(r"\\begin\{tabular\}\{[^}]*\}(.*?)\\end\{tabular\}", environment, re.DOTALL)
    assert found, environment[:200]
    body = re.sub(r"(?<!\\)%.*", "", found[1])
    body = re.sub(r"\\(?:toprule|midrule|bottomrule|specialrule(?:\{[^}]*\}){3})", "", body)
    heading: list[list[str]] = []
    rows: list[tuple[str, str, list[str]]] = []
    group = ""
    for line in filter(str.strip, body.split(r"\\")):
        if "\\textit" in line and "\\multicolumn" in line and "&" not in line:
            group = cells(line)[0]
            continue
        first, *rest = cells(line)
        if not first and rest and not is_number(rest[0]) and any(map(is_number, rest[1:])):
            first, *rest = rest  # the first column holds the groups
        if rest and all(map(is_number, rest)):
            rows.append((group, first, rest))
        else:
            heading.append([first, *rest])
    return heading, rows
