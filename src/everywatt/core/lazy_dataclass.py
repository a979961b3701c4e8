"""`dataclass` as in the standard library, but `__init__` is compiled when the class is first used.

`dataclasses.dataclass` compiles each of a class's methods from text while the module is imported, 0.5 ms a class. A
command that reads a run imports about a hundred of them and makes instances of a few: that was 60 ms of every start.
Here a class costs 0.05 ms until it is used. Fields, `replace`, `asdict`, `fields`, pickling and signatures are the
standard library's. For modules that a start imports; elsewhere the standard decorator is as good.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, eq=True, frozen=False, slots=False, **others):
        """See `dataclasses.dataclass`. Other options, and classes that extend a dataclass, are left to that."""

        def decorate(cls):
            if others or any(dataclasses.is_dataclass(base) for base in cls.__bases__):
                return dataclasses.dataclass(cls, eq=eq, frozen=frozen, slots=slots, **others)
            if cls.__doc__ is None:
                cls.__doc__ = cls.__name__  # the standard decorator would compile a signature to show here
            made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots)
            made.__dataclass_params__.init = made.__dataclass_params__.repr = True
            made.__dataclass_params__.eq, made.__dataclass_params__.frozen = eq, frozen
            _add(made, {"__init__": _Init(made), "__repr__": _repr})
            if eq:
                _add_equality(made, frozen)
            if frozen:
                _freeze(made, slots)
            return made

        return decorate if cls is None else decorate(cls)


def _add(cls: type, methods: dict[str, Any]) -> None:
    """What the class defines itself stays."""
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)


class _Factory:
    """The default of a parameter whose value is made for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class _Init:
    """Stands for `__init__` until the first use, which puts the compiled one in its place."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type) -> Any:
        method = _compile_init(self._cls)
        self._cls.__init__ = method  # type: ignore[misc]
        return method if instance is None else method.__get__(instance, owner)


def _compile_init(cls: Any) -> Callable[..., None]:
    """It assigns the fields in their order."""
    scope: dict[str, Any] = {"_factory": _FACTORY, "_set": object.__setattr__}
    positional: list[str] = ["self"]
    named: list[str] = []
    values: dict[str, str] = {}
    for number, each in enumerate(dataclasses.fields(cls)):
        parameter = value = each.name
        if each.default is not dataclasses.MISSING:
            scope[f"_default{number}"] = each.default
            parameter = f"{each.name}=_default{number}"
            value = each.name if each.init else f"_default{number}"
        elif each.default_factory is not dataclasses.MISSING:
            scope[f"_make{number}"] = each.default_factory
            parameter = f"{each.name}=_factory"
            made = f"_make{number}()"
            value = f"{made} if {each.name} is _factory else {each.name}" if each.init else made
        elif not each.init:
            continue  # `__post_init__` gives it
        if each.init:
            (named if each.kw_only else positional).append(parameter)
        values[each.name] = value
    if "__slots__" in cls.__dict__ and values:
        # One line takes half as long to compile as one for each field, and nearly as short to run.
        scope["_puts"] = [getattr(cls, name).__set__ for name in values]
        body = [f"for _put, _value in zip(_puts, ({', '.join(values.values())},)): _put(self, _value)"]
    elif cls.__dataclass_params__.frozen:
        body = [f"_set(self, {name!r}, {value})" for name, value in values.items()]
    else:
        body = [f"self.{name} = {value}" for name, value in values.items()]
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    given = ", ".join([*positional, *(["*", *named] if named else [])])
    exec(f"def __init__({given}):\n " + "\n ".join(body or ["pass"]), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {each.name: each.type for each in dataclasses.fields(cls) if each.init} | {"return": None}
    return init


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _add_equality(cls: Any, frozen: bool) -> None:
    """Instances of one class are equal if the compared fields are; a hash only where these cannot change."""
    fields = dataclasses.fields(cls)
    compared = _values([each.name for each in fields if each.compare])

    def __eq__(self: Any, other: Any) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    # Python itself puts None there for a class that defines `__eq__`.
    own_hash = "__hash__" in cls.__dict__ and not (cls.__hash__ is None and "__eq__" in cls.__dict__)
    _add(cls, {"__eq__": __eq__})
    if own_hash:
        return
    if not frozen:
        cls.__hash__ = None
        return
    hashed = _values([each.name for each in fields if (each.compare if each.hash is None else each.hash)])
    cls.__hash__ = lambda self: hash(hashed(self))


def _values(names: list[str]) -> Callable[[Any], Any]:
    """The values of these fields, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _freeze(cls: Any, slots: bool) -> None:
    names = frozenset(cls.__dataclass_fields__)

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__
    if slots:  # as the standard library does: what unpickles or copies an instance may not set attributes
        _add(cls, {"__getstate__": _state, "__setstate__": _set_state})


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
