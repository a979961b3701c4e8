"""Kinds of CPU work really differ: in bytes through main memory, and in instructions where the hardware counts them."""

import time

import pytest

from everywatt.stress import KINDS, Load, parse_shape, play, shaped
from everywatt.stress.cpu import ROUND_NS, Instructions, Kind, prepare, stream_bytes, with_rounds


@pytest.fixture(scope="module")
def rates():
    """For each kind: operations, bytes and (perhaps) instructions per second of CPU time."""
    load = Load(cpu_cores=1, cpu_kinds=KINDS)
    results = play(shaped(load, {"": parse_shape("60")}, time_s=3.0))
    found = {}
    for result in results:
        spent_s = result.reached["cpu_s"]
        assert spent_s > 0
        names = ("operations", "bytes", "instructions")
        found[result.asked["cpu_kind"]] = {
            name: result.reached[name] / spent_s for name in names if name in result.reached
        }
    return found


def test_only_memory_bound_work_moves_bytes(rates):
    assert rates["memory"]["bytes"] > 200e6, "a copy moves at least hundreds of megabytes a second"
    assert all(rates[kind]["bytes"] == 0 for kind in KINDS if kind != "memory")


def test_each_kind_does_its_own_amount(rates):
    """Flops of vector units, scalar additions, elements sorted, long multiplications: far apart on any processor."""
    operations = {kind: rates[kind]["operations"] for kind in KINDS}
    assert operations["vector"] > 3 * operations["float"]
    assert operations["float"] > 3 * operations["branchy"]
    assert operations["branchy"] > 0 and operations["integer"] > 0


def test_instructions_differ_where_the_hardware_counts(rates):
    if "instructions" not in rates["integer"]:
        pytest.skip("no hardware counter of instructions here (perf_event_open)")
    each = {kind: rates[kind]["instructions"] for kind in KINDS}
    assert each["memory"] < 0.7 * each["integer"], "it waits for memory"
    assert len({round(value / 1e7) for value in each.values()}) == len(KINDS)


def test_the_counter_counts_or_says_that_it_cannot():
    counter = Instructions()
    try:
        first, second = counter.read(), counter.read()
    finally:
        counter.close()
    assert (first is None and second is None) or 0 <= first < second


@pytest.mark.parametrize(
    ("caches", "mib"), [({}, 64), ({"index0": "32K", "index3": "98304K"}, 96), ({"index3": "393216K"}, 256)]
)
def test_a_stream_is_larger_than_the_last_cache_and_bounded(tmp_path, caches, mib):
    for name, text in caches.items():
        file = tmp_path / "devices/system/cpu/cpu0/cache" / name / "size"
        file.parent.mkdir(parents=True)
        file.write_text(f"{text}\n")
    assert stream_bytes(tmp_path) == mib * 2**20


@pytest.mark.parametrize("name", KINDS)
def test_a_look_at_the_clock_comes_every_fifth_of_a_millisecond(name):
    kind = prepare(name)
    took = []
    for _ in range(9):
        began = time.process_time_ns()
        for _ in range(kind.rounds):
            kind.work()
        took.append(time.process_time_ns() - began)
    assert ROUND_NS / 20 < sorted(took)[4] < ROUND_NS * 20


def test_a_pause_while_work_is_prepared_does_not_change_how_often_the_clock_is_read():
    """A cold cache or another thread of the process may take a millisecond once; after it a round takes 1 µs."""
    now_ns, looks = 0, 0

    def clock():
        nonlocal now_ns, looks
        looks += 1
        if looks == 2:
            now_ns += 1_000_000
        return now_ns

    def work():
        nonlocal now_ns
        now_ns += 1_000

    kind = with_rounds(Kind(work, operations=1), clock)
    assert kind.rounds == pytest.approx(ROUND_NS / 1_000, rel=0.05)
