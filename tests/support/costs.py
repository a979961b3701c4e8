"""What costs more than every `make test` should pay, and runs with CI=true alone: few, each with its reason."""

from __future__ import annotations

import os

import pytest

IN_CI = os.environ.get("CI") == "true"


def only_in_ci(why: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not IN_CI, reason=f"runs with CI=true: {why}")
