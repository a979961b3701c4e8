"""What importers do with files that were made to harm: an error in a sentence, soon, and with little memory."""

import gzip
import resource
import time
import zlib

import pytest

from everywatt.core.errors import UsageError
from everywatt.tape.importing import import_files

TEXTS = ["csv", "jsonl", "tegrastats", "nvidia-smi", "dmon", "codecarbon", "sage", "ipmi", "omegawatt"]


def bomb(fill: bytes, mebibytes: int) -> bytes:
    """A gzip file that unpacks to so much of one byte; made of one piece that is repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(fill * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\3" + piece * mebibytes + b"\3\0" + bytes(8)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("fill", [b"\0", b"\n", b"1"])
def test_a_packed_bomb_is_refused(tmp_path, kind, fill):
    path = tmp_path / "log.gz"
    path.write_bytes(bomb(fill, 300))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(UsageError, match=r"log\.gz"):
        import_files(kind, [path], tmp_path / "x.tape", {"time": "t", "values": "w"})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000, "kB"
    assert time.process_time() - began < 20
    assert not list(tmp_path.glob("x.tape*"))


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"\xff\xfe\xfd" * 50,
        gzip.compress(b"x" * 999, mtime=0)[:-9],
    ],
    ids=["brackets", "objects", "noise", "cut"],
)
def test_nothing_more_than_a_usage_error(tmp_path, kind, data):
    path = tmp_path / "log"
    path.write_bytes(data)
    with pytest.raises(UsageError):
        import_files(kind, [path], tmp_path / "x.tape", {"time": "t", "values": "w"})


def test_spans_beside_an_export_that_are_something_else(tmp_path):
    tick = (
        '{"host": "h", "channel": "gpu.0.power", "unit": "W", "kind": "gauge", "device": "gpu.0", "value": 1,'
        ' "monotonic_ns": %d, "early_ns": %d, "late_ns": %d}\n'
    )
    path = tmp_path / "x.jsonl"
    path.write_text("".join(tick % (n, n, n) for n in (1, 2, 3)))
    (tmp_path / "x.spans.jsonl").write_text('{"id": 5}\n')
    with pytest.raises(UsageError, match="spans or points beside"):
        import_files("jsonl", [path], tmp_path / "x.tape")
