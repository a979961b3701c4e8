"""Series that the time-series engines of the tests hold from their start: jobs of a cluster, and a board under load."""

from __future__ import annotations

import random
import time

T0 = 1_794_700_800  # 2026-11-15T00:00Z
JOB_ENERGY = "everywatt_owner_energy_joules_total"

STEP_S, ROWS = 5, 240
# On whole steps: workers that share an engine were imported seconds apart, and its series have the first one's times.
BOARD_START_S = int(time.time()) // STEP_S * STEP_S - 2 * STEP_S * ROWS
POWER, SPENT, USE = "tegra_wattage_current_milliwatts", "container_cpu_usage_seconds_total", "tegra_cpu_util_percentage"


def job_lines() -> list[tuple[str, float, int]]:
    """Series, value, time: job 12 on two nodes from 1:00 to 2:00, 10 W and 20 W; job 13 from 23:00 to 3:00, 5 W."""
    made = []
    for second in range(0, 4 * 3600 + 1, 15):
        at = T0 - 3600 + second
        labels = 'kind="job",owner="13",device="cpu.0",instance="n1"'
        made.append((f"{JOB_ENERGY}{{{labels}}}", 5.0 * second, at))
        inside = at - (T0 + 3600)
        if 0 <= inside <= 3600:
            for node, watts in (("n1", 10.0), ("n2", 20.0)):
                one = f'kind="job",owner="12",device="cpu.0",instance="{node}"'
                made.append((f"{JOB_ENERGY}{{{one}}}", watts * inside, at))
            made.append(('everywatt_owner_cpu_seconds_total{kind="job",owner="12",instance="n1"}', 0.5 * inside, at))
            info = 'exported_job="12",job="everywatt",user="ada",account="phys",partition="p",instance="n1"'
            made.append((f"everywatt_job_info{{{info}}}", 1.0, at))
    return made


def jobs_for_victoria() -> str:
    """The jobs in the text format with times in milliseconds."""
    return "\n".join(f"{series} {value} {at * 1000}" for series, value, at in job_lines())


def jobs() -> str:
    """The jobs as OpenMetrics."""
    by_name: dict[str, list[str]] = {}
    for series, value, at in job_lines():
        by_name.setdefault(series.partition("{")[0], []).append(f"{series} {value} {at}.000")
    lines = [line for of_name in by_name.values() for line in of_name]
    return "\n".join([f"# TYPE {JOB_ENERGY} counter", *lines, "# EOF", ""])


def board_share(row: int) -> float:
    """Busy share of the board's two cores: another one every minute."""
    return random.Random(row // 12).random()


def board() -> str:
    """OpenMetrics of 3 W + 8 W × share, each series with times of its own."""
    spent = 0.0
    found: dict[str, list[str]] = {POWER: [], SPENT: [], USE: []}
    for row in range(ROWS):
        at, share = BOARD_START_S + STEP_S * row, board_share(row)
        spent += 2 * share * STEP_S
        found[POWER].append(f'{POWER}{{sensor="vdd_in"}} {3000 + 8000 * share:.3f} {at + 0.9:.1f}')
        found[SPENT].append(f'{SPENT}{{container="stressme"}} {spent:.4f} {at}')
        found[USE].append(f'{USE}{{cpu="1"}} {100 * share:.3f} {at + 1.3:.1f}')
    lines = []
    for name, rows in found.items():
        kind = "counter" if name == SPENT else "gauge"
        lines += [f"# TYPE {name.removesuffix('_total')} {kind}", *rows]
    return "\n".join([*lines, "# EOF", ""])
