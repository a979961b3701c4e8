"""Fit the numbers of the modelled sensor, and show that its intervals hold on servers that were left out.

    python benchmarks/fit_modelled.py specpower_servers.csv [--later SPECpower-2026-03-09.csv] [--write]

The table is made from the results published at spec.org/power_ssj2008 by the project
github.com/green-coding-solutions/spec-power-model, whose licence (AGPL-3.0) keeps it out of this repository. Columns:
HW_Vendor, HW_CPUName, HW_MemAmountGB, Hardware_Availability_Year, CPUMake, CPUCores, CPUChips, CPUThreads,
Architecture, TDP, ActiveIdle and 10_AvgPower to 100_AvgPower (watts). Every 20th server (HELD_OUT) never takes part:
the figures of those are in tests/sensors/specpower_held_out.csv, so that the shipped numbers are tried on servers they
have not seen.

Widths are the logarithms that at every load hold 95 % of the servers while these were left out, 2.5 % missing on either
side: ten parts at a time at random or by CPU model, and for `unseen` whole CPU generations. How many they hold when
servers are left out by maker is printed and kept beside them.

Servers of later CPU generations are in the table of github.com/cloud-carbon-footprint/ccf-coefficients (Apache-2.0; the
same results of spec.org, watts at idle and at full load only). They move the model of the earlier ones: by the median
of log(watts / model) of a generation at both loads, and on a line between them. The interval is that of `unseen`.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from everywatt.sensors.cpu.modelled import MachineFacts, curve, features

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIT = Path(__file__).parent.parent / "src" / "everywatt" / "sensors" / "cpu" / "modelled_fit.json"
LOADS = [level / 10 for level in range(11)]
COLUMNS = ["ActiveIdle"] + [f"{level}0_AvgPower" for level in range(1, 11)]
HELD_OUT = 20
TARGET = 0.955  # a little above 95 %, since servers of a new maker err more than those that were left out at random
GENERATIONS = {"kabylabe": "kabylake", "epyc": "epyc-gen3"}  # a slip, and the one Milan-X among them
RIDGE, RIDGE_GENERATION = 0.5, 2.0
PARTS = 10
LATER_SOURCE = (
    "SPECpower_ssj2008 results (spec.org), as collected by cloud-carbon-footprint/ccf-coefficients 2026-03-09"
)
LATER = {  # how a CPU of a later generation is called
    "epyc-gen4": r"EPYC (4|8|9)\d\d4",
    "epyc-gen5": r"EPYC (4|8|9)\d\d5",
    "sapphirerapids": r"Xeon(\(R\))? (Platinum|Gold|Silver|Bronze) \d4\d\d",
    "emeraldrapids": r"Xeon(\(R\))? (Platinum|Gold|Silver|Bronze) \d5\d\d",
    "graniterapids": r"Xeon(\(R\))? 6[579]\d\dP",
    "sierraforest": r"Xeon(\(R\))? 6[79]\d\dE",
}
Server = dict[str, Any]


def table(path: Path) -> list[Server]:
    """Servers of a known CPU generation: facts, watts at each load, and what they may be grouped by."""
    servers = []
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            generation = GENERATIONS.get(row["Architecture"], row["Architecture"])
            if generation:
                servers.append(_server(number, generation, row))
    return servers


def _server(number: int, generation: str, row: dict[str, str]) -> Server:
    facts = MachineFacts(
        threads=int(row["CPUThreads"]),
        cores=int(row["CPUCores"]),
        sockets=int(row["CPUChips"]),
        memory_bytes=round(float(row["HW_MemAmountGB"]) * 1024**3),
        cpu=row["HW_CPUName"],
        amd=row["CPUMake"] == "amd",
        generation=generation,
        tdp_w=float(row["TDP"]) if row["TDP"] else None,
    )
    return {
        "number": number,
        "year": int(row["Hardware_Availability_Year"]),
        "facts": facts,
        "watts": np.array([float(row[column]) for column in COLUMNS]),
        "server": str(number),
        "maker": row["HW_Vendor"].split()[0].lower()[:5],
        "cpu": " ".join(
            word for word in row["HW_CPUName"].split() if any(c.isdigit() for c in word) and "." not in word
        ),
        "generation": generation,
    }


def ground(servers: list[Server]) -> dict[str, Any]:
    """Years of generations and ranges of features, from the servers of the fit."""
    years: dict[str, list[int]] = {}
    for server in servers:
        years.setdefault(server["generation"], []).append(server["year"])
    return {
        "loads": LOADS,
        "generation_years": {name: float(np.median(values)) for name, values in sorted(years.items())},
        "ranges": {
            "cores": _range(servers, lambda f: f.cores / f.sockets),
            "sockets": _range(servers, lambda f: f.sockets),
            "gib": _range(servers, lambda f: f.memory_bytes / 1024**3 / f.cores),
            "usual_gib": [float(np.median([s["facts"].memory_bytes / 1024**3 / s["facts"].cores for s in servers]))],
            "tdp_w": _range([s for s in servers if s["facts"].tdp_w], lambda f: f.tdp_w or 0.0),
        },
    }


def _range(servers: list[Server], value: Callable[[MachineFacts], float]) -> list[float]:
    values = [value(server["facts"]) for server in servers]
    return [min(values), max(values)]


def truths(name: str, server: Server) -> np.ndarray:
    """Watts that the model `name` should give for this server: one row for each case, one column for each load."""
    watts: np.ndarray = server["watts"]
    if name != "guest":
        return watts[None, :]
    busy = np.array(LOADS[1:])
    slope = (watts[1:] - watts[0]) / busy  # watts for each unit of load, on a host that is that busy
    return (watts[0] + slope[:, None] * np.array(LOADS)[None, :]) / server["facts"].threads


def solve(name: str, servers: list[Server], fit: dict[str, Any]) -> np.ndarray:
    """Coefficients, one row for each load: least squares of the logarithm, with a light ridge.

    The constant is then raised so that the mean watts are right, not the median: joules are added up.
    """
    rows = np.array([features(name, server["facts"], fit) for server in servers])
    logs = np.array([np.log(truths(name, server)).mean(axis=0) for server in servers])
    ridge = np.full(rows.shape[1], RIDGE)
    ridge[0], ridge[4 : 4 + len(fit["generation_years"])] = 0.0, RIDGE_GENERATION
    solution = np.linalg.solve(rows.T @ rows + np.diag(ridge), rows.T @ logs)
    means = np.array([truths(name, server).mean(axis=0) for server in servers])
    solution[0] += np.log((means / np.exp(rows @ solution)).mean(axis=0))
    return solution.T


def parts(servers: list[Server], key: str) -> Iterator[tuple[list[Server], list[Server]]]:
    """(kept, left out) with all servers of one `key` on the same side; generations one at a time."""
    names = sorted({server[key] for server in servers})
    if key != "generation":
        np.random.default_rng(1).shuffle(names)
    count = len(names) if key == "generation" else PARTS
    place = {name: index % count for index, name in enumerate(names)}
    for part in range(count):
        yield [s for s in servers if place[s[key]] != part], [s for s in servers if place[s[key]] == part]


def errors(name: str, servers: list[Server], key: str) -> tuple[np.ndarray, np.ndarray]:
    """For left-out servers: log(truth / estimate) at each load, and the weight of each case."""
    off, weights = [], []
    for kept, left in parts(servers, key):
        fit = ground(kept)
        known = fit["generation_years"].values()
        for server in left:  # a generation that took no part is taken for the nearest one that did
            year = min(max(server["year"], min(known)), max(known))
            fit["generation_years"].setdefault(server["generation"], year)
        coefficients = solve(name, kept, fit)
        for server in left:
            cases = truths(name, server)
            off.append(np.log(cases) - coefficients @ features(name, server["facts"], fit))
            weights += [1 / len(cases)] * len(cases)
    return np.concatenate(off), np.array(weights)


def choose(cases: list[tuple[np.ndarray, np.ndarray]], cpus: int) -> dict[str, list[float]]:
    """Logarithms below and above the estimate at each load; the wider of the cases.

    Both are the same: a factor too high is as likely as one too low, and tails of one side are of few servers. Servers
    with one CPU model err alike, so that the quantile is that of a conformal interval from so many `cpus`.
    """
    share = min(TARGET * (cpus + 1) / cpus, 1.0)
    widths = np.max([[_quantile(np.abs(column), w, share) for column in off.T] for off, w in cases], axis=0)
    return {side: np.round(widths, 3).tolist() for side in ("below", "above")}


def coverage(widths: dict[str, list[float]], off: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Share of left-out servers inside the interval, at each load."""
    inside = (off >= -np.array(widths["below"])) & (off <= np.array(widths["above"]))
    return np.asarray((inside * weights[:, None]).sum(axis=0) / weights.sum())


