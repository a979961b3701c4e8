"""The recorded cards of tests/energy/data as plain arrays: polls of nvidia-smi, and when the load was switched."""

from __future__ import annotations

import csv
import gzip
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parents[1] / "energy" / "data"
LOCAL = timezone(timedelta(hours=1))


def polls(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Unix times and numeric columns of a log of nvidia-smi; a value that is no number is NaN."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.reader(file, skipinitialspace=True))
    names = [name.split(" [")[0] for name in rows[0]]
    full = [row for row in rows[1:] if len(row) == len(names)]
    when = [datetime.strptime(row[0], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=LOCAL).timestamp() for row in full]
    return np.array(when), {name: np.array([_number(row[i]) for row in full]) for i, name in enumerate(names) if i}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def marks(recording: str) -> np.ndarray:
    """Unix times at which the load was switched."""
    return np.loadtxt(DATA / recording / "load_marks.csv", skiprows=1)
