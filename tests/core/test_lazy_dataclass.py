"""The lazy decorator makes the same classes as the standard library's, and the start imports no others."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from everywatt.core import lazy_dataclass

MOST_COMPILED = 20  # 10 ms
OPTIONS = [
    {"frozen": frozen, "slots": slots, "eq": eq} for frozen, slots, eq in itertools.product((False, True), repeat=3)
]


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Picklable:
    """As most values of everywatt are."""

    name: str
    parts: tuple[int, ...] = ()


@lazy_dataclass.dataclass
class Changing:
    """With a dictionary, and a value that is made from others."""

    name: str
    values: list[int] = field(default_factory=list)
    length: int = field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.values)


def made_by(decorator: Callable[..., Any], **options: Any) -> Any:
    @decorator(**options)
    class Sample:
        """With every kind of field that everywatt uses."""

        first: int
        second: float = 1.5
        third: list[int] = field(default_factory=list)
        hidden: str = field(default="", repr=False)
        label: str = field(default="label", compare=False)
        fixed: int = field(default=7, init=False)
        named: int = field(default=3, kw_only=True)

    return Sample


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_class_is_as_the_standard_library_makes_it(options):
    ours, theirs = made_by(lazy_dataclass.dataclass, **options), made_by(dataclasses.dataclass, **options)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__init__.__qualname__ == theirs.__init__.__qualname__
    assert [each.name for each in dataclasses.fields(ours)] == [each.name for each in dataclasses.fields(theirs)]
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    for arguments, named in (((1,), {}), ((1, 2.0, [3], "x", "y"), {"named": 9}), ((), {"first": 4, "label": "z"})):
        one, other = ours(*arguments, **named), theirs(*arguments, **named)
        assert repr(one) == repr(other)
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        assert repr(dataclasses.replace(one, second=8.0)) == repr(dataclasses.replace(other, second=8.0))
        assert repr(copy.deepcopy(one)) == repr(other)
    for wrong, named in (((), {}), ((1, 2, [], "", "", 6), {}), ((1,), {"fixed": 2}), ((1,), {"unknown": 2})):
        messages = []
        for cls in (ours, theirs):
            with pytest.raises(TypeError) as error:
                cls(*wrong, **named)
            messages.append(str(error.value))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equality_and_hashes(options):
    def facts(cls: Any) -> list[Any]:
        same, label = cls(1, third=(2,)) == cls(1, third=(2,)), cls(1, label="a") == cls(1, label="b")
        other, stranger = cls(1) == cls(2), cls(1) == 1
        hashable = cls.__hash__ is not None
        equal_hashes = hashable and hash(cls(1, third=())) == hash(cls(1, third=(), label="b"))
        return [same, label, other, stranger, hashable, equal_hashes]

    assert facts(made_by(lazy_dataclass.dataclass, **options)) == facts(made_by(dataclasses.dataclass, **options))


@pytest.mark.parametrize("slots", [False, True])
def test_what_is_frozen_cannot_be_changed(slots):
    one = made_by(lazy_dataclass.dataclass, frozen=True, slots=slots)(1)
    for attribute in ("first", "unknown"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{attribute}'"):
            setattr(one, attribute, 2)
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{attribute}'"):
            delattr(one, attribute)


def test_own_methods_stay():
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Own:
        """Equal to all."""

        value: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    assert (repr(Own(1)), Own(1) == Own(2), hash(Own(3))) == ("own", True, 5)


def test_instances_survive_pickling_and_inheritance():
    value = Picklable("a", (1, 2))
    assert pickle.loads(pickle.dumps(value)) == value == copy.copy(value)
    assert Changing("b", [1, 2]).length == 2

    class Child(Changing):
        """Not a dataclass itself."""

    assert repr(Child("c")).endswith("Child(name='c', values=[], length=0)")

    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Longer(Picklable):
        """A dataclass that extends one is made by the standard library."""

        size: int = 0

    assert Longer("d", size=3) == Longer("d", (), 3)


def test_little_that_a_start_imports_is_compiled_by_the_standard_library():
    """0.5 ms a class: a hundred of them were 60 ms of every `everywatt run`."""
    code = (
        "import dataclasses, sys\n"
        "standard, compiled = dataclasses.dataclass, []\n"
        "def watched(cls=None, /, *, init=True, **options):\n"
        "    def decorate(cls):\n"
        "        if init and cls.__module__.startswith('everywatt.'): compiled.append(cls.__qualname__)\n"
        "        return standard(cls, init=init, **options)\n"
        "    return decorate if cls is None else decorate(cls)\n"
        "dataclasses.dataclass = watched\n"
        "import everywatt.recorder.process, everywatt.cli.common.group, everywatt.cli.run\n"
        "import everywatt.api.run, everywatt.ledger.build, everywatt.report.text\n"
        "print(*compiled)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert len(done.stdout.split()) <= MOST_COMPILED, done.stdout