def half_width(widths: dict[str, list[float]]) -> np.ndarray:
    """Half of the interval as a share of the estimate, at each load."""
    return np.asarray((np.exp(widths["above"]) - np.exp(-np.array(widths["below"]))) / 2)


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The value below which lies that share of the weight."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(reached, share)), len(values) - 1)])


def fit_model(name: str, servers: list[Server], fit: dict[str, Any]) -> dict[str, Any]:
    """Coefficients and widths of one model, with what its intervals achieved on left-out servers."""
    usable = [server for server in servers if name != "server_tdp" or server["facts"].tdp_w]
    found = {key: errors(name, usable, key) for key in ("server", "maker", "cpu", "generation")}
    cpus = len({server["cpu"] for server in usable})
    seen = [found["server"]] if name == "guest" else [found["server"], found["cpu"]]
    widths = {"seen": choose(seen, cpus), "unseen": choose([found["generation"], *seen], cpus)}
    achieved = {}
    for key, case in found.items():
        label = "unseen" if key == "generation" else "seen"
        shares = coverage(widths[label], *case)
        achieved[f"{label}, left out by {key}"] = [round(float(c), 3) for c in shares]
        half = half_width(widths[label])
        loads = "  ".join(f"{shares[i] * 100:5.1f} (±{half[i] * 100:3.0f} %)" for i in (0, 1, 3, 5, 7, 10))
        print(f"{name:11} {label:7} {key:11} {shares.mean() * 100:5.1f} % (±{half.mean() * 100:3.0f} %)  {loads}")
    return {
        "coefficients": [[round(float(c), 6) for c in row] for row in solve(name, usable, fit)],
        "widths": widths,
        "servers": len(usable),
        "coverage": achieved,
    }


