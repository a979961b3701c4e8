"""The laboratories of benchmarks/, which these tests assert on."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _module(name):
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module(f"benchmarks.{name}")
    finally:
        sys.path.remove(str(ROOT))


@pytest.fixture(scope="session")
def honesty():
    return _module("honesty")


@pytest.fixture(scope="session")
def product():
    return _module("product_lab")


@pytest.fixture(scope="session")
def ablation():
    return _module("ablation")
