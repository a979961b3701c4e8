"""`everywatt monitor` as a shell sees it, on a simulated machine with a known truth."""

import csv
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from bisect import bisect_left, bisect_right
from datetime import UTC, datetime
from pathlib import Path

import pytest
from truths import holds
from waiting import until

from everywatt.energy.sources import BLUNT
from everywatt.sim.machine import SimMachine
from everywatt.tape.reader import Tape

CARD_W, PACKAGE_W = 100.0, 40.0
CARD_SHARE = BLUNT / (1 - BLUNT)  # how far off a power may be whose stretch is known to BLUNT of its length


@pytest.fixture(scope="module")
def machine():
    """Two cards of 100 W and a package of 40 W."""
    made = SimMachine.of(gpus=[f"constant:{CARD_W:g}W"], replicate=2, packages=[f"constant:{PACKAGE_W:g}W"])
    with made.start() as lab:
        yield lab


@pytest.fixture
def place(machine, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environ = machine.environment() | {
        "HOME": str(tmp_path), "TMPDIR": str(temporary), "TERM": "xterm-256color", "LANG": "C.UTF-8"
    }  # fmt: skip
    for name in ("EVERYWATT_HOME", "XDG_CONFIG_HOME", "NO_COLOR", "COLUMNS", "LINES"):
        environ.pop(name, None)
    return Place(tmp_path, environ)


class Place:
    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder, self.environ = folder, environ

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "everywatt", "monitor", *words]

    def run(self, *words: str, check: int | None = 0, **more):
        settings = {"cwd": self.folder, "env": self.environ, "capture_output": True, "text": True, "timeout": 240}
        done = subprocess.run(self.words(*words), **(settings | more))
        if check is not None:
            assert done.returncode == check, done.stderr
        return done

    def start(self, *words: str, **more):
        settings = {"cwd": self.folder, "env": self.environ, "stdout": -1, "stderr": -1, "text": True}
        return subprocess.Popen(self.words(*words), **(settings | more))

    def left_behind(self) -> list[Path]:
        return list((self.folder / "tmp").glob("everywatt-monitor-*"))


def test_once_shows_every_device_and_leaves_nothing(place):
    done = place.run("--once")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if not line.startswith("cpu.0 core")}
    for name, watts in (("cpu.0", PACKAGE_W), ("gpu.0", CARD_W), ("gpu.1", CARD_W)):
        assert float(rows[name][1]) == pytest.approx(watts, rel=CARD_SHARE) and rows[name][2] == "W"
    assert done.stdout.splitlines()[0].startswith("this machine on ")
    assert place.left_behind() == []
    assert not (place.folder / "everywatt-runs").exists()


def test_once_json_is_one_object(place):
    done = place.run("--once", "--json", "--gpus", "1")
    data = json.loads(done.stdout)
    assert (data["schema"], data["kind"]) == ("everywatt/1", "snapshot")
    devices = {device["name"]: device for device in data["devices"]}
    assert set(devices) == {"cpu.0", "cpu.0 core", "gpu.1"}
    assert devices["gpu.1"]["power_w"] == pytest.approx(CARD_W, rel=CARD_SHARE)
    assert data["power_w"] == pytest.approx(CARD_W + PACKAGE_W, rel=CARD_SHARE)
    energy = data["energy"]
    assert energy["low"] <= energy["joules"] <= energy["high"] and energy["scope"] == "cpu+gpu"
    assert devices["gpu.1"]["memory_total_bytes"] == 16 * 2**30
    assert data["host"]["memory_total_bytes"] > 2**28


@pytest.mark.parametrize("wanted", ["7", "abc", "0,7"])
def test_a_card_that_is_not_there_is_refused(place, wanted):
    done = place.run("--once", "--gpus", wanted, check=2)
    assert f"There is no card {wanted.removeprefix('0,')} on this machine." in done.stderr
    assert place.left_behind() == []


def test_json_lines_until_the_time_is_up(place):
    done = place.run("--json", "--interval", "0.5s", "--for", "2s")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert 1 <= len(lines) <= 5, "fewer on a machine that is held up"
    energies = [line["energy"]["joules"] for line in lines]
    assert energies == sorted(energies)
    # Never the power of some of the devices: none is told until all are known, which takes a while on a busy machine.
    for line in lines:
        assert line["power_w"] is None or line["power_w"] == pytest.approx(240, rel=CARD_SHARE)
    for device in lines[-1]["devices"]:
        assert device["settling"] or device["power_w"] > 0