def later_servers(path: Path) -> list[Server]:
    """Servers of generations after those of the fit: facts, maker, and watts at idle and at full load."""
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cpu = row["CPU Description"]
            generation = next((name for name, called in LATER.items() if re.search(called, cpu)), None)
            idle_w, full_w = (float(row[f"avg. watts @ {at}"] or "nan") for at in ("active idle", "100%"))
            if generation is None or not (idle_w > 0 and full_w > 0):
                continue
            facts = MachineFacts(
                threads=int(row["Total Threads"]),
                cores=int(row["# Cores"]),
                sockets=int(row["Chips"]),
                memory_bytes=round(float(row["Total Memory (GB)"]) * 1024**3),
                cpu=cpu,
                amd="EPYC" in cpu,
                generation=generation,
            )
            found.append({"facts": facts, "maker": row["Hardware Vendor"], "watts": np.array([idle_w, full_w])})
    return found


def later(path: Path, fit: dict[str, Any]) -> dict[str, Any]:
    """For each later generation and model what is added to the logarithm of its watts at idle and at full load."""
    shifts: dict[str, Any] = {name: {} for name in LATER}
    fit = {**fit, "later": {"shifts": {}}}
    for model, guest in (("server", None), ("guest", "a guest")):
        inside: dict[str, list[np.ndarray]] = {}
        for name in LATER:
            mine = [server for server in later_servers(path) if server["facts"].generation == name]
            lines = [curve(replace(server["facts"], guest=guest), fit) for server in mine]
            off = np.array([np.log(s["watts"] / [c.at(0.0), c.at(1.0)]) for s, c in zip(mine, lines, strict=True)])
            makers = np.array([server["maker"] for server in mine])
            shifts[name] |= {model: [round(float(v), 3) for v in np.median(off, axis=0)], "servers": len(mine)}
            for line, maker, miss in zip(lines, makers, off, strict=True):
                moved = miss - np.median(off[makers != maker], axis=0)
                low, high = (np.array([side[0], side[-1]]) for side in (line.below, line.above))
                inside.setdefault(name, []).append((-low <= moved) & (moved <= high))
        idle, full = 100 * np.mean([share for shares in inside.values() for share in shares], axis=0)
        parts = "  ".join(f"{name} {np.mean(shares) * 100:.0f}" for name, shares in inside.items())
        print(f"{model:11} later   maker       {idle:5.1f} % idle, {full:5.1f} % full ({parts})")
    return {"source": LATER_SOURCE, "shifts": shifts}


def main() -> None:
    """Print the achieved coverage, and with --write replace the shipped numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--later", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    everyone = table(arguments.table)
    servers = [server for server in everyone if server["number"] % HELD_OUT]
    print(f"{len(servers)} servers in the fit, {len(everyone) - len(servers)} held out")
    print("model       width   left out by  inside (half of the 95 % interval)  at 0, 10, 30, 50, 70, 100 % load")
    fit = ground(servers)
    fit["models"] = {name: fit_model(name, servers, fit) for name in ("server", "server_tdp", "guest")}
    fit["later"] = later(arguments.later, fit) if arguments.later else {"shifts": {}}
    source = "SPECpower_ssj2008 results (spec.org), as collected by green-coding-solutions/spec-power-model"
    if arguments.write:
        FIT.write_text(json.dumps({"source": source, **fit}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
