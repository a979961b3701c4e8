"""A server on one simulated machine, asked from another: each has its own recorder, tape and power, and the wall clock
of the server's host is set wrong."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import sse_server

from everywatt.api.run import load
from everywatt.bench.llm.records import read_records
from everywatt.sim.build import compiler
from everywatt.sim.machine import SimMachine

AHEAD_MS = 250  # the wall clock of the server's host
SCRIPT = {"tokens": 15, "burn_ms": 20, "gap_ms": 0, "first_ms": 1}
WRONG_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, at);
    const char *text = which == CLOCK_REALTIME && !failed ? getenv("CLOCK_AHEAD_MS") : NULL;
    if (text) {
        long ns = at->tv_nsec + atol(text) % 1000 * 1000000;
        at->tv_sec += atol(text) / 1000 + ns / 1000000000;
        at->tv_nsec = ns % 1000000000;
    }
    return failed;
}
"""
EVERYWATT = (sys.executable, "-m", "everywatt")


def environment(lab, folder):
    return lab.environment() | {"HOME": str(folder), "EVERYWATT_HOME": str(folder / "runs")}


def ahead(env, folder, by_ms):
    """The same machine with its wall clock set wrong, for everything that runs on it."""
    (folder / "clock.c").write_text(WRONG_CLOCK)
    library = folder / "clock.so"
    subprocess.run([*compiler(), "-shared", "-fPIC", "-o", str(library), str(folder / "clock.c"), "-ldl"], check=True)
    return env | {"LD_PRELOAD": f"{library}:{env.get('LD_PRELOAD', '')}", "CLOCK_AHEAD_MS": str(by_ms)}


@contextmanager
def recorded_server(folder, env):
    """A server under `everywatt run`, as somebody would start it on its host; gives its URL."""
    words = [*EVERYWATT, "run", "--idle", "1", "--quiet", "--", sys.executable, sse_server.__file__]
    words += [str(folder / "server.jsonl"), json.dumps(SCRIPT)]
    run = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(run.stdout.readline())}"
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(120)


def bench(env, *more, code=0):
    words = [*EVERYWATT, "bench", "llm", "--json", *more]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def asked_from_here(lab, far, folder, by_ms):
    """A run of this machine and the server's own, whose clock is ahead; and the exact joules of the server's machine
    while queries were open."""
    here, there = folder / "here", folder / "there"
    here.mkdir()
    there.mkdir()
    env = environment(lab, here)
    with recorded_server(there, ahead(environment(far, there), there, by_ms)) as url:
        more = ("--dataset", "arithmetic", "--max-queries", "6", "--warmup", "1", "--idle", "0.3")
        found = bench(env, "--base-url", url, "--model", "scripted", *more)
    (run_there,) = (there / "runs").iterdir()
    run = load(here / "runs" / found["run"])
    spans = {span.id: span for span in run.spans}
    asked = [spans[record.span] for record in read_records(run.path)]
    package = next(name for name in far.devices() if "package" in name or name.startswith("cpu"))
    truth_j = sum(far.truth(package, span.start_ns, span.end_ns) for span in asked)
    return lambda *words: bench(env, "--resume", found["run"], "--server-tape", str(run_there), *words), truth_j


@pytest.fixture(scope="module")
def machines():
    """The machine that asks draws 500 W, the server's follows its CPU time."""
    here, there = SimMachine.of(packages=["constant:500W"]), SimMachine.of(packages=["load:5W,60W"])
    with here.start() as lab, there.start() as far:
        yield lab, far


def test_the_servers_own_tape_has_the_joules_and_the_clocks_are_in_the_interval(machines, tmp_path):
    evaluated, truth_j = asked_from_here(*machines, tmp_path, AHEAD_MS)
    found = evaluated("--server-skew", f"{AHEAD_MS}ms")
    gross, others = found["energy"], found["energy_others"]
    assert gross["joules"] is not None, gross["refused"]
    # Nothing of the 500 W of the machine that asked; the server's in full, but for what the clocks leave open.
    assert gross["low"] + others["low"] <= truth_j <= gross["high"] + others["high"]
    assert any("differ by at most 250 ms" in note for note in gross["notes"])
    assert "from its own tape" in found["boundary"]["about"]
    sure = evaluated("--server-skew", "1ms")["energy"]
    assert gross["high"] - gross["low"] > sure["high"] - sure["low"]
    assert sum(item["joules"] for item in found["levels"][0]["items"]) == pytest.approx(gross["joules"], abs=1e-5)
