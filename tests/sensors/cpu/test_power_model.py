"""The shipped numbers against servers that took no part in the fit (SPECpower_ssj2008 results, spec.org).

specpower_held_out.csv has every 20th server of the table that benchmarks/fit_modelled.py reads, and leaves out. The
whole table (named by SPECPOWER_TABLE) gives the larger test.
"""

import csv
import importlib.util
import itertools
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from everywatt.sensors.cpu.modelled import MachineFacts, curve, estimate, grounds, shipped

HERE = Path(__file__).parents[1]
LOADS = [level / 10 for level in range(11)]


def held_out():
    with (HERE / "specpower_held_out.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            facts = MachineFacts(
                threads=int(row["threads"]),
                cores=int(row["cores"]),
                sockets=int(row["sockets"]),
                memory_bytes=round(float(row["gib"]) * 2**30),
                cpu=row["cpu"],
                amd=row["amd"] == "1",
                generation=row["generation"],
                tdp_w=float(row["tdp_w"]) if row["tdp_w"] else None,
            )
            yield facts, [float(row[f"w{level * 10}"]) for level in range(11)]


def inside(truth_w, load, facts):
    _, low, high = estimate(load, facts)
    return low <= truth_w <= high


SERVERS = list(held_out())
A_SERVER = MachineFacts(112, 56, 2, 384 * 2**30, "Intel Xeon Platinum 8280", generation="cascadelake")


@pytest.mark.parametrize("tdp", [True, False])
def test_held_out_servers_are_inside(tdp):
    hits = [
        inside(truth, load, facts if tdp else replace(facts, tdp_w=None))
        for facts, watts in SERVERS
        for load, truth in zip(LOADS, watts, strict=True)
    ]
    assert len(hits) == 24 * 11
    assert sum(hits) / len(hits) >= 0.93


def test_held_out_hosts_are_inside_for_their_guests():
    """A guest of any size, on any of these hosts, whatever the host's load."""
    hits = []
    for facts, watts in SERVERS:
        guest = replace(facts, threads=2, cores=2, sockets=1, tdp_w=None, guest="hypervisor")
        for load in LOADS:
            for host_load, host_w in zip(LOADS[1:], watts[1:], strict=True):
                owed = (watts[0] + load * (host_w - watts[0]) / host_load) * 2 / facts.threads
                hits.append(inside(owed, load, guest))
    assert sum(hits) / len(hits) >= 0.93


def test_the_mean_over_held_out_servers_is_not_far_off():
    for load in LOADS:
        ratio = [truth[round(load * 10)] / estimate(load, facts)[0] for facts, truth in SERVERS]
        assert 0.85 <= sum(ratio) / len(ratio) <= 1.15


def test_coverage_that_the_fit_recorded():
    for model in shipped()["models"].values():
        for shares in model["coverage"].values():
            assert len(shares) == 11 and min(shares) >= 0.91 and sum(shares) / 11 >= 0.93


def test_power_rises_with_load_and_between_the_levels():
    watts = [estimate(load / 200, A_SERVER)[0] for load in range(201)]
    assert all(after >= before for before, after in itertools.pairwise(watts))
    assert estimate(0.25, A_SERVER)[0] == pytest.approx((estimate(0.2, A_SERVER)[0] + estimate(0.3, A_SERVER)[0]) / 2)
    assert estimate(-1, A_SERVER) == estimate(0, A_SERVER) and estimate(7, A_SERVER) == estimate(1, A_SERVER)


def test_the_interval_is_a_factor_and_never_reaches_zero():
    line = curve(A_SERVER)
    for load in (0.0, 0.55, 1.0):
        watts, low, high = estimate(load, A_SERVER)
        assert 0 < low < watts < high and high - watts > watts - low
    assert estimate(0.5, A_SERVER)[1:] == pytest.approx(
        [line.watts[5] * math.exp(-line.below[5]), line.watts[5] * math.exp(line.above[5])]
    )


def relative(facts, load=0.5):
    watts, _, high = estimate(load, facts)
    return high / watts - 1


@pytest.mark.parametrize(("name", "most"), [("server_tdp", 0.40), ("server", 0.48), ("guest", 0.94)])
def test_intervals_are_no_wider_than_they_were(name, most):
    """Half of the 95 % interval as a share of the watts, mean over the loads, for a CPU of a known generation."""
    widths = shipped()["models"][name]["widths"]["seen"]
    half = [(math.exp(up) - math.exp(-down)) / 2 for down, up in zip(widths["below"], widths["above"], strict=True)]
    assert sum(half) / len(half) < most