def test_csv_has_the_truth_and_is_appended_to(place):
    def cards():
        rows = list(csv.DictReader((place.folder / "power.csv").open()))
        assert sum(row["device"] == "device" for row in rows) == 0
        return [row for row in rows if row["device"] == "gpu.0"]

    place.run("--csv", "power.csv", "--interval", "0.5s", "--for", "1.5s")
    before = cards()
    place.run("--csv", "power.csv", "--once")
    assert before and cards()[: len(before)] == before and len(cards()) == len(before) + 1
    assert float(cards()[-1]["power_w"]) == pytest.approx(CARD_W, rel=CARD_SHARE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_stream_with_whole_lines(place, number):
    process = place.start("--json", "--interval", "0.2s", preexec_fn=_usual_signals)
    energies = []
    while not energies or energies[-1] == energies[0]:
        energies.append(json.loads(process.stdout.readline())["energy"]["joules"])
    process.send_signal(number)
    rest, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    energies += [json.loads(line)["energy"]["joules"] for line in rest.splitlines()]
    assert energies == sorted(energies)
    assert place.left_behind() == []


def _usual_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def test_a_reader_that_leaves_ends_it(place):
    command = " ".join(f"'{word}'" for word in place.words("--json", "--interval", "0.2s")) + " | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        cwd=place.folder,
        env=place.environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.splitlines()[-1] == "141"
    assert "Traceback" not in done.stderr
    assert place.left_behind() == []


def test_a_view_that_was_killed_is_tidied_up_by_the_next(place):
    process = place.start("--json", "--interval", "0.2s")
    process.stdout.readline()
    process.kill()
    process.communicate()
    assert len(place.left_behind()) == 1
    place.run("--once")
    assert place.left_behind() == []


def test_recording_the_whole_machine(place):
    done = place.run("--record", "--for", "2s", "--tag", "watch")
    (folder,) = (place.folder / "everywatt-runs").glob("2*")
    assert folder.name.endswith("-watch")
    (path,) = folder.glob("*.tape")
    tape = Tape.open(path)
    assert tape.sealed
    assert "run" in done.stderr and folder.name in done.stderr and done.stdout == ""
    from everywatt.api.run import load

    run = load(folder)
    assert holds(run.energy(), 240 * run.duration_s)
    owners = run.ledger("process")
    assert owners.checks.hold
    assert any(entry.owner.kind == "process" for entry in owners.entries), "the whole machine is there"


def cpu_s(pid):
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shares(samples, duration_s):
    """The least and the most CPU that a process of these (time, CPU time) had in any stretch so long, as a share."""
    at_s, used_s = zip(*samples, strict=True)
    least_s, most_s = [], []
    for first in range(len(at_s) - 1):  # the stretch begins between this sample and the next
        inside = bisect_right(at_s, at_s[first] + duration_s) - 1
        around = bisect_left(at_s, at_s[first + 1] + duration_s)
        if around < len(at_s):
            least_s.append(max(0.0, used_s[inside] - used_s[first + 1]))
            most_s.append(used_s[around] - used_s[first])
    return min(least_s) / duration_s, max(most_s) / duration_s


@pytest.mark.serial  # of a machine that is held up the last second is not on the tape when the owners are asked for
def test_owners_now(place):
    name = f"everywatt-spinner-{os.getpid()}"  # tests that run beside this one have spinners of their own
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass", name], env=place.environ)
    try:
        with (place.folder / "out.json").open("w") as out:
            watching = place.start("--once", "--by", "owner", "--json", stdout=out)
        samples = []
        while watching.poll() is None:
            samples.append((time.monotonic(), cpu_s(spinner.pid)))
            time.sleep(0.02)  # between two looks
        samples.append((time.monotonic(), cpu_s(spinner.pid)))
    finally:
        spinner.kill()
        spinner.wait()
    assert watching.returncode == 0, watching.communicate()[1]
    owners = json.loads((place.folder / "out.json").read_text())["owners"]
    assert owners["by"] == "process"
    kinds = {entry["owner"]["kind"] for entry in owners["entries"]}
    assert {"idle", "process", "unattributed"} <= kinds
    (mine,) = (entry for entry in owners["entries"] if name in entry["owner"]["label"])
    # On a busy machine the spinner gets what is left: it owes for that, and not for a core of its own.
    least, most = shares(samples, owners["duration_s"])
    ticks_s = 2 / os.sysconf("SC_CLK_TCK")  # both counts of CPU time are in whole ticks
    assert least - ticks_s / owners["duration_s"] <= mine["cpu_pct"] / 100 <= most + ticks_s / owners["duration_s"]
    assert mine["power_w"] > mine["cpu_pct"] / 100 > 0
    whole = sum(entry["joules"] for entry in owners["entries"])
    assert whole == pytest.approx(240 * owners["duration_s"], rel=0.2), "a held-up machine reads devices at other times"


@pytest.mark.parametrize("by", ["process", "user"])
def test_an_owner_that_ended_is_gone_two_refreshes_later_and_its_joules_stay_in_the_sum(place, by):
    if by == "user" and os.geteuid() != 0:
        pytest.skip("only root may start a process of another user")
    user = 1_000_000 + os.getpid()  # tests that run beside this one have spinners and users of their own
    name = f"everywatt-spinner-{user}" if by == "process" else str(user)
    code = f"import os\nif os.geteuid() == 0: os.setuid({user})\nwhile True: pass"
    spinner = subprocess.Popen([sys.executable, "-c", code, f"everywatt-spinner-{user}"], env=place.environ)
    watching = place.start("--json", "--by", by, "--interval", "0.5s")

    def listed(owners):
        return [one for one in owners.get("entries", ()) if name in one["owner"]["label"]]

    try:
        while not any(one["joules"] > 0 for one in listed(json.loads(watching.stdout.readline())["owners"])):
            pass
        spinner.kill()
        spinner.wait()
        ended = datetime.now(UTC)
        after = (json.loads(line) for line in watching.stdout)
        next(one for one in after if datetime.fromisoformat(one["at"]) > ended)  # it may have looked before that
        second = next(after)
    finally:
        spinner.kill()
        spinner.wait()
        watching.send_signal(signal.SIGTERM)
        watching.communicate(timeout=240)
    assert not listed(second["owners"])
    rest = next(one for one in second["owners"]["entries"] if one["owner"]["id"] == "ended")
    assert rest["joules"] > 0 and rest["low"] <= rest["joules"] <= rest["high"]


def test_a_run_that_is_written_and_one_that_has_ended(place):
    words = [sys.executable, "-m", "everywatt", "run", "--quiet", "--", "cat"]
    process = subprocess.Popen(words, cwd=place.folder, env=place.environ, stdin=subprocess.PIPE)
    try:
        until(lambda: list((place.folder / "everywatt-runs").glob("*/*.tape")))
        live = until(lambda: known(place), "the power of all devices")
    finally:
        process.stdin.close()  # with its input the command ends
        process.wait(timeout=240)
    assert live["live"] and live["power_w"] == pytest.approx(240, rel=0.05)
    done = json.loads(place.run("last", "--once", "--json").stdout)
    assert not done["live"] and done["energy"]["joules"] > live["energy"]["joules"]
    assert holds(done["energy"], 240 * done["elapsed_s"])


def test_a_run_that_ended_has_one_figure_everywhere(place):
    def everywatt(*words):
        command = [sys.executable, "-m", "everywatt", *words]
        return subprocess.run(command, cwd=place.folder, env=place.environ, check=True, capture_output=True, text=True)

    everywatt("run", "--quiet", "--idle", "1s", "--", "sleep", "1")
    run = json.loads(everywatt("show", "last", "--json").stdout)
    ledger = json.loads(everywatt("ledger", "last", "--json").stdout)
    seen = json.loads(place.run("last", "--once", "--by", "process", "--json").stdout)
    figures = ("joules", "low", "high", "scope", "coverage")
    assert [seen["energy"][name] for name in figures] == [run["energy"][name] for name in figures]
    assert seen["elapsed_s"] == run["duration_s"]
    devices = {device["name"]: device["energy"]["joules"] for device in seen["devices"] if device["in_total"]}
    assert devices == {name: part["joules"] for name, part in run["energy"]["parts"].items()}
    owners = {one["owner"]["id"]: one["joules"] for one in seen["owners"]["entries"]}
    assert owners == {one["owner"]["id"]: one["microjoules"] / 1e6 for one in ledger["owners"]}


def known(place):
    """The last run as it is shown now; None while its tape has no rows, or the power of a device is not known yet."""
    done = place.run("last", "--once", "--json", check=None)
    if done.returncode == 2 and "contains no rows yet" in done.stderr:
        return None
    shown = json.loads(done.stdout)
    return shown if shown["power_w"] is not None else None


def test_a_batch_log(place):
    log = place.folder / "log.jsonl"
    event = {"chunk_id": "c1", "gpu_index": 0, "gpu_name": "Q", "status": "success", "timestamp": "2026-01-02T03:04:05"}
    log.write_text(json.dumps({**event, "runtime_s": 2.0, "details": {"attempt": 1}}) + "\n")
    done = place.run(str(log), "--once")
    assert "gpu.0" in done.stdout and "c1" in done.stdout


def test_a_batch_has_its_items_and_its_cards(place):
    (place.folder / "items.txt").write_text("a\nb\nc\n")
    words = [sys.executable, "-m", "everywatt", "batch", "--quiet", "--max-retries", "0", "items.txt", "--"]
    script = ["sh", "-c", "sleep 1.2; [ {input} != b ]"]
    done = subprocess.run([*words, *script], env=place.environ, cwd=place.folder, stdout=subprocess.DEVNULL)
    assert done.returncode == 1
    shown = json.loads(place.run("last", "--once", "--json", "--tail", "2").stdout)
    assert sum(worker["success"] for worker in shown["work"]) == 2
    assert sum(worker["failure"] for worker in shown["work"]) == 1
    devices = {device["name"]: device for device in shown["devices"]}
    for worker in shown["work"]:
        assert worker["energy_j"] == devices[worker["worker"]]["energy"]["joules"] > 0
    assert len(shown["tail"]) == 2
    table = place.run("last", "--once").stdout
    assert "WORKER" in table and " failure " in table


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--interval", "1ms"], 2, "0.1 s"),
        (["--record", "last"], 2, "takes no SOURCE"),
        (["--record", "--once"], 2, "--record --for 60s"),
        (["--for", "0s", "--once"], 2, "above zero"),
        (["no-such-run", "--once"], 2, "no run 'no-such-run'"),
        (["http://127.0.0.1:9", "--once"], 3, "does not answer"),
        ([], 2, "--once"),
        (["--csv", "/no/such/folder/x.csv", "--for", "1s"], 2, "cannot be written"),
    ],
)
def test_bad_words_are_answered_with_what_to_do(place, words, code, said):
    done = place.run(*words, check=code)
    assert said in done.stderr and "Traceback" not in done.stderr
    assert place.left_behind() == []


