"""`python -m everywatt.fleet JSON`: what `everywatt agent --profile small` becomes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from everywatt.core.errors import EverywattError
from everywatt.fleet.agent import Agent
from everywatt.fleet.options import LISTS, PATHS, AgentOptions, combine
from everywatt.fleet.service import serve


def main(text: str) -> int:
    """Run the agent whose flags and configuration file are in the text."""
    asked = json.loads(text)
    flags: dict[str, Any] = asked["flags"]
    flags |= {name: Path(flags[name]) for name in PATHS if flags.get(name) is not None}
    flags |= {name: tuple(flags[name]) for name in LISTS if flags.get(name) is not None}
    config = None if asked["config"] is None else Path(asked["config"])

    def read() -> AgentOptions:
        return combine(flags, config)

    try:
        return serve(Agent(read()), read)
    except EverywattError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
