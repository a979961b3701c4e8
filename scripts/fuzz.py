"""Feed parsers with damaged input: `python scripts/fuzz.py [NAME…] [--runs N] [--seconds S]`.

With `--led` (needs atheris) inputs are led by what they reach in the code, one parser at a time; else they are the
samples below, changed at random. A parser may refuse in the ways that `REFUSALS` names; anything else that it
raises is a defect, and the input is printed so that it can become a test.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import struct
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from everywatt.core.errors import EverywattError

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "support"))  # tapes with a known truth
DATA = ROOT / "tests" / "data"
REFUSALS = (EverywattError,)
HEAD = "*** Sampled system activity (Fri Nov  7 17:15:01 2025 +0100) (1003.25ms elapsed) ***\n"
LETTERS = b'0123456789 ./:@%[](){},-+=_"\n\tmWAVCJx\xc3\xa9\0\xff'


@dataclass(frozen=True)
class Target:
    """A parser of bytes, and samples of what it reads. `cost`: it takes so many times as long as others."""

    parse: Callable[[bytes], object]
    samples: Sequence[bytes]
    cost: int = 1


def _json(reads: Callable[[object], object]) -> Callable[[bytes], object]:
    def parse(data: bytes) -> object:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None  # no JSON: whoever calls the parser has refused already
        return reads(value)

    return parse


def _text(reads: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: reads(data.decode("utf-8", "replace"))


def _parts(path: Path, count: int | None = None) -> list[bytes]:
    return [part.encode() for part in path.read_text().split("\n## ")[1:][:count]]


def _box() -> bytes:
    pairs = ",".join(f"#current{n},#activepow{n}" for n in range(1, 7))
    rows = [f"1745428511.{n:02d}0000000,true,230.1,0.0,0.0,{','.join(['0.1', '20.9'] * 6)}" for n in (1, 2, 3)]
    lines = [f"#timestamp,#frame_is_ok,#U1,#U2,#U3,{pairs}", *rows, "1745428511.050000000,false,,,,"]
    return "\n".join([*lines, "2026/11/15-07:00:01;Sun Nov 15 07:00:01 2026;INFO;BAD FRAME CRC;12", ""]).encode()


def _frame() -> bytes:
    content = struct.pack("<HHIIfff", 22 + 8 * 6, 1, 42_949_673, 200, 1e7, 0.0, 0.0) + struct.pack("<12f", *[5.0] * 12)
    check = 0
    for byte in content:
        check ^= byte
    return b"\xfe\xfd\xfc\xfb" + content + bytes((check,))


def _answer() -> bytes:
    """An SNMP answer to question 1: object 1.3.6.1.4.1.318.1 is 152."""
    bind = bytes.fromhex("300e06082b06010401823e0102020098")
    pdu = bytes.fromhex("020101020100020100") + bytes((0x30, len(bind))) + bind
    body = bytes.fromhex("02010104067075626c6963") + bytes((0xA2, len(pdu))) + pdu
    return bytes((0x30, len(body))) + body


def _box_text(data: bytes) -> object:
    from everywatt.meters.block import Oddities
    from everywatt.meters.omegawatt_csv import read_blocks

    found = list(read_blocks([data], Oddities()))
    assert all(abs(block.watts[block.ok]).max(initial=0) < 2**31 / 10 for block in found)
    return found


def _box_serial(data: bytes) -> object:
    from everywatt.meters.omegawatt_serial import Decoder

    return Decoder().feed(data)


PLIST = b"""<?xml version="1.0" encoding="UTF-8"?>
<plist version="1.0"><dict><key>timestamp</key><date>2025-11-07T16:15:01Z</date><key>elapsed_ns</key>
<integer>1003250000</integer><key>processor</key><dict><key>cpu_power</key><real>52.5</real><key>package_watts</key>
<real>3.5</real></dict></dict></plist>
\0"""


def _journal_bytes(kind: str, pieces: Sequence[bytes]) -> bytes:
    start_ns = 1_700_000_000_000_000_000
    found = [struct.pack("<QI", start_ns + n * 10**7, len(piece)) + piece for n, piece in enumerate(pieces)]
    return f"EWJ1 {kind}\n".encode() + b"".join(found)


def _journal(data: bytes) -> object:
    from everywatt.meters.block import Oddities
    from everywatt.meters.journal import head_of, journal_blocks, tail_of, whole_size

    with tempfile.NamedTemporaryFile(suffix=".journal") as file:
        file.write(data)
        file.flush()
        path = Path(file.name)
        assert whole_size(path) <= len(data)
        found = list(journal_blocks(path, Oddities()))
        assert all((block.utc_ns[1:] > block.utc_ns[:-1]).all() for block in found) or data.startswith(b"EWJ1 text")
        return found, tail_of(path), head_of(path)


def _aipowermeter(data: bytes) -> object:
    from everywatt.formats.aipowermeter import read_log, segments_of, tables_of

    log = read_log(iter(data.decode("utf-8", "replace").splitlines()))
    return tables_of(log), segments_of(log)


def _sage(data: bytes) -> object:
    from everywatt.formats.sage import take_record

    series: dict[tuple[str, str], object] = {}
    return [take_record(line, series, "") for line in data.split(b"\n")]  # type: ignore[arg-type]


def _codecarbon(data: bytes) -> object:
    import io

    from everywatt.formats.codecarbon import part_of, rows_of

    rows = rows_of(io.StringIO(data.decode("utf-8", "replace"), newline=""), "fuzz")
    return part_of("fuzz", rows, {})


def _map(data: bytes) -> object:
    from everywatt.meters.plugmap import toml_feeds

    try:
        table = tomllib.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return toml_feeds(table, Path("map.toml"))


def _snmp(data: bytes) -> object:
    from everywatt.sensors.wall.snmp import parse_response

    try:
        return parse_response(data, 1)
    except ValueError:
        return None  # how it says that this is no answer


FORGERIES = [
    b'["meta", "tags", "value", "5"]',
    b'["meta", "host", "value", "{\\"name\\": 5, \\"cpus\\": \\"x\\"}"]',
    b'["meta", "bounds_ns", "value", "[5, null]"]',
    b'["span", 1, "start_ns", "x"]',
    b'["span", 1, "attributes", "[1]"]',
    b'["span", 2, "end_ns", 9000000000000000000]',
    b'["anchor", 1, "utc_ns", -1]',
    b'["grp", 1, "info", "{\\"channels\\": [{\\"name\\": 5}]}"]',
    b'["gap", 1, "kind", 7]',
    b'["edge", 1, "read_ns", 1.5]',
    b'["frame", 1, "n", 1000000000]',
    b'["frame", 2, "first_ns", "x"]',
    b'["note", 1, "data", "[]"]',
    b'["point", 1, "value", "{}"]',
]


@cache
def _tape() -> Path:
    """A tape with something in every table."""
    from tapes import counter_group, gauge_group, rows, write_tape

    groups = [
        (counter_group(inline=True), 0.1, [*rows(lambda t: 50.0 * t, 0, 1, 0.1), *rows(lambda t: 50.0 * t, 2, 3, 0.1)]),
        (gauge_group(), 0.1, rows(lambda t: 200.0, 0, 3, 0.1)),
    ]
    spans = [("work", 0.5, 2.5, None, {"role": "x"}), ("idle", 0.1, 0.4, "s0", {})]
    edges = [(0, rows(lambda t: 50.0 * t, 0.5, 0.5, 0.1)[0])]
    return write_tape(Path(tempfile.mkdtemp(prefix="everywatt-fuzz-")) / "run.tape", groups, spans, edges)


def _forged(told: object) -> object:
    """All that is shown of a tape in which one value of one row was replaced, with the right checksums."""
    from tapes import forge

    from everywatt.api.run import load
    from everywatt.footprint.carbon import Factors
    from everywatt.report.html.data import run_view
    from everywatt.tape.schema import COLUMNS

    if not isinstance(told, list) or len(told) != 4 or told[0] not in COLUMNS or told[2] not in COLUMNS[told[0]]:
        return None
    table, row, column, value = told
    if isinstance(row, list | dict) or isinstance(value, list | dict):
        return None
    if isinstance(value, int | float) and abs(value) > 10**14:
        return None  # a tape of years is shown, and takes long
    with tempfile.TemporaryDirectory(prefix="everywatt-fuzz-") as folder:
        path = Path(shutil.copy(_tape(), folder))
        try:
            if not forge(path, table, row, column, value):
                return None
        except (sqlite3.Error, OverflowError, UnicodeError):
            return None  # SQLite itself does not take it
        run = load(path)
        try:
            return run.to_dict(), run_view(run, Factors(), None, lambda *_: None), [tape.notes() for tape in run.tapes]
        finally:
            for tape in run.tapes:
                tape.close()


JOB = (
    b"JobId=12 JobName=a b UserId=ada(1000) GroupId=x(1000) MCS_label=N/A Priority=1 Account=phys "
    b"JobState=RUNNING Restarts=0 RunTime=00:01:02 "
    b"SubmitTime=1794765600 StartTime=1794765601 EndTime=1794769201 SuspendTime=None Partition=debug NumNodes=1 "
    b"Nodes=n1 CPU_IDs=0-3 Mem=2048 GRES=gpu:2(IDX:0-1) Command=x"
)
SACCT = (
    b"JobIDRaw|JobID|User|UID|Account|Partition|JobName|State|Submit|Start|End|NNodes|NodeList|ConsumedEnergyRaw\n"
    b"12|12|ada|1000|phys|debug|a b|COMPLETED|1794765600|1794765601|1794769201|1|n[1-2]|1000\n"
    b"12.batch|12.batch||||||COMPLETED|1794765600|1794765601|1794769201|1|n1|900\n"
)


def targets() -> dict[str, Target]:
    """Every parser of what meters, boards, Slurm and other tools say, by name; and tapes that were forged."""
    from everywatt.core import cgroup_names
    from everywatt.formats.ipmi import parse_log
    from everywatt.formats.nvidia_smi import parse_lines
    from everywatt.formats.powermetrics import parse_powermetrics
    from everywatt.meters.plugmap import labia_feeds
    from everywatt.meters.wall import nodes_of
    from everywatt.sensors.amd.rocm_smi import parse_rocm
    from everywatt.sensors.jetson.tegrastats import parse_line
    from everywatt.sensors.node import redfish
    from everywatt.sensors.node.cray import parse_counter
    from everywatt.sensors.node.ipmi import parse_dcmi
    from everywatt.sensors.node.raspberry import parse_pmic
    from everywatt.sensors.nvidia.smi_csv import parse_csv
    from everywatt.sensors.wall.execute import parse_number
    from everywatt.sensors.wall.plugs import channels_of, energy_of
    from everywatt.slurm.node import scontrol
    from everywatt.slurm.site import detail, sacct

    tegra = (DATA / "tegrastats" / "tegrastats.txt").read_text().splitlines()
    dcmi = _parts(DATA / "meters" / "ipmi_dcmi.txt")

    def all_of_redfish(data: object) -> object:
        return [redfish.power_w(data), redfish.sensor_w(data), redfish.reading_w(data, "PowerWatts")]

    return {
        "forged-tape": Target(_json(_forged), FORGERIES, cost=50),
        "scontrol-job": Target(_text(lambda text: scontrol.parse_job(text, "n1")), [JOB]),
        "scontrol-pids": Target(_text(scontrol.parse_pids), [b"PID JOBID STEPID LOCALID GLOBALID\n77 12 batch 0 0\n"]),
        "slurm-nodes": Target(_text(scontrol.expand), [b"n[1-2,07-08],login", b"a[0-9][0-9]b"]),
        "slurm-id": Target(_text(detail.parse_id), [b"123", b"123_4", b"123+0"]),
        "sacct": Target(_text(sacct.parse), [SACCT]),
        "cgroup": Target(
            _text(cgroup_names.places),
            [
                b"/system.slice/slurmstepd.scope/job_12/step_0/user/task_0",
                b"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a2b.slice/cri-containerd-0a1b.scope",
            ],
        ),
        "tegrastats": Target(_text(parse_line), [line.encode() for line in tegra if line[:1] != "#"]),
        "dcmi": Target(_text(parse_dcmi), dcmi),
        "ipmi-log": Target(_text(lambda text: parse_log(text.splitlines())), [b"2026-11-15T10:00:00\n" + dcmi[0]]),
        "rocm-smi": Target(_text(parse_rocm), _parts(DATA / "meters" / "rocm_smi.json.txt", 3)),
        "powermetrics": Target(parse_powermetrics, [f"{HEAD}CPU Power: 52 mW\nGPU Power: 8 mW\n".encode(), PLIST * 2]),
        "pmic": Target(_text(parse_pmic), [b"VDD_CORE_A current(7)=2.0A\nVDD_CORE_V volt(15)=0.75V\n"]),
        "cray": Target(_text(parse_counter), [b"100 J 1734094386462336 us"]),
        "exec": Target(_text(lambda text: parse_number(text, "W")), [b"12.5 W\n", b"1e3"]),
        "snmp": Target(_snmp, [_answer()]),
        "shelly": Target(_json(channels_of), [b'{"switch:0": {"apower": 10.7, "aenergy": {"total": 46791.262}}}']),
        "tasmota": Target(_json(energy_of), [b'{"StatusSNS": {"ENERGY": {"Power": [10, 20], "Total": 3.185}}}']),
        "redfish": Target(
            _json(all_of_redfish),
            [
                b'{"PowerControl": [{"PowerConsumedWatts": 344}]}',
                b'{"PowerWatts": {"Reading": 374, "DataSourceUri": ""}}',
            ],
        ),
        "nvidia-smi": Target(
            _text(lambda text: parse_csv(text.splitlines())),
            [
                b"timestamp, index, power.draw [W]\n2026/11/15 10:00:00.123, 0, 71.20 W\n"
                b"2026/11/15 10:00:01.1, 0, [N/A]\n"
            ],
        ),
        "dmon": Target(
            _text(lambda text: parse_lines(text.splitlines())),
            [
                b"#Date Time gpu pwr sm\n#YYYYMMDD HH:MM:SS Idx W %\n 20261115 10:00:00 0 71 5\n",
                b"# gpu pwr\n 0 71\n 1 -\n",
            ],
        ),
        "omegawatt-text": Target(_box_text, [_box()]),
        "omegawatt-serial": Target(_box_serial, [_frame() * 3]),
        "journal": Target(
            _journal,
            [
                _journal_bytes("serial", [b"", _frame()[:50], _frame()[50:], _frame() * 2]),
                _journal_bytes("text", [_box()]),
            ],
        ),
        "aipowermeter": Target(
            _aipowermeter,
            [
                b'{"date": "2026-11-15 10:00:00.500000", "metrics": {"cpu": {"intel_power": 20.5, "psys_power": -1, '
                b'"per_process_cpu_uses": {"7": 0.5}}, "gpu": {"nvidia_power": 71.0, '
                b'"per_gpu_nvidia_power": {"0": 71.0}}}}\n'
                b'"END OF RECORDING SEGMENT"\n'
            ],
        ),
        "sage": Target(
            _sage, [b'{"timestamp": "2026-11-15T10:00:00Z", "name": "sys.power", "value": 5.5, "meta": {"vsn": "W1"}}']
        ),
        "codecarbon": Target(
            _codecarbon,
            [b"timestamp,run_id,duration,cpu_energy,gpu_energy\n2026-11-15T10:00:00,a,60.5,0.001,0.002\n"],
        ),
        "map": Target(_map, [b'[[plug]]\nplug = 13\nnode = "n51"\nphase = 1\nfrom = 2026-01-01\nuntil = 2026-06-01\n']),
        "labia-map": Target(
            _json(labia_feeds), [b'{"n51": [30, 42], "n1": {"columns": [10, 28], "alims": ["G", "D"]}}']
        ),
        "comparison": Target(
            _json(lambda data: nodes_of(data, Path("cells.json"))),
            [b'{"n1": {"1794765600": {"rapl": 1.5, "nvidia": 2, "omegawatt_power_draw": 5}}}'],
        ),
    }


def damaged(chance: random.Random, samples: Sequence[bytes]) -> bytes:
    """A sample with up to twelve changes: bytes replaced, put in, taken out, or copied from another sample."""
    data = bytearray(chance.choice(samples))
    for _ in range(chance.randint(1, 12)):
        at, what = chance.randrange(len(data) + 1), chance.random()
        if what < 0.4:
            data[at : at + 1] = bytes((chance.choice(LETTERS),))
        elif what < 0.6:
            data[at:at] = bytes((chance.choice(LETTERS),))
        elif what < 0.8:
            del data[at : at + chance.randint(1, 20)]
        else:
            other = chance.choice(samples)
            cut = chance.randrange(len(other) + 1)
            data[at:at] = other[cut : cut + chance.randint(1, 30)]
    return bytes(data)


def check(target: Target, data: bytes) -> None:
    """Parse; a refusal is fine, anything else is raised."""
    try:
        target.parse(data)
    except REFUSALS:
        return


def at_random(name: str, runs: int, seconds: float | None = None) -> int:
    """So many damaged inputs, or as many as the time allows; gives how many there were."""
    target, chance = targets()[name], random.Random(name)
    until = time.monotonic() + seconds if seconds else None
    for done in range(runs := max(1, runs // target.cost)):
        if until is not None and time.monotonic() > until:
            return done
        data = damaged(chance, target.samples)
        try:
            check(target, data)
        except BaseException:
            print(f"{name}: {data!r}", file=sys.stderr)
            raise
    return runs


def led(name: str, runs: int, seconds: float | None) -> None:
    """Inputs that atheris leads by coverage. Does not return: it ends the process, with 0 where nothing was found."""
    import atheris

    with atheris.instrument_imports(include=["everywatt"]):
        target = targets()[name]
        for sample in target.samples:
            check(target, sample)  # what is imported late is instrumented too
    words = [sys.argv[0], f"-runs={runs}", "-verbosity=0", "-max_len=2000", "-timeout=20"]
    atheris.Setup(words + ([f"-max_total_time={round(seconds)}"] if seconds else []), lambda data: check(target, data))
    atheris.Fuzz()


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="parsers; all of them unless given")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--led", action="store_true", help="by atheris; one NAME")
    words = parser.parse_args(argv)
    known = targets()
    if unknown := [name for name in words.names if name not in known]:
        parser.error(f"there is no parser '{unknown[0]}'; there are: {', '.join(known)}")
    if words.led:
        if len(words.names) != 1:
            parser.error("--led takes one NAME")
        led(words.names[0], words.runs, words.seconds)
    for name in words.names or known:
        print(f"{name}: {at_random(name, words.runs, words.seconds)} inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
