"""What can be said of simulated devices: parsed, refused, documented."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from everywatt.cli.sim import sim
from everywatt.core.errors import UsageError
from everywatt.sim.machine import SimMachine
from everywatt.sim.options import GPU_KEYS, MACHINE_KEYS, PACKAGE_KEYS, GpuProcess, parse_settings, parse_size

DOC = Path(__file__).parents[2] / "docs" / "sim.md"


def test_keys_for_all_and_for_one():
    machine = SimMachine.of(
        gpus=["constant:1W", "constant:2W"],
        packages=["constant:3W"],
        sensor=[
            "period=20ms,name=A, B,gpu.1.period=5ms",
            "package.wrap=300J,package.0.fault=empty,psys=4W,smi=na+hang",
        ],
    )
    assert [gpu.period_s for gpu in machine.gpus] == [0.02, 0.005]
    assert machine.gpus[0].name == "A, B"
    assert (machine.packages[0].wrap_j, machine.packages[0].fault) == (300.0, "empty")
    assert (machine.psys_w, machine.smi) == (4.0, ("na", "hang"))


def test_processes_and_sizes():
    rows = parse_settings(["processes=7:2GiB:50%+0:512MiB:0.25:1"]).of("gpu")["processes"]
    assert rows == (GpuProcess(7, 2 * 2**30, 0.5, 0.2), GpuProcess(0, 2**29, 0.25, 0.1, instance=1))
    assert [parse_size(text) for text in ("12", "1KiB", "80GB")] == [12, 1024, 80 * 10**9]
    with pytest.raises(UsageError):
        parse_size("3 apples")


def test_every_key_is_documented():
    keys = [*GPU_KEYS, *PACKAGE_KEYS, *MACHINE_KEYS]
    text, usage = DOC.read_text(), CliRunner().invoke(sim, ["--help"]).output
    assert [key for key in keys if f"`{key}`" not in text] == []
    assert [key for key in keys if key not in usage] == []


def test_a_machine_that_cannot_be_made_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UsageError, match="MIG"):
        SimMachine.of(gpus=["constant:1W"], sensor=["mig=big"]).start()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("everywatt-sim-")] == []


@pytest.mark.parametrize("text", ["gpu.².lost_at=5s", "mig=²g.5gb", "mig=1g.⑤gb"])
def test_digits_that_are_no_numbers_are_refused(text):
    with pytest.raises(UsageError):
        SimMachine.of(gpus=["constant:1W"], sensor=[text]).start().close()
