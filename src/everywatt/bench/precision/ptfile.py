"""Tensors of a PyTorch file, read without torch and without running anything in it.

A `.pt` file is a zip archive with a pickle of the structure and one member for the bytes of each storage. The pickle is
read by an unpickler that knows four names and refuses every other, so a hostile file can say nothing but an error.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from everywatt.core.errors import UsageError

STORAGES = {
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "HalfStorage": "f2",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
LARGEST_BYTES = 2 << 30


class _Storage:
    """Stands for torch.LongStorage and its kin: only its name counts."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(STORAGES[name])


def _rebuild(
    storage: npt.NDArray[Any], offset: int, size: Sequence[int], stride: Sequence[int], *rest: object
) -> npt.NDArray[Any]:
    """The array that torch would make of a storage; strides that lead outside of it are refused."""
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True) if n > 0)
    if offset < 0 or any(n < 0 for n in size) or any(step < 0 for step in stride):
        raise pickle.UnpicklingError("a tensor has a negative size or stride")
    if 0 not in size and last >= storage.size:
        raise pickle.UnpicklingError("a tensor reaches beyond its storage")
    if np.prod([int(n) for n in size], dtype=object) > LARGEST_BYTES:
        raise pickle.UnpicklingError("a tensor is larger than the limit of this reader")
    step = storage.itemsize
    view = np.lib.stride_tricks.as_strided(storage[offset:], tuple(size), tuple(int(s) * step for s in stride))
    return view.copy()


class _Reader(pickle.Unpickler):
    def __init__(self, file: BinaryIO, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(file)
        self._archive = archive
        self._prefix = prefix

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in STORAGES:
            return _Storage(name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not a plain tensor")

    def persistent_load(self, pid: Any) -> npt.NDArray[Any]:
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and isinstance(pid[1], _Storage)):
            raise pickle.UnpicklingError("it refers to something that is not a storage")
        _, kind, key, _, count = pid
        member = self._archive.getinfo(f"{self._prefix}data/{key}")
        wanted = int(count) * kind.dtype.itemsize
        if member.file_size < wanted or wanted > LARGEST_BYTES:
            raise pickle.UnpicklingError("a storage is shorter than declared, or too large")
        return np.frombuffer(self._archive.read(member)[:wanted], dtype=kind.dtype)


def read_tensor(path: Path) -> npt.NDArray[Any]:
    """The one tensor in a `.pt` file as an array. UsageError says why where it cannot be read so."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(inside) != 1:
                raise UsageError(f"{path} is a zip archive, but not one of PyTorch.")
            prefix = inside[0].removesuffix("data.pkl")
            order = f"{prefix}byteorder"
            if order in archive.namelist() and archive.read(order).strip() != b"little":
                raise UsageError(f"{path} was written on a big-endian machine, which is not supported.")
            with archive.open(inside[0]) as file:
                found = _Reader(file, archive, prefix).load()  # type: ignore[arg-type]
    except zipfile.BadZipFile:
        raise UsageError(
            f"{path} is not a PyTorch file of version 1.6 or later.", cure="save it again with torch.save"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except (pickle.UnpicklingError, KeyError, ValueError, TypeError, IndexError, EOFError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    if not isinstance(found, np.ndarray):
        raise UsageError(f"{path} contains a {type(found).__name__}, not one tensor.")
    return found
