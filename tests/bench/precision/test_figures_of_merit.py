"""Scores, probe, labels, endings, layers, Pareto: pure functions against numbers that are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from precisions import precision_result

from everywatt.bench.figures import Mean
from everywatt.bench.precision.computed import Computed, cpu_flags, emulated, int8_note, refusal
from everywatt.bench.precision.layers import REMAINDER, apportion, by_part, part_of
from everywatt.bench.precision.result import Latency, Window, layer_table
from everywatt.bench.precision.scoring import (
    PENALTIES,
    Probe,
    accuracy,
    divergence,
    paired_accuracy,
    paired_perplexity,
    perplexity,
)
from everywatt.bench.precision.variants import cure, died, explained, next_isa
from everywatt.bench.sweep import pareto
from everywatt.bench.trials import PowerSamples
from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy
from everywatt.core.stats import wilson
from everywatt.report.html.trials import precision_document


def test_the_paired_difference_is_narrower_than_two_apart_and_holds_the_truth():
    rng = np.random.default_rng(2)
    held, n = [], 300
    for _ in range(600):
        base = rng.random(n) < 0.8
        flip = rng.random(n)
        other = np.where(base, flip > 0.05, flip < 0.1)  # 0.8 × 0.95 + 0.2 × 0.1 = 0.78: two points less
        change, low, high, _ = paired_accuracy(base, other)
        held.append(low <= -0.02 <= high)
        assert low <= change <= high
    assert 0.92 < np.mean(held) < 0.985
    assert high - low < 2 * (wilson(240, 300)[1] - wilson(240, 300)[0])
    same = np.array([True, False] * 50)
    assert paired_accuracy(same, same)[0] == 0 and paired_accuracy(same, same)[3] == 1.0


def test_perplexity_of_a_uniform_guess():
    loss, tokens = np.full(5, math.log(50) * 7), np.full(5, 7)
    assert perplexity(loss, tokens).value == pytest.approx(50)
    assert paired_perplexity(loss, loss + 7 * math.log(1.1), tokens).change == pytest.approx(1.1)


def test_divergence_in_nats():
    assert divergence([[0.0, 0.0]], [[0.0, 0.0]]) == 0
    assert divergence([[0.0, 0.0]], [[math.log(3), 0.0]]) == pytest.approx(
        0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(2)
    )


def test_the_probe_learns_what_is_there_and_nothing_else():
    rng = np.random.default_rng(3)
    labels = np.arange(400) % 2
    told = rng.normal(size=(400, 20)) + 4 * labels[:, None] * np.eye(20)[0]
    assert accuracy(Probe(told[:200], labels[:200]).logits(told[200:]).argmax(1) == labels[200:]).value > 0.9
    noise = rng.normal(size=(400, 20))
    assert 0.35 < (Probe(noise[:200], labels[:200]).logits(noise[200:]).argmax(1) == labels[200:]).mean() < 0.65
    three = np.arange(90) % 3
    clouds = rng.normal(size=(90, 5)) * 0.1 + np.eye(5)[three]
    assert (Probe(clouds, three).logits(clouds).argmax(1) == three).all()


FLOAT = Computed({"float32": 91_000_000}, {"float32": 37}, {"aten::addmm": 37}, 91_000_000, 91_000_000, 22_700_000)
INT8 = Computed(
    {"float32": 48_000_000, "qint8": 10_700_000}, {"int8": 37}, {"quantized::linear_dynamic": 37}, 59_000_000,
    58_700_000, 22_700_000,
)  # fmt: skip
LARGE = Computed({"qint8": 22_700_000}, {}, {"quantized::linear": 3}, 91_000_000, None, 22_700_000)


@pytest.mark.parametrize(
    "label, seen, why",
    [
        ("fp32", FLOAT, None),
        ("int8", INT8, None),
        ("int8", FLOAT, "none of them stored in 8 bits"),
        ("int8-static", FLOAT, "none of them stored in 8 bits"),
        ("int8", Computed({"int8": 10}, {}, {"aten::addmm": 3}, 10, 10, 10), "no integer operator"),
        ("int8", LARGE, "as large as a floating-point"),
        ("int8", Computed(visible=False), "is not visible"),
        ("bf16", FLOAT, "its weights are float32"),
        ("fp16", Computed({"bfloat16": 10}), "its weights are bfloat16"),
        ("anything", FLOAT, None),
    ],
)  # fmt: skip
def test_a_label_must_be_true(label, seen, why):
    found = refusal(label, seen)
    assert found is None if why is None else why in found


def test_what_is_emulated():
    assert "no bf16 instructions" in emulated("bf16", flags=["avx2"])
    assert emulated("bf16", flags=["avx2", "avx512_bf16"]) is None
    assert emulated("fp32", flags=["avx2"]) is None
    assert emulated("bf16", flags=["asimd", "bf16"]) is None
    # The T4 of the first study: bf16 is emulated there although torch says it is supported.
    assert "7.5" in emulated("bf16", capability=(7, 5))
    assert emulated("bf16", capability=(8, 0)) is None and emulated("fp16", capability=(7, 5)) is None
    assert "VNNI" in int8_note(["avx2"]) and int8_note(["avx_vnni"]) is None


def test_flags_of_a_cpu(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2 amx_bf16\n")
    assert cpu_flags(tmp_path) == ("fpu", "avx2", "amx_bf16")
    assert cpu_flags(tmp_path / "none") == ()


def test_endings_have_names_and_cures():
    assert died(-4).startswith("SIGILL") and "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in cure(-4)
    assert "memory ran out" in died(-9) and died(3, "boom") == "ended with 3: boom"
    assert next_isa(-4, {}) == "AVX512_CORE_FP16"
    assert next_isa(-4, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}) == "AVX2"
    assert next_isa(-4, {"ONEDNN_MAX_CPU_ISA": "AVX2"}) is None and next_isa(-11, {}) is None
    assert explained("RuntimeError", "DefaultCPUAllocator: can't allocate memory").startswith("out of memory")
    assert explained("OutOfMemoryError", "CUDA").startswith("out of memory")
    assert explained("ValueError", "odd\nthing") == "ValueError: odd thing"


TIMES = [
    {"layer": "h.0.attn.c_attn", "type": "Conv1D", "seconds": 0.02, "calls": 1},
    {"layer": "h.0.mlp.c_fc", "type": "Conv1D", "seconds": 0.05, "calls": 1},
]


def test_layers_and_remainder_are_the_total():
    rows, note = apportion(TIMES, 0.1, 7.0)
    assert note is None and rows[-1].layer == REMAINDER
    assert [row.joules for row in rows] == pytest.approx([1.4, 3.5, 2.1])
    assert math.fsum(row.joules for row in rows) == pytest.approx(7.0, abs=1e-12)
    assert by_part(rows)[0] == ("mlp", pytest.approx(0.5), pytest.approx(3.5))
    slow, note = apportion(TIMES, 0.035, 7.0)
    assert "2.00 times" in note and math.fsum(row.joules for row in slow) == pytest.approx(7.0, abs=1e-12)
    assert apportion(TIMES, 0.1, None)[0][0].joules is None


def test_parts_by_name():
    names = ["h.0.attn.c_attn", "layer.0.output.dense", "layer.1.attention.output.dense", "ln_f", "lm_head", "wte"]
    assert [part_of(name) for name in names] == ["attention", "mlp", "attention", "norm", "head", "embedding"]


def test_pareto():
    assert pareto({"a": (1.0, -0.9), "b": (2.0, -0.9), "c": (0.5, -0.8), "d": (3.0, -0.95)}) == ["a", "c", "d"]
    assert pareto({"a": (1.0, 1.0), "b": (1.0, 1.0)}) == ["a", "b"]


def test_latency_quantiles():
    found = Latency.of([k / 1000 for k in range(1, 101)])
    assert (found.mean_s, found.p50_s, found.n) == (pytest.approx(0.0505), pytest.approx(0.0505), 100)
    assert found.p95_s == pytest.approx(0.09505) and Latency.of([]) is None


def test_how_long_a_loop_has_to_be():
    """± 5 J of 100 J in 2 s: edges do not grow with the loop, so 5 s bring them to ± 2 %. Gain does not shrink."""
    budget = Budget((Term("edges", "e", 5.0), Term("gain", "g", 30.0)))
    window = Window.of(Energy(100.0, budget, "cpu", "counter"), 2.0, 0.02)
    assert (window.own, window.shared, window.needed_s) == pytest.approx((0.05, 0.3, 5.0))
    assert not window.enough and "± 2.0 % would take 5.00 s" in window.text() and "(± 30 %" in window.text()
    assert Window.of(Energy.refuse("x"), 2.0) is None


def test_the_penalty_is_chosen_among_the_items_that_train():
    rng = np.random.default_rng(3)
    labels = np.arange(120) % 2
    clear = np.stack([labels + rng.normal(0, 0.3, 120), rng.normal(size=120)], axis=1)
    dim = np.hstack([clear[:, :1] * 0.3 + rng.normal(size=(120, 1)), rng.normal(size=(120, 200))])
    small, large = Probe(clear, labels).penalty, Probe(dim, labels).penalty
    assert small < large and {small, large} <= set(PENALTIES)
    # A class with a single item cannot be left out and learnt.
    rare = labels.copy()
    rare[0] = 2
    assert Probe(clear, rare).penalty == max(PENALTIES) and Probe(clear, rare).logits(clear).shape == (120, 3)
    # A class that no item has is never chosen.
    assert set(Probe(clear, 2 * labels).logits(clear).argmax(1)) == {0, 2}


def test_figures_that_follow_from_the_energy_have_the_digits_that_its_interval_leaves():
    result = precision_result()
    (row, *_), wide = result.rows, replace(result.rows[0].figures.energy, low=2.0, high=61.0)
    rows = (replace(row, figures=replace(row.figures, energy=wide, power_w=41.234)),)
    cost, worth, _ = replace(result, rows=rows).tables()
    cost, worth = (dict(zip(one.headers, one.cells()[0], strict=True)) for one in (cost, worth))
    assert (cost["power"], cost["samples / J"], worth["correct / J"]) == ("41 W", "0.50", "0.41")


def test_a_verdict_on_modelled_energy_says_so_and_cpu_time_leads():
    result = precision_result()

    def modelled(trial):
        return replace(trial, energy=replace(trial.energy, pedigree="modelled"))

    measured = [row for row in result.rows if row.figures is not None]
    rows = [
        replace(row, figures=replace(row.figures, trials=tuple(map(modelled, row.trials)))) for row in measured
    ]  # fmt: skip
    cpu, energy = replace(result, rows=tuple(rows)).verdicts()[-2:]
    assert cpu == "int8: CPU time: no difference in CPU time larger than 2.0 % compared with fp32"
    assert energy.startswith("int8 uses 50") and energy.endswith(" less energy than fp32 (modelled)")
    assert not any("modelled" in line for line in result.verdicts())


def modelled_result():
    """As `precision_result`, with modelled energies of which only half is certain."""

    def modelled(trial):
        wide = Budget((Term("model", "m", 0.5 * trial.energy.value),))
        return replace(trial, energy=replace(trial.energy, pedigree="modelled", budget=wide))

    result = precision_result()
    rows = [
        replace(
            row,
            figures=replace(
                row.figures,
                trials=tuple(map(modelled, row.trials)),
                gross=row.figures.gross and replace(row.figures.gross, low=0.3, high=0.7),
            ),
        )
        for row in result.rows
        if row.figures is not None
    ]
    return replace(result, rows=tuple(rows))


def test_cpu_time_leads_the_table_where_energy_is_modelled():
    cost = modelled_result().tables()[0]
    assert cost.headers[2:4] == ["CPU time / batch", "energy / sample"] and cost.cells()[0][2].startswith("400")
    assert "CPU time / batch" not in precision_result().tables()[0].headers


def test_shares_and_trials_have_the_digits_of_their_intervals():
    result = modelled_result()
    shares = result.tables()[2]
    assert shares.title == "percent of fp32" and shares.headers[0] == "precision"
    int8 = dict(zip(shares.headers, shares.cells()[2], strict=True))
    assert (int8["energy / sample"], int8["samples / J"], int8["on disk"]) == ("50", "200", "100.0"), int8
    first = dict(zip((trials := result.trial_table()).headers, trials.cells()[0], strict=True))
    assert first["energy / batch"] == "19.8 J"


def many_layers(result):
    """Its baseline draws 0.6 mJ a batch (0 … 5.5), in twenty layers of 1/21 to 1/40 of the batch and a rest."""
    row = result.rows[0]
    wide = replace(row.figures, energy=Mean(0.6e-3, 0.0, 5.5e-3, 2e-3, 3))
    times = [{"layer": f"h.{n}", "type": "Linear", "seconds": 1 / (21 + n), "calls": 1.0} for n in range(20)]
    return replace(result, rows=(replace(row, figures=wide).with_layers(times, 1.0), *result.rows[1:]))


def test_layers_have_one_unit_and_the_digits_that_the_interval_of_the_batch_leaves():
    table = layer_table(many_layers(precision_result()).rows[0])
    shown = [dict(zip(table.headers, cells, strict=True))["energy / batch"] for cells in table.cells()]
    assert shown[:2] == ["0.03 mJ", "0.03 mJ"] and shown[-2:] == ["0.13 mJ", "0.19 mJ"]
    assert "≈ 0.6 mJ (0.0 … 5.5 mJ)" in table.title


def test_the_page_has_layers_in_one_unit():
    (found, *_) = precision_document(many_layers(precision_result()))["layers"]
    assert [row[3] for row in found["rows"]][::10] == ["0.03 mJ", "0.019 mJ", "0.19 mJ"]
    assert {part["shown"] for part in found["parts"]} == {"0.19 mJ", "0.4 mJ"}


def test_the_spread_of_power_has_the_digits_and_the_unit_of_its_column():
    result = modelled_result()
    row = result.rows[0]
    read = [PowerSamples(2.357, sd, 2.0, 2.4, 2.5, 27, 9.98) for sd in (0.02378, 0.0, 0.2101)]
    trials = tuple(replace(trial, power=power) for trial, power in zip(row.trials, read, strict=False))
    result = replace(result, rows=(replace(row, figures=replace(row.figures, trials=trials)),))
    table = result.trial_table()
    shown = [dict(zip(table.headers, cells, strict=True))["sd"] for cells in table.cells()]
    assert shown[:3] == ["0.024 W", "0 W", "0.21 W"]


def test_what_follows_from_times_has_the_digits_that_the_trials_leave():
    result = modelled_result()
    rows = []
    for row in result.rows:
        wide = replace(row.figures, seconds=Mean(0.5, 0.2, 0.8, 0.1, 3))
        time = row.figures.time and replace(row.figures.time, low=0.6, high=1.4)
        rows.append(replace(row, figures=replace(wide, time=time)))
    cost, _, shares = replace(result, rows=tuple(rows)).tables()
    assert dict(zip(cost.headers, cost.cells()[0], strict=True))["samples / s"] == "20"
    int8 = dict(zip(shares.headers, shares.cells()[2], strict=True))
    assert (int8["p50"], int8["p95"], int8["p99"]) == ("100", "100", "100")


def test_the_share_of_the_sensor_is_said_where_it_has_one():
    model = Energy(10.0, Budget((Term("model", "m", 10.39),)), "machine", "modelled")
    assert Window.of(model, 2.98).text() == "± 100 % is common to all precisions; its gain part cancels in ratios"


def test_energies_of_precisions_are_in_one_unit():
    result = precision_result()
    found = ((0.12, 0.05, 0.29), (0.3, 0.2, 0.4), (0.043, 0.017, 0.102))
    rows = [
        replace(row, figures=replace(row.figures, energy=Mean(*ends, 0.01, 3)))
        for row, ends in zip(result.rows, found, strict=False)
    ]
    cost = replace(result, rows=tuple(rows)).tables()[0]
    shown = [dict(zip(cost.headers, cells, strict=True)) for cells in cost.cells()]
    assert [row["energy / batch"] for row in shown][::2] == ["≈ 0.12 J (0.05 … 0.29 J)", "≈ 0.043 J (0.017 … 0.102 J)"]
    assert all(" mJ" in row["energy / sample"] for row in shown)
