"""A report as one web page that needs nothing else: the Markdown of the report, with its figures inside.

Only what the report uses is understood: headings, tables, paragraphs, figures, bold text and code.
"""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0; }
th, td { border-bottom: 1px solid #ddd; padding: .3em .6em; text-align: left; vertical-align: top; }
th { background: #f4f4f4; }
td.shows { background: #e5f5e5; } td.contradicts { background: #fbe3e0; }
img { max-width: 100%; }
h2 { margin-top: 2em; } h3 { margin-top: 1.6em; }
"""


def page(markdown: str, folder: Path) -> str:
    """The page; figures are read from ``folder``."""
    blocks = [block for block in markdown.split("\n\n") if block.strip()]
    title = html.escape(blocks[0].removeprefix("# "))
    body = "\n".join(converted(block.strip(), folder) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def converted(block: str, folder: Path) -> str:
    """One block of Markdown as HTML."""
    heading = re.fullmatch(r"(#+) (.*)", block)
    if heading:
        level = len(heading[1])
        return f"<h{level}>{inline(heading[2])}</h{level}>"
    picture = re.fullmatch(r"!\[(.*)\]\((.*)\)", block)
    if picture:
        data = base64.b64encode((folder / picture[2]).read_bytes()).decode()
        image = f'<img alt="{html.escape(picture[1])}" src="data:image/png;base64,{data}">'
        return f"<figure>{image}<figcaption>{inline(picture[1])}</figcaption></figure>"
    if block.startswith("|"):
        return table(block.splitlines())
    return f"<p>{inline(block)}</p>"


def table(lines: list[str]) -> str:
    """A table; a cell with a verdict has its class."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    head = "".join(f"<th>{inline(cell)}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(map(cell_of, row))}</tr>" for row in rows[2:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def cell_of(cell: str) -> str:
    """A cell of a table."""
    verdict = cell.strip("*")
    kind = f' class="{verdict}"' if verdict in ("shows", "contradicts") else ""
    return f"<td{kind}>{inline(cell)}</td>"


def inline(text: str) -> str:
    """Bold text and code inside a line; everything else is text."""
    safe = html.escape(text, quote=False)
    safe = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", safe)
