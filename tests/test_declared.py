"""Names in declared JSON forms are those of the classes: no type checker looks into them."""

import importlib
import pkgutil
from dataclasses import fields

import pytest

import everywatt
from everywatt.core.jsonio import ToDict

LOAD_TORCH = ("torch_backend", "train_worker")


def classes():
    for room in ("bench", "batch", "formats"):
        for found in pkgutil.walk_packages([f"{everywatt.__path__[0]}/{room}"], f"everywatt.{room}."):
            if not found.name.endswith(LOAD_TORCH):
                importlib.import_module(found.name)
    # Each once: a dataclass with slots is made of a class of the same name, which may still be there.
    found = {f"{one.__module__}.{one.__qualname__}": one for one in ToDict.__subclasses__()}
    return {name: one for name, one in sorted(found.items()) if name.startswith("everywatt.")}


@pytest.mark.parametrize("name", CLASSES := classes())
def test_every_name_is_an_attribute(name):
    one = CLASSES[name]
    known = {field.name for field in fields(one)} | set(dir(one))
    words = [word.rstrip("?").partition("=") for word in one.JSON.split()]  # `name?` is left out if None
    assert [name for name, _, path in words if (path or name).split(".")[0] not in known] == []
    assert len({name for name, _, _ in words}) == len(words)
