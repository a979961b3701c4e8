"""Write constraints-hashes.txt: pins of constraints.txt with the hashes of the files that pip takes.

`python scripts/make_hashes.py` in the environment that `CI=true make` made: its packages are the ones that get a hash.
Hashes are those that pip's index gives and pip checks. Names, versions and hashes only: where files come from is pip's
own configuration.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCAL = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX")
NO_FILES = {"PIP_CONFIG_FILE": os.devnull}
EXCEPT = ("torch",)  # CI takes its build for CPUs where there is one, which is another file
HEAD = "# Written by scripts/make_hashes.py: files for CPython {}.{} on Linux x86_64; {} by version alone.\n"


def chosen(pins: list[str]) -> dict[str, str]:
    """`name==version` -> sha256 of the file that pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", str(report)]
        # The index alone: what lies in folders of this machine may be another build of the same version.
        environment = {key: value for key, value in os.environ.items() if key not in LOCAL}
        subprocess.run([sys.executable, "-m", "pip", *words, *pins], check=True, env=environment | NO_FILES)
        entries = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = {name_of(entry["metadata"]["name"]): entry["download_info"]["archive_info"] for entry in entries}
    return {pin: found[pin.partition("==")[0]]["hashes"]["sha256"] for pin in pins}


def name_of(text: str) -> str:
    """A name as constraints.txt writes it."""
    return re.sub(r"[-_.]+", "-", text).lower()


def main() -> None:
    """Write the file."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")
    here = {name_of(one.metadata["Name"]) for one in distributions()} - {*EXCEPT}
    found = chosen([line for line in lines if line.partition("==")[0] in here])
    rows = [f"{pin} --hash=sha256:{digest}\n" for pin, digest in found.items()]
    head = HEAD.format(*sys.version_info[:2], ", ".join(EXCEPT))
    (ROOT / "constraints-hashes.txt").write_text(head + "".join(rows), encoding="utf-8")
    print(f"{len(rows)} hashes")


if __name__ == "__main__":
    main()
