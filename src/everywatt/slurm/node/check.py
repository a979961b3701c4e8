"""What a node needs so that its jobs are recorded, checked one by one, each with its cure."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from everywatt import __version__
from everywatt.core.format import format_count
from everywatt.core.machine import Machine
from everywatt.doctor.diagnose import Check, Verdict
from everywatt.slurm.node.cards import card_order, cards_here
from everywatt.slurm.node.hooks import (
    EVENTS,
    EVENTS_MODE,
    JOB_LINE,
    NAMES,
    TASKS_MODE,
    Site,
    hook,
    not_called,
    slurm_conf_lines,
)
from everywatt.slurm.node.spool import AGENT, NODE, holder, quarantined
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.store import Store, safe_node

SLOW_S: Final = 1.0  # a hook takes some 10 ms; Slurm holds the job back meanwhile
ANSWER_S: Final = 10.0
_TIME_ERROR: Final = 5  # adjtimex: the clock is not synchronised
INSTALL: Final = "everywatt slurm install"


def _check(name: str, seen: str, cure: str = "") -> Check:
    return Check(name, Verdict.FAIL if cure else Verdict.PASS, seen, cure)


def check_node(site: Site, node: str, slurm_conf: Path) -> list[Check]:
    """All checks of this node. What is written is removed again."""
    return [
        _program(site),
        *_hooks(site, slurm_conf),
        _duration(site),
        _spool(site.spool),
        _store(site.store, node),
        _clock(),
        _cards(node, slurm_conf),
        _recorder(site.spool),
    ]


def _program(site: Site) -> Check:
    try:
        words = [str(site.command), "--version"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = "does not answer" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        return _check("program", f"{site.command}: {why}", "install everywatt where the hooks look for it")
    there = done.stdout.strip().removeprefix("everywatt ")
    cure = "" if there == __version__ else f"one version on all nodes: this is {__version__}"
    return _check("program", f"{site.command} {there or done.stderr.strip()[:100]}", cure)


def _hooks(site: Site, slurm_conf: Path) -> Iterator[Check]:
    for event in EVENTS:
        path = site.folder / NAMES[event]
        try:
            text = path.read_text(encoding="utf-8")
            period = re.search(r"period=([\w.]+)", text)
            asked = replace(site, period=period[1] if period else site.period, job_line=JOB_LINE in text)
            expected = hook(event, asked)
            known = text == expected and os.access(path, os.X_OK)
            seen, cure = (str(path), "") if known else (f"{path} is of another version, spool or store", INSTALL)
        except OSError as error:
            seen, cure = f"{path}: {error.strerror}", INSTALL
        yield _check(f"hook {event}", seen, cure)
    try:
        text = slurm_conf.read_text(encoding="utf-8", errors="replace")
        lines = slurm_conf_lines(site, text)
        missing = [f"{slurm_conf} does not call {', '.join(names)}"] if (names := not_called(site, text)) else []
        missing += ["PrologFlags lacks Alloc"] if len(lines) > len(names) else []
        yield _check("slurm.conf", "; ".join(missing) or f"{slurm_conf} calls the hooks", "; ".join(lines))
    except OSError as error:
        yield _check("slurm.conf", f"{slurm_conf}: {error.strerror}", "--slurm-conf FILE")


def _duration(site: Site) -> Check:
    """How long a Prolog takes, with a spool of its own so that no job is announced."""
    with tempfile.TemporaryDirectory(prefix="everywatt-check-") as folder:
        spool = Path(folder)
        (spool / "events").mkdir()
        script = spool / "prolog.sh"
        script.write_text(hook("start", replace(site, spool=spool, command=spool / "none")), encoding="utf-8")
        began = time.monotonic()
        try:
            env = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "check"}
            subprocess.run(["/bin/sh", str(script)], env=env, timeout=ANSWER_S, check=False)
        except subprocess.TimeoutExpired:
            pass
        took_s = time.monotonic() - began
        dropped = any((spool / "events").glob("*.event"))
    cure = "" if took_s < SLOW_S and dropped else "a local spool, and a machine that is not overloaded"
    return _check("hook time", f"{1000 * took_s:.0f} ms{'' if dropped else ', and it wrote nothing'}", cure)


def _spool(spool: Path) -> Check:
    try:
        for name, mode in (("events", EVENTS_MODE), ("tasks", TASKS_MODE)):
            facts = (spool / name).stat()
            if stat.S_IMODE(facts.st_mode) != mode or facts.st_uid != os.geteuid():
                seen = f"{spool / name} has mode {stat.S_IMODE(facts.st_mode):o} and belongs to {facts.st_uid}"
                return _check("spool", seen, f"chmod {mode:o} {spool / name}, as the user that runs the hooks")
    except OSError as error:
        return _check("spool", f"{error.filename}: {error.strerror}", INSTALL)
    if aside := quarantined(spool):
        return _check(
            "spool", f"{len(aside)} events in {spool / 'quarantine'}: {aside[0]} …", "look at them, remove them"
        )
    return _check("spool", str(spool))


def _store(store: Path, node: str) -> Check:
    """Write a record beside the others and read it back."""
    place = store / f".check-{safe_node(node)}-{os.getpid()}"
    try:
        if not store.is_dir():
            return _check("store", f"{store} is not there", "mount it, or name another with --store")
        (path,) = Store(place).append([JobOnNode(1, node, 0.0, 1.0)], node)
        whole = path.read_bytes().endswith(b"}\n")
    except OSError as error:
        return _check("store", f"{error.filename or store}: {error.strerror}", "let this node write there")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return _check("store", f"{store}: a record was written and read", "" if whole else "a filesystem that keeps files")


def _clock() -> Check:
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    if state == _TIME_ERROR:
        return _check(
            "clock",
            "not synchronised: jobs and readings of nodes are joined by time",
            "install chrony or another NTP service",
        )
    return _check("clock", "synchronised" if state >= 0 else "not reported by the kernel")


def _cards(node: str, slurm_conf: Path) -> Check:
    machine = Machine.here()
    cards = cards_here(machine)
    order = card_order(cards, node, str(slurm_conf), machine)
    there = f"{format_count(len(cards), 'card')}, in the order {', '.join(order.cards)}" if cards else "no cards"
    return _check("GPUs", order.doubt or there,
                 "File= of gres.conf in the order of the device files" if order.doubt else "")  # fmt: skip


def _recorder(spool: Path) -> Check:
    by = [name for name, place in (("agent", AGENT), ("slurm node", NODE)) if holder(spool, place) is not None]
    return _check("recorder", " and ".join(by) or "none runs: the next Prolog starts one")
