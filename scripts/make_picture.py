"""Write docs/images/terminal.svg: commands that really run, in a real terminal, and what they print.

python scripts/make_picture.py

The commands run in a temporary folder on the simulated machine, through a pseudo-terminal, so that colours and tables
are those of a terminal. The picture has the system's own monospace font, and nothing in it is loaded from elsewhere.
"""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
COLUMNS = 120
COMMANDS = (
    "everywatt sim --gpu load:40W,260W --package load:20W,90W -- everywatt run --idle 3s -- python train.py",
    "everywatt why last",
)
# Each step works on the simulated card for a while, and on the real CPU for a while.
TRAIN = """
from everywatt.testing import gpu_work

for step in range(6):
    gpu_work(0.6)
    sum(i * i for i in range(2_000_000))
"""
FONT = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)
MADE_BY = re.compile(r"<!-- Generated with Rich.*?-->\s*")


def run(command: str, folder: Path) -> str:
    """What the command prints to a terminal of 120 columns."""
    launcher = folder / "bin" / "everywatt"
    launcher.parent.mkdir(exist_ok=True)
    text = f"#!{sys.executable}\nimport sys\n\nfrom everywatt.cli.main import main\n\nsys.exit(main())\n"
    launcher.write_text(text, encoding="utf-8")  # so that messages name it as a user would call it
    launcher.chmod(0o755)
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    environ = {
        **os.environ,
        "PATH": f"{launcher.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "EVERYWATT_HOME": str(folder / "runs"),
        "EVERYWATT_RUNTIME_DIR": str(folder / "run"),
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
    }
    pieces: list[bytes] = []

    child, fd = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe("sh", ["sh", "-c", command], environ)
    while True:
        try:
            pieces.append(os.read(fd, 4096))
        except OSError:  # the terminal closes with its last program
            break
    os.waitpid(child, 0)
    return b"".join(pieces).decode().replace("\r\n", "\n")


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as name:
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold"), soft_wrap=False)
            console.print(Text.from_ansi(run(command, Path(name))))
    svg = MADE_BY.sub("", FONT.sub("", console.export_svg(title="everywatt")))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(svg.replace("Fira Code, monospace", "ui-monospace, monospace"), encoding="utf-8")


if __name__ == "__main__":
    main()