def test_no_sensor_and_no_estimate_is_exit_4(place, tmp_path):
    bare = {**place.environ, "EVERYWATT_SYS": str(tmp_path / "empty"), "EVERYWATT_SENSORS": "rapl"}
    (tmp_path / "empty").mkdir()
    done = place.run("--once", "--no-estimate", check=4, env=bare)
    assert "No sensor on this machine measures power" in done.stderr
    assert place.left_behind() == []


def test_without_the_extra_the_cure_is_named(place, tmp_path):
    """A folder that hides Textual, as if it were not installed."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'textual': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'textual' else found(name, *more)\n"
    )
    hidden = {**place.environ, "PYTHONPATH": f"{tmp_path / 'hide'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    code, drawn, _ = on_terminal(place, [], hidden)
    assert code == 2 and "pip install 'everywatt[tui]'" in drawn
    assert place.run("--once", env=hidden).stdout


def on_terminal(place, words, environ=None, act=None):
    """Run it in a pty; gives its exit code, what it drew, and whether the terminal was left as it was."""
    first, second = pty.openpty()
    before = termios.tcgetattr(second)
    process = subprocess.Popen(
        place.words(*words),
        cwd=place.folder,
        env=environ or place.environ,
        stdin=second,
        stdout=second,
        stderr=second,
        start_new_session=True,
        preexec_fn=_usual_signals,
    )
    drawn, acted, deadline = b"", False, time.monotonic() + 240
    while time.monotonic() < deadline:
        if select.select([first], [], [], 0.1)[0]:
            drawn += os.read(first, 65536)
        if act is not None and not acted and b"gpu.1" in drawn:
            acted = True
            act(process, first)
        if process.poll() is not None and not select.select([first], [], [], 0.3)[0]:
            break
    code = process.wait(timeout=240)
    same = termios.tcgetattr(second) == before
    os.close(first)
    os.close(second)
    return code, drawn.decode("utf-8", "replace"), same


ENDINGS = {
    "q": lambda process, terminal: os.write(terminal, b"q"),
    "ctrl-c": lambda process, terminal: os.write(terminal, b"\x03"),
    "SIGTERM": lambda process, terminal: process.send_signal(signal.SIGTERM),
    "SIGHUP": lambda process, terminal: process.send_signal(signal.SIGHUP),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_the_terminal_is_left_clean(place, how):
    pytest.importorskip("textual")
    code, drawn, same = on_terminal(place, ["--interval", "0.5s"], act=ENDINGS[how])
    assert code == 0
    assert same, "echo and line mode are back"
    assert drawn.rfind("\x1b[?1049l") > drawn.rfind("\x1b[?1049h") >= 0, "the screen from before is back"
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l"), "the cursor is back"
    assert place.left_behind() == []


def test_after_an_exception_too(place, tmp_path):
    pytest.importorskip("textual")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(
        "import everywatt.report.live.gather as g\n"
        "calls = []\n"
        "def fail(self, now_ns, found=g.Gatherer.devices):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 4: raise ZeroDivisionError('for the test')\n"
        "    return found(self, now_ns)\n"
        "g.Gatherer.devices = fail\n"
    )
    environ = {**place.environ, "PYTHONPATH": f"{tmp_path / 'broken'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    code, drawn, same = on_terminal(place, ["--interval", "0.3s"], environ)
    assert code != 0 and "ZeroDivisionError" in drawn
    assert same and drawn.rfind("\x1b[?1049l") > drawn.rfind("\x1b[?1049h") >= 0
    assert place.left_behind() == []
