import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def boxes():
    """The module beside this file with made-up recordings of a box."""
    name = "meters_boxes"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("boxes.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
