"""Counters of RAPL that were logged by somebody else have the same facts as those that everywatt reads itself."""

from __future__ import annotations

import pytest

from everywatt.api.run import load
from everywatt.core.errors import UsageError
from everywatt.tape.importing import import_files

OPTIONS = {"time": "t", "time_format": "s", "values": "joules", "unit": "J", "kind": "counter", "device": "dram.0"}


def counted(tmp_path, watts, **options):
    """Energy of ten seconds of a counter that counts so many watts."""
    log = tmp_path / "log.csv"
    log.write_text("t,joules\n" + "".join(f"{1000 + k / 10:.1f},{watts * k / 10:.4f}\n" for k in range(141)))
    run = load(import_files("csv", [log], tmp_path / "run.tape", {**OPTIONS, "domain": "dram", **options}))
    return run.energy(between=(2.0, 12.0))


# What an Ice Lake-SP server counts for one DIMM a socket, beside what a meter on the DIMM reads (recordings of
# github.com/lukalt/icpe-2024-rapl-validation): 0.8 P + 2.4 W on socket 0; socket 1 counts 5.3 W for 1.9 W.
@pytest.mark.parametrize(("counted_w", "true_w"), [(3.9, 1.84), (5.1, 3.18), (7.1, 5.86), (5.28, 1.88)])
def test_dram_of_ice_lake_servers(tmp_path, counted_w, true_w):
    energy = counted(tmp_path, counted_w, cpu="6/106")
    assert energy.low <= 10 * true_w <= energy.high


def test_a_processor_of_which_nothing_is_known_gets_the_wide_interval(tmp_path):
    known, unknown = (
        counted(tmp_path / name, 5.0, cpu=name.replace("-", "/")) for name in made(tmp_path, "6-79", "6-207")
    )
    assert known.half_width == pytest.approx(10 * (1.0**2 + (0.2 * 5) ** 2) ** 0.5, rel=0.01)
    assert unknown.high - unknown.joules > 3 * (known.high - known.joules) * 0.9


def made(tmp_path, *names):
    for name in names:
        (tmp_path / name).mkdir()
    return names


def test_a_given_accuracy_counts_more_than_the_table(tmp_path):
    assert counted(tmp_path, 5.0, cpu="6/106", gain_pct=1.0, offset_w=0.1).half_width < 2


def test_without_a_processor_nothing_is_assumed(tmp_path):
    assert any("are unknown" in note for note in counted(tmp_path, 5.0).notes)


def test_a_processor_is_a_family_and_a_model(tmp_path):
    with pytest.raises(UsageError, match="6/106"):
        counted(tmp_path, 5.0, cpu="Ice Lake")
