"""What mkdocs does beyond its own work: pages from files outside docs/, from notebooks and from ``--help``; links that hold on the site.

Documents link to each other as files of the repository, so that they can be read there. On the site a link to another page stays, a link
to a drawing in results/ takes the drawing along, and a link to anything else (sources, folders) becomes plain text.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SHIM = 'src="https://unpkg.com/iframe-worker/shim"'
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "results/LOG.md")  # outside docs/, and on the site under the same names
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and the drawings that pages show."""
    for path in PAGES:
        files.append(File.generated(config, path, content=(ROOT / path).read_text()))
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        uri = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, uri, content=notebook(json.loads(path.read_text()))))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "decisions.md", content=decisions()))
    for path in sorted((ROOT / "results").rglob("*.svg")):
        uri = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as the site has them."""
    uri = page.file.src_uri
    where = uri if uri in PAGES else f"docs/{uri}"

    def change(found: re.Match[str]) -> str:
        image, text, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(where), target))
        there = path.removeprefix("docs/") if path.startswith("docs/") else path
        if files.get_file_from_path(there) is None:
            return text
        return f"{image}[{text}]({posixpath.relpath(there, posixpath.dirname(uri) or '.')}{anchor or ''})"

    return LINK.sub(change, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Our own script for search from disk, where the theme would fetch one from a server of others."""
    here = posixpath.relpath("search.js", posixpath.dirname(page.url) or ".")
    return output.replace(SHIM, f'src="{here}"')


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same, for the page that says that a page is not there."""
    return output_content.replace(SHIM, 'src="/search.js"')


def on_post_build(config: Any) -> None:
    """The site must open without a network: no page may load anything from elsewhere."""
    for path in Path(config.site_dir).rglob("*.html"):
        found = re.search(
            r'<(?:script|img|iframe)[^>]+src="https?:[^"]*"|<link[^>]+stylesheet[^>]+href="https?:[^"]*"',
            path.read_text(),
        )
        if found:
            raise PluginError(f"{path} loads something from elsewhere: {found[0]}")


def commands() -> str:
    """The help of every command, as the command prints it."""
    sys.path.insert(0, str(ROOT / "src"))
    from softmax_rnn.cli import COMMANDS

    parts = ["# Command line", "", "What `softmax-rnn COMMAND --help` prints.", ""]
    for name in ("", *COMMANDS):
        words = [sys.executable, "-m", "softmax_rnn", *name.split(), "--help"]
        done = subprocess.run(
            words,
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"},
        )
        parts += [f"## {f'softmax-rnn {name}'.strip()}", "", "```text", done.stdout.rstrip(), "```", ""]
    return "\n".join(parts)


def decisions() -> str:
    """A list of the decision records."""
    lines = ["# Decisions", "", "Why some things are as they are, a page each.", ""]
    for path in sorted((ROOT / "docs/adr").glob("*.md")):
        title = path.read_text().splitlines()[0].lstrip("# ")
        lines.append(f"- [{title}](adr/{path.name})")
    return "\n".join(lines)


def notebook(content: dict[str, Any]) -> str:
    """A notebook as a page: its text, its code, and what the code printed or drew."""
    return "\n\n".join(part for cell in content["cells"] for part in cell_parts(cell))


def cell_parts(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *(shown for output in cell["outputs"] if (shown := output_text(output)))]


def output_text(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text {{.output}}\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="What the code above draws" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/plain" in data:
        return f"```text {{.output}}\n{''.join(data['text/plain']).rstrip()}\n```"
    return ""
