"""powermetrics, from transcripts in its formats (numbers of ours)."""

from __future__ import annotations

import plistlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.api.run import load
from everywatt.core.errors import UsageError
from everywatt.formats.powermetrics import parse_powermetrics
from everywatt.tape.importing import import_files

HEAD = "*** Sampled system activity (Fri Nov  7 17:15:{s:02d} 2025 +0100) (1003.25ms elapsed) ***\n\n"
BODY = """**** Processor usage ****

E-Cluster HW active frequency: 1024 MHz
CPU 0 frequency: 1024 MHz
CPU Power: 1500 mW
GPU Power: 400 mW
ANE Power: 100 mW
Combined Power (CPU + GPU + ANE): 2000 mW

**** GPU usage ****

GPU HW active frequency: 389 MHz
GPU Power: 400 mW
"""
TEXT = "Machine model: Mac14,2\n\n" + "".join(HEAD.format(s=s) + BODY for s in range(20))
INTEL = HEAD.format(s=1) + "Intel energy model derived package power (CPUs+GT+SA): 14.7W\n"


def plist(n, **processor):
    data = {
        "timestamp": datetime(2025, 11, 7, 16, 15, 0) + timedelta(seconds=n),
        "elapsed_ns": 1_003_250_000,
        "processor": {"cpu_power": 1500.0, "gpu_power": 400.0, "ane_power": 100, "combined_power": 2000.0} | processor,
    }
    return plistlib.dumps(data)


PLIST = b"\0".join(plist(n) for n in range(20))


@pytest.mark.parametrize("data", [TEXT.encode(), PLIST], ids=["text", "plist"])
def test_both_formats_say_the_same(data):
    samples = parse_powermetrics(data)
    assert len(samples) == 20
    assert samples[3].watts == pytest.approx({"cpu": 1.5, "gpu": 0.4, "ane": 0.1, "combined": 2.0})
    assert samples[3].time == datetime(2025, 11, 7, 16, 15, 3, tzinfo=UTC)
    assert samples[3].elapsed_s == pytest.approx(1.00325)


def test_intel_macs_tell_watts():
    assert parse_powermetrics(INTEL.encode())[0].watts == {"combined": 14.7}
    assert parse_powermetrics(plist(0, package_watts=14.7))[0].watts["combined"] == 14.7


@pytest.mark.parametrize("data", [TEXT.encode(), PLIST], ids=["text", "plist"])
def test_a_tape_whose_total_counts_nothing_twice(tmp_path, data):
    log = tmp_path / "log"
    log.write_bytes(data)
    run = load(import_files("powermetrics", [log], tmp_path / "out.tape"))
    found = run.energy()
    assert found.joules == pytest.approx(2.0 * run.duration_s, rel=1e-6)
    assert run.duration_s == pytest.approx(19 * 1.00325, abs=1.1)
    assert found.pedigree == "modelled"


def test_the_last_sample_may_be_cut(tmp_path):
    assert len(parse_powermetrics(PLIST[:-40])) == 19
    assert len(parse_powermetrics(TEXT[: TEXT.rindex("CPU Power")].encode())) == 19
    log = tmp_path / "log"
    log.write_text("hello")
    with pytest.raises(UsageError, match="no sample"):
        import_files("powermetrics", [log], tmp_path / "out.tape")


ONE_TEXT, ONE_PLIST = (HEAD.format(s=1) + BODY).encode(), plist(0)


@given(
    st.binary(max_size=60)
    | st.tuples(st.sampled_from([ONE_TEXT, ONE_PLIST]), st.integers(0, 1000), st.binary(max_size=3)).map(
        lambda p: p[0][: p[1]] + p[2] + p[0][p[1] + 1 :]
    )
)
@settings(max_examples=200, deadline=None)
def test_anything_gives_samples_or_none(data):
    for sample in parse_powermetrics(data):
        assert sample.elapsed_s > 0 and all(abs(watts) < 1e13 for watts in sample.watts.values())
