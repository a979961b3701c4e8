"""Finished runs beside each other, on tapes that are written by hand."""

from dataclasses import replace

import pytest
from tapes import counter_group, rows, write_tape

from everywatt.api.run import Run, load
from everywatt.bench.comparing import compare_runs
from everywatt.bench.trials import Trial, with_energy
from everywatt.core.budget import Budget, Term
from everywatt.core.channels import Channel, Domain, Kind
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy
from everywatt.core.errors import ScopeError
from everywatt.meters.series import Part, Table, group, write_part

ZERO_NS = 1_790_000_000 * NS


def run_of(folder, device, domain, watts):
    """20 s at constant watts."""
    folder.mkdir()
    table = Table(group(device, "meter", [Channel(f"{device}.energy", "J", Kind.COUNTER, device, domain)]))
    for n in range(201):
        table.add(ZERO_NS + n * NS // 10, [n * watts / 10])
    path = folder / "h-0001.tape"
    write_part(path, Part([table], spans=[("run", ZERO_NS, ZERO_NS + 20 * NS, {"role": "run"})]), [path], {})
    return load(folder)


def test_runs_that_cover_other_things_are_compared_only_where_forced(tmp_path):
    node, card = run_of(tmp_path / "a", "host", Domain.NODE, 100), run_of(tmp_path / "b", "gpu.0", Domain.GPU, 80)
    with pytest.raises(ScopeError, match="b covers 'gpu' and a covers '") as error:
        compare_runs([node, card])
    assert "--force" in (error.value.cure or "")
    _, beside = compare_runs([node, card], force=True).found
    assert beside.gross.value == pytest.approx(0.8, rel=1e-6)
    assert "scopes differ" in beside.verdict


def test_runs_of_one_scope_have_a_ratio(tmp_path):
    first, second = (run_of(tmp_path / name, "gpu.0", Domain.GPU, watts) for name, watts in (("a", 100), ("b", 50)))
    one, two = compare_runs([first, second]).found
    assert one.gross is None
    assert two.gross.value == pytest.approx(0.5, rel=1e-6)
    assert two.gross.low <= 0.5 <= two.gross.high
    assert "less energy" in two.verdict


def test_no_ratio_to_a_net_energy_that_may_be_zero(monkeypatch, tmp_path):
    first, second = (run_of(tmp_path / name, "gpu.0", Domain.GPU, watts) for name, watts in (("a", 100), ("b", 50)))
    near_zero = {
        first.name: Energy(0.002, Budget((Term("baseline", "idle", 0.01),)), "gpu", "counter", signed=True),
        second.name: Energy(0.004, Budget((Term("baseline", "idle", 0.001),)), "gpu", "counter", signed=True),
    }
    monkeypatch.setattr(Run, "energy_net", lambda run: near_zero[run.name])
    _, two = compare_runs([first, second]).found
    assert two.above_idle is None and two.gross is not None


def test_a_verdict_names_its_run_once(tmp_path):
    first, second = (run_of(tmp_path / name, "gpu.0", Domain.GPU, watts) for name, watts in (("a", 100), ("b", 50)))
    result = compare_runs([first, second])
    assert result.verdicts()[0].startswith("b used 50") and result.verdicts()[0].count("b ") == 1
    assert result.tables()[0].notes == tuple(result.verdicts())


def test_a_run_of_ten_times_the_energy_is_that(tmp_path):
    first, second = (run_of(tmp_path / name, "gpu.0", Domain.GPU, watts) for name, watts in (("a", 10), ("b", 100)))
    verdict = compare_runs([first, second]).verdicts()[0]
    assert verdict.startswith("b used 10.") and " times (" in verdict and verdict.endswith(" as much energy as a")


def test_a_refused_figure_above_idle_names_its_run(tmp_path):
    runs = [run_of(tmp_path / name, "gpu.0", Domain.GPU, watts) for name, watts in (("a", 100), ("b", 50))]
    found = compare_runs(runs)
    said = [replace(one, net=Energy.refuse(f"idle of {one.name} is not known")) for one in found.found]
    assert replace(found, found=tuple(said)).verdicts()[1:] == [
        "a above idle: refused: idle of a is not known", "b above idle: refused: idle of b is not known"
    ]  # fmt: skip


def test_trials_of_a_finished_run_have_the_figures_of_the_finished_run(tmp_path):
    package = (counter_group(), 0.1, rows(lambda t: 40 * t, 0, 10, 0.1))
    run = load(write_tape(tmp_path / "x.tape", [package], [("trial", 2, 4, None, {"role": "trial"})]))
    early = Trial(0, 0, 0, "s0", 0, 2.0, 1.0, None, energy=Energy.refuse("not yet"), net=Energy.refuse("not yet"))
    (live,), (found,) = with_energy([early], run, live=True), with_energy([early], run)
    assert live.energy.refused == "not yet", "a live trial is asked for once"
    assert found.energy.joules == pytest.approx(80.0) and found.net == run.energy_net(run.spans[0])
