"""Arrow columns from numpy arrays and back by their buffers: pyarrow's own ways import pandas where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from everywatt.meters.block import Bools


def to_column(values: Any, missing: Bools | None = None) -> Any:
    """An Arrow array of a numpy array's numbers or truth values, null where `missing` says so."""
    import pyarrow as pa

    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
    if values.dtype == np.bool_:
        data = pa.py_buffer(np.packbits(values, bitorder="little").tobytes())
        return pa.Array.from_buffers(pa.bool_(), len(values), [valid, data])
    kind = {"int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64(), "float32": pa.float32()}
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind[values.dtype.name], len(values), [valid, data])


def to_numpy(column: Any) -> Any:
    """The numbers of a column; what stands where it is null is anything."""
    parts = [_chunk(chunk) for chunk in column.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.zeros(0, dtype=str(column.type))


def _chunk(chunk: Any) -> Any:
    name, data = str(chunk.type), chunk.buffers()[1]
    low, high = chunk.offset, chunk.offset + len(chunk)
    if name == "bool":
        bits = np.frombuffer(data, dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[low:high].astype(np.bool_)
    return np.frombuffer(data, dtype={"float": "float32", "double": "float64"}.get(name, name))[low:high]
