"""Runs the notebooks in docs/notebooks from top to bottom, in an empty folder.

python tools/notebooks.py            run them all; fail where a cell does
python tools/notebooks.py --write    and keep what they print and draw
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
SECONDS = 600  # for one cell, on a machine that is busy


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when each cell ran: another diff every time
        if cell.cell_type == "code":  # bars and warnings of other packages
            cell.outputs = joined([output for output in cell.outputs if output.get("name") != "stderr"])
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """What was printed piece by piece, as one."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def main() -> int:
    os.environ |= {"PYTHONPATH": str(ROOT / "src"), "TQDM_DISABLE": "1"}
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        begin = time.monotonic()
        notebook = run(path)
        if "--write" in sys.argv:
            nbformat.write(notebook, path)
        print(f"{path.relative_to(ROOT)}: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
