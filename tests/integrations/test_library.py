"""Adapters name the extra that is missing when they are used, and import nothing before."""

import importlib
import subprocess
import sys

import pytest

from everywatt.core.errors import MissingExtra
from everywatt.core.plugins import library

ADAPTERS = [
    ("transformers", "transformers", "hf"),
    ("lightning", "lightning", "lightning"),
    ("keras", "keras", "keras"),
    ("mlflow", "mlflow", "mlflow"),
    ("wandb", "wandb", "wandb"),
]


def without(monkeypatch, name):
    """Make a library that may be installed look as if it were not."""
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)

    class Blocker:
        def find_spec(self, fullname, path=None, target=None):
            if fullname.split(".")[0] == name:
                raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)

    monkeypatch.setattr(sys, "meta_path", [Blocker(), *sys.meta_path])


@pytest.mark.parametrize(("adapter", "package", "extra"), ADAPTERS)
def test_a_missing_library_names_its_extra(monkeypatch, adapter, package, extra):
    module = importlib.import_module(f"everywatt.integrations.{adapter}")
    if hasattr(module, "_callback_class"):
        module._callback_class.cache_clear()
        monkeypatch.setattr(module, "_callback_class", module._callback_class.__wrapped__)
    without(monkeypatch, package)
    if adapter == "lightning":
        without(monkeypatch, "pytorch_lightning")
    with pytest.raises(MissingExtra) as caught:
        module.log_run(None) if hasattr(module, "log_run") else module.EverywattCallback
    assert str(caught.value) == f"{package} is not installed. Try: pip install 'everywatt[{extra}]'"
    assert caught.value.exit_code == 2


def test_a_library_that_is_broken_inside_says_so_itself(monkeypatch, tmp_path):
    (tmp_path / "half_a_library.py").write_text("import something_that_it_forgot")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_that_it_forgot"):
        library("half_a_library", "hf")


def test_unknown_names_are_attribute_errors():
    for adapter, _, _ in ADAPTERS[:3]:
        module = importlib.import_module(f"everywatt.integrations.{adapter}")
        with pytest.raises(AttributeError, match="Nothing"):
            module.Nothing


def test_importing_the_adapters_imports_no_framework():
    names = [adapter for adapter, _, _ in ADAPTERS]
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module("everywatt.integrations." + name)
print(sorted({{"torch", *{names!r}}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "[]", done.stderr