def test_less_knowledge_is_a_wider_interval():
    known = relative(replace(A_SERVER, tdp_w=205.0))
    assert known < relative(A_SERVER) < relative(replace(A_SERVER, generation=None))
    guest = replace(A_SERVER, guest="hypervisor")
    assert relative(A_SERVER) < relative(guest) < relative(replace(guest, generation=None))
    for kind in ("laptop", "desktop", "board", "unknown"):
        assert relative(replace(A_SERVER, kind=kind)) >= 1.0


def test_a_guest_is_its_share_of_vcpus():
    two = replace(A_SERVER, threads=2, cores=2, sockets=1, guest="hypervisor")
    eight = replace(two, threads=8, cores=8)
    assert estimate(0.5, eight)[0] == pytest.approx(4 * estimate(0.5, two)[0])
    whole = estimate(0.5, A_SERVER)[0] / A_SERVER.threads
    assert whole / 2 < estimate(0.5, two)[0] / 2 < whole * 2


def test_what_lies_outside_of_the_table_is_taken_as_its_edge():
    huge = replace(A_SERVER, memory_bytes=2**50)
    assert estimate(1.0, huge) == estimate(1.0, replace(huge, memory_bytes=2**49))
    assert math.isfinite(estimate(1.0, replace(A_SERVER, memory_bytes=None))[0])
    board = MachineFacts(4, 4, 1, 2**30, "ARM", kind="board")
    watts, low, high = estimate(0.0, board)
    assert 0 < low < watts / 19 and watts < high


@pytest.mark.skipif("SPECPOWER_TABLE" not in os.environ, reason="SPECPOWER_TABLE names no SPECpower table")
def test_a_fresh_split_of_the_whole_table():
    pytest.importorskip("numpy")
    spec = importlib.util.spec_from_file_location("fit_modelled", HERE.parents[1] / "benchmarks" / "fit_modelled.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    servers = script.table(Path(os.environ["SPECPOWER_TABLE"]))
    assert len(servers) > 400
    for name in ("server", "guest"):
        width = shipped()["models"][name]["widths"]["seen"]
        for key in ("server", "maker", "cpu"):
            shares = script.coverage(width, *script.errors(name, servers, key))
            assert shares.mean() >= 0.93


# Results of ASUSTeK at spec.org/power_ssj2008: CPU, generation, cores, memory, watts at idle and at full load.
LATER = [
    ("AMD EPYC 9654", "epyc-gen4", 192, 384, 128, 817),
    ("AMD EPYC 9754", "epyc-gen4", 256, 384, 117, 685),
    ("AMD EPYC 9965", "epyc-gen5", 384, 384, 150, 800),
    ("Intel Xeon Platinum 8490H", "sapphirerapids", 120, 256, 216, 781),
    ("Intel Xeon Platinum 8592+", "emeraldrapids", 128, 256, 204, 789),
]


@pytest.mark.parametrize(
    ("generation", "before"),
    [("epyc-gen6", "epyc-gen5"), ("diamondrapids", "graniterapids"), ("clearwaterforest", "sierraforest")],
)
@pytest.mark.parametrize("guest", [None, "a guest"])
def test_cpus_newer_than_all_published_ones_are_taken_for_those_before(generation, before, guest):
    facts = MachineFacts(256, 128, 2, 2**38, "a CPU", amd="epyc" in before, generation=generation, guest=guest)
    assert estimate(0.5, facts) == estimate(0.5, replace(facts, generation=before))
    assert "no server of this CPU generation" in grounds(facts)


@pytest.mark.parametrize(("cpu", "generation", "cores", "gib", "idle_w", "full_w"), LATER)
def test_later_generations_are_shifted_to_their_published_watts(cpu, generation, cores, gib, idle_w, full_w):
    facts = MachineFacts(2 * cores, cores, 2, gib * 2**30, cpu, amd="AMD" in cpu, generation=generation)
    assert inside(idle_w, 0.0, facts) and inside(full_w, 1.0, facts)
    for guest in (None, "a guest"):
        watts = curve(replace(facts, guest=guest)).watts
        assert all(a < b for a, b in itertools.pairwise(watts))
    assert estimate(0.5, replace(facts, tdp_w=280.0)) == estimate(0.5, facts)  # none was published with its TDP
    assert "only idle and full load" in grounds(facts)
