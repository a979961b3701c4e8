"""The data set: tokens or other arrays with labels, checked, split in halves, and cut into batches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.plugins import library

Arrays = dict[str, npt.NDArray[Any]]
REVIEWS = "reviews"
SST2 = "sst2"
SST2_FILE = "sst2_validation_tokens.npz"
SST2_SHA256 = "308a84edb60b7da96f59e06e3d2ce1ff036216fa0a8c1c78a5673c4187210ec7"
RANDOM = "random-tokens"
MOST_BATCHES = 16  # different ones in a timed loop
OLD_FILES = ("input_ids.pt", "attention_mask.pt", "labels.pt")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Arrays whose first axis is the item. `labels` is None for unlabelled data (language models)."""

    name: str
    inputs: Mapping[str, npt.NDArray[Any]]
    labels: npt.NDArray[np.int64] | None
    note: str = ""

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def tokens(self) -> bool:
        return "input_ids" in self.inputs

    def lengths(self) -> npt.NDArray[np.int64]:
        mask = self.inputs.get("attention_mask")
        if mask is None:
            return np.full(len(self), self.inputs["input_ids"].shape[1], dtype=np.int64)
        return np.asarray(mask.astype(np.int64).sum(axis=1), dtype=np.int64)

    def batch(self, items: Sequence[int] | npt.NDArray[np.int64], length: int | None = None) -> Arrays:
        """Those items; sentences are cut to `length` tokens, or to the longest one among them."""
        chosen = np.asarray(items, dtype=np.int64)
        if not self.tokens:
            return {name: array[chosen] for name, array in self.inputs.items()}
        cut = length or max(1, int(self.lengths()[chosen].max()))
        return {name: array[chosen][:, :cut] for name, array in self.inputs.items()}

    def fitting_length(self) -> int | None:
        """Tokens that nine in ten sentences fit in, rounded up to eights; None where items are not sentences."""
        if not self.tokens:
            return None
        most = int(self.inputs["input_ids"].shape[1])
        return min(most, -(-int(np.quantile(self.lengths(), 0.9)) // 8) * 8)


def load_data(source: str) -> Dataset:
    """`reviews`, `sst2`, `random-tokens`, an .npz file, or a folder of input_ids.pt, attention_mask.pt and labels.pt,
    which needs torch.

    `reviews` is bundled (scripts/make_review_tokens.py). SST-2 has no clear licence, so it is not: `sst2` reads the
    user's own copy and checks its SHA-256.
    """
    if source == REVIEWS:
        with resources.as_file(resources.files(__package__) / "review_tokens.npz") as file:
            return _checked("generated reviews", _npz(file), note="BERT-uncased tokens")
    if source == SST2:
        return _checked("SST-2 validation", _npz(_sst2_file()), note="BERT-uncased tokens")
    if source == RANDOM:
        rng = np.random.default_rng(0)
        ids = rng.integers(0, 1000, (64, 64))
        return Dataset(RANDOM, {"input_ids": ids, "attention_mask": np.ones_like(ids)}, None, "random tokens")
    path = Path(source)
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".npz" and path.is_file():
        return _checked(path.name, _npz(path))
    raise UsageError(
        f"'{source}' is neither {REVIEWS}, {SST2}, {RANDOM}, an .npz file, nor a folder with {', '.join(OLD_FILES)}.",
    )


def _sst2_file() -> Path:
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    path = base / "everywatt" / SST2_FILE
    if not path.is_file():
        raise UsageError(
            f"SST-2 is not bundled with everywatt: {path} is missing.",
            cure=f"copy {SST2_FILE} there (872 sentences as BERT-uncased tokens), or use --data {REVIEWS}.",
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != SST2_SHA256:
        raise UsageError(
            f"{path} is not the expected file: its SHA-256 should be {SST2_SHA256}.",
            cure=f"replace it, or pass your own file as --data {path}.",
        )
    return path


def _npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error


def _tensor(path: Path) -> npt.NDArray[Any]:
    """The one tensor in a .pt file. Nothing in it is executed: torch ≥ 2.6 refuses all but plain tensors."""
    torch = library("torch", "precision")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UsageError(f"{path} cannot be read: {str(error).partition('. ')[0]}.") from error
    if not isinstance(found, torch.Tensor):
        raise UsageError(f"{path} contains a {type(found).__name__}, not one tensor.")
    return np.asarray(found.numpy())


def _folder(path: Path) -> Dataset:
    missing = [name for name in OLD_FILES if not (path / name).is_file()]
    if missing and missing != ["labels.pt"]:
        raise UsageError(f"{path} lacks {', '.join(missing)}.")
    arrays = {Path(name).stem: _tensor(path / name) for name in OLD_FILES if name not in missing}
    metadata: dict[str, Any] = {}
    if (path / "metadata.json").is_file():
        metadata = foreign.read_json(path / "metadata.json")
    found = _checked(path.name, arrays, metadata.get("num_labels"), str(metadata.get("tokenizer", "")))
    if metadata.get("num_samples") not in (None, len(found)):
        raise UsageError(
            f"{path}: metadata.json reports {metadata['num_samples']} samples, the tensors have {len(found)}."
        )
    return found


def _checked(name: str, arrays: Arrays, num_labels: int | None = None, note: str = "") -> Dataset:
    """The data set, or which array is wrong and how."""
    labels = arrays.pop("labels", None)
    if not arrays:
        raise UsageError(f"{name} has no inputs.")
    count = len(next(iter(arrays.values())))
    for key, array in arrays.items():
        if array.ndim == 0 or len(array) != count:
            raise UsageError(f"{name}: {key} has shape {array.shape}, but the others have {count} items.")
        if array.dtype.kind not in "iufb":
            raise UsageError(f"{name}: {key} holds {array.dtype}, not numbers.")
    if count == 0:
        raise UsageError(f"{name} is empty.")
    if "input_ids" in arrays:
        _check_tokens(name, arrays)
    if labels is not None:
        labels = _check_labels(name, labels, count, num_labels)
    return Dataset(name, arrays, labels, note)


def _check_tokens(name: str, arrays: Arrays) -> None:
    ids, mask = arrays["input_ids"], arrays.get("attention_mask")
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise UsageError(
            f"{name}: input_ids has shape {ids.shape} of {ids.dtype}; expected integers of shape items × tokens."
        )
    if ids.min() < 0:
        raise UsageError(f"{name}: input_ids contains the invalid token {ids.min()}.")
    if mask is not None and mask.shape != ids.shape:
        raise UsageError(f"{name}: attention_mask has shape {mask.shape}, input_ids {ids.shape}.")
    if mask is not None and not np.isin(mask, (0, 1)).all():
        raise UsageError(f"{name}: attention_mask has values other than 0 and 1.")
    arrays["input_ids"] = ids.astype(np.int64)
    arrays["attention_mask"] = np.ones_like(ids) if mask is None else mask.astype(np.int64)


def _check_labels(name: str, labels: npt.NDArray[Any], count: int, num_labels: int | None) -> npt.NDArray[np.int64]:
    if labels.ndim != 1 or len(labels) != count:
        raise UsageError(f"{name}: labels has shape {labels.shape}; expected ({count},).")
    if labels.dtype.kind not in "iub":
        raise UsageError(f"{name}: labels holds {labels.dtype}, not integers.")
    wrong = np.flatnonzero((labels < 0) | (labels >= num_labels if num_labels else False))
    if len(wrong):
        limit = f"0 to {num_labels - 1}" if num_labels else "not negative"
        raise UsageError(f"{name}: label {labels[wrong[0]]} of item {wrong[0]} is invalid; labels are {limit}.")
    return labels.astype(np.int64)


def halves(count: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Two halves at random, the same for the same seed: the first trains, the second scores."""
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[: count // 2]), np.sort(order[count // 2 :])


def scored_items(data: Dataset, task: str, seed: int, limit: int | None) -> npt.NDArray[np.int64]:
    """Which items are scored: the second half where a probe is trained on the first, else all; `limit` at random."""
    items = halves(len(data), seed)[1] if task == "encode" else np.arange(len(data))
    if limit is not None and limit < len(items):
        items = np.sort(np.random.default_rng(seed + 1).permutation(items)[:limit])
    return items


def by_length(data: Dataset, items: npt.NDArray[np.int64], size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Batches of items of similar length, so that little is padded; every item once."""
    order = items[np.argsort(data.lengths()[items], kind="stable")] if data.tokens else items
    for start in range(0, len(order), size):
        yield order[start : start + size]


def timed_batches(data: Dataset, size: int, length: int | None) -> list[Arrays]:
    """Batches of one shape for the timed loop: full, of `length` tokens, at most so many different ones."""
    count = len(data)
    pick = [
        np.arange(start, start + size) % count for start in range(0, min(MOST_BATCHES * size, max(count, size)), size)
    ]
    return [data.batch(items, length) for items in pick]
