"""`everywatt run`: the command's own code, streams and signals come through, whatever happens to the measurement."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from truths import holds

from everywatt.sim.machine import SimMachine
from everywatt.tape.reader import Tape

WATTS = 50.0


@pytest.fixture(scope="module")
def machine():
    """One package of exactly 50 W, with a recorder that all tests of this module share."""
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        yield lab


@pytest.fixture
def place(machine, tmp_path):
    """The environment of a program in that machine, with folders of the test's own."""
    home = tmp_path / "home"
    home.mkdir()
    environ = machine.environment() | {"HOME": str(home), "XDG_STATE_HOME": str(tmp_path / "state")}
    for name in ("EVERYWATT_HOME", "XDG_CONFIG_HOME"):
        environ.pop(name, None)
    return Place(tmp_path, environ)


def usual_signals() -> None:
    """As in a shell, also where the tests run in the background or under nohup, which ignore some signals."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Place:
    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder, self.environ = folder, environ

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "everywatt", *words]

    def run(self, *words: str, check: int | None = None, **more):
        settings = {"cwd": self.folder, "env": self.environ, "capture_output": True, "timeout": 240} | more
        done = subprocess.run(self.words("run", *words), **settings)
        if check is not None:
            assert done.returncode == check, done.stderr
        return done

    def start(self, *words: str, **more):
        settings = {"cwd": self.folder, "env": self.environ, "stdout": -1, "stderr": -1, "preexec_fn": usual_signals}
        settings |= more
        return subprocess.Popen(self.words("run", *words), **settings)

    def tapes(self) -> list[Path]:
        return sorted((self.folder / "everywatt-runs").glob("*/*.tape"))


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--", "true"], 0),
        (["--", "sh", "-c", "exit 7"], 7),
        (["--", "sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["--", "sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
    ],
)
def test_the_exit_code_is_the_commands_own(place, words, code) -> None:
    place.run(*words, check=code)
    (path,) = place.tapes()
    (span,) = [span for span in Tape.open(path).spans() if span.name == "run"]
    assert span.attributes["exit_code"] == code and span.end_ns is not None


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("no-such-command-anywhere", 127, b"No such file or directory"),
        ("./none", 127, b"No such file or directory"),
        ("", 127, b"No such file or directory"),
        ("/", 126, b"Permission denied"),
        ("./text", 126, b"Permission denied"),
    ],
)
def test_a_command_that_cannot_start_leaves_no_run(place, name, code, why) -> None:
    (place.folder / "text").write_text("words")
    done = place.run("--idle", "1h", "--json=out.json", "--", name, check=code)
    assert why in done.stderr and b" J" not in done.stderr
    out = json.loads((place.folder / "out.json").read_text())
    assert (out["name"], out["exit_code"], out["energy"]["joules"]) == (None, code, None)
    assert out["energy"]["refused"] == f"{name} could not be started"
    assert place.tapes() == []


@pytest.mark.parametrize("name", ["PATH", "HOME", "XDG_CONFIG_HOME"])
def test_a_folder_of_another_user_in_the_environment_stops_nothing(place, name) -> None:
    closed = "/" + "x" * 300  # also for root; su keeps the folders of the caller
    environ = place.environ | {name: f"{closed}:{place.environ['PATH']}" if name == "PATH" else closed}
    assert b" J" in place.run("--", "true", env=environ, check=0).stderr
    assert b"No such file or directory" in place.run("--", "no-such-command", env=environ, check=127).stderr


def test_a_command_whose_interpreter_is_missing(place) -> None:
    script = place.folder / "script"
    script.write_text("#!/no/such/interpreter")
    script.chmod(0o755)
    place.run("--", "./script", check=127)


def test_a_peak_of_memory_is_told_where_it_can_be(place) -> None:
    """The kernel hands everywatt's own peak down to the command: `true` never had 20 MB."""
    place.run("--quiet", "--", "true", check=0)
    place.run("--quiet", *python("b'x' * 300_000_000"), check=0)
    found = [next(span for span in Tape.open(path).spans() if span.name == "run").attributes for path in place.tapes()]
    small, large = sorted(found, key=lambda attributes: attributes["max_rss_bytes"] or 0)
    assert small["max_rss_bytes"] is None and "everywatt's own" in small["max_rss_reason"]
    assert large["max_rss_bytes"] >= 300_000_000 and "max_rss_reason" not in large


def test_a_peak_is_told_below_a_large_parent_too(place) -> None:
    """A notebook of gigabytes starts everywatt: the peak in the rusage of everywatt is not everywatt's own."""
    words = place.words("run", "--quiet", *python("b'x' * 300_000_000"))
    code = f"import subprocess\nb'x' * 600_000_000\nsubprocess.run({words!r}, check=True)"
    subprocess.run([sys.executable, "-c", code], cwd=place.folder, env=place.environ, timeout=240, check=True)
    (path,) = place.tapes()
    found = next(span for span in Tape.open(path).spans() if span.name == "run").attributes
    assert 300_000_000 <= found["max_rss_bytes"] < 500_000_000


def test_stdin_stdout_and_stderr_pass_byte_for_byte(place) -> None:
    data = bytes(range(256)) * 4096
    code = "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d); sys.stderr.buffer.write(d[::-1])"
    done = place.run("--quiet", *python(code), input=data, check=0)
    assert done.stdout == data and done.stderr == data[::-1]


def test_other_open_files_pass_too(place) -> None:
    """As those of make's jobserver, or of `3>file` in a shell."""
    command = f"exec {sys.executable} -m everywatt run --quiet -- sh -c 'echo through >&3' 3>third"
    subprocess.run(["sh", "-c", command], cwd=place.folder, env=place.environ, timeout=240, check=True)
    assert (place.folder / "third").read_text() == "through\n"


def test_a_command_of_fifty_milliseconds_has_a_record(place) -> None:
    done = place.run("--json=out.json", "--", "sleep", "0.05", check=0)
    out = json.loads((place.folder / "out.json").read_text())
    energy, duration_s = out["energy"], out["duration_s"]
    assert duration_s >= 0.05
    assert holds(energy, WATTS * duration_s)
    assert energy["pedigree"] == "counter" and energy["coverage"] == 1.0
    assert done.stdout == b"" and b"energy" in done.stderr


def test_json_on_stdout_moves_the_commands_output_to_stderr(place) -> None:
    done = place.run(
        "--json", "--tag", "try", "--tag", "project=alpha", "--note", "a note", "--", "echo", "hello", check=0
    )
    out = json.loads(done.stdout)
    assert out["kind"] == "run" and out["exit_code"] == 0 and out["name"].endswith("-try")
    assert out["meta"]["tags"] == {"name": "try", "project": "alpha"} and out["meta"]["note"] == "a note"
    assert out["meta"]["command"] == ["echo", "hello"]
    assert done.stderr == b"hello\n"


def test_a_json_file_that_cannot_be_written_does_not_change_the_code(place) -> None:
    done = place.run("--json=/no/such/folder/out.json", "--", "sh", "-c", "exit 5", check=5)
    assert b"cannot be written" in done.stderr


def test_a_json_file_that_cannot_be_written_hides_no_summary(place) -> None:
    done = place.run("--json=/no/such/folder/out.json", "--", "true", check=0)
    assert b"cannot be written" in done.stderr and b"energy  " in done.stderr and b"everywatt show" in done.stderr


def test_idle_is_recorded_first_and_net_is_above_it(place) -> None:
    began = time.monotonic()
    done = place.run("--json", "--idle", "1s", "--", "sleep", "0.3", check=0)
    took_s = time.monotonic() - began
    out = json.loads(done.stdout)
    net = out["energy_net"]
    assert out["duration_s"] + 1.0 <= took_s, "idle time is not the command's"
    if out["baseline"] is None:  # other programs keep this machine busy
        assert "busy" in net["refused"] and "everywatt run --idle 10s -- sleep 0.3" in net["refused"]
        return
    assert out["baseline"]["method"] == "measured" and out["baseline"]["duration_s"] >= 0.7
    assert net["low"] <= 0.0 <= net["high"], "a constant 50 W leaves nothing above idle"


def test_append_adds_a_segment_and_leaves_out_the_gap(place) -> None:
    first = json.loads(place.run("--json", "--", "sleep", "0.2", check=0).stdout)
    time.sleep(0.5)  # the gap that must be left out
    began = time.monotonic()
    both = json.loads(place.run("--json", "--append", first["name"], "--", "sleep", "0.2", check=0).stdout)
    took_s = time.monotonic() - began
    assert both["name"] == first["name"] and len(place.tapes()) == 2
    second_s = both["duration_s"] - first["duration_s"]
    assert 0.2 <= second_s <= took_s, "the half second between them is left out"
    assert holds(both["energy"], WATTS * both["duration_s"])


def test_what_is_asked_wrongly_is_refused_before_the_command_starts(place) -> None:
    for words in (["--append", "no-such-run"], ["--sensors", "nope"], ["--period", "never"]):
        done = place.run(*words, "--", "touch", "started", check=2)
        assert not (place.folder / "started").exists() and b"Error" in done.stderr


def empty(place) -> None:
    """A machine without any sensor of power."""
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "EVERYWATT_SIM"):
        place.environ.pop(name, None)
    (place.folder / "sys").mkdir()
    place.environ |= {"EVERYWATT_SYS": str(place.folder / "sys"), "EVERYWATT_RUNTIME_DIR": str(place.folder / "rt")}
    place.environ["EVERYWATT_RECORDER_IDLE_S"] = "0.2"
    place.environ["PATH"] = "/usr/bin:/bin"
    place.environ["EVERYWATT_PLUGINS"] = "nvml=none:None,perf=none:None"


def test_without_a_sensor_and_without_estimates_energy_is_refused(place) -> None:
    empty(place)
    done = place.run("--no-estimate", "--json", "--", "sh", "-c", "exit 4", check=4)
    energy = json.loads(done.stdout)["energy"]
    assert energy["joules"] is None and energy["refused"]


def test_strict_refuses_before_the_start(place) -> None:
    empty(place)
    done = place.run("--strict", "--", "touch", "started", check=3)
    assert not (place.folder / "started").exists() and b"doctor" in done.stderr


def test_an_estimate_says_that_it_is_one(place) -> None:
    empty(place)
    out = json.loads(place.run("--json", "--", "sleep", "0.2", check=0).stdout)
    assert out["energy"]["pedigree"] == "modelled" and out["energy"]["joules"] > 0


# Signals.


def waiting(place, code: str, **more):
    child = place.start("--quiet", *python(code), **more)
    assert child.stdout.readline() == b"ready\n"
    return child


HEARS = """
import signal, sys, time
heard = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, lambda n, f: heard.append(n))
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 10)
while time.monotonic() < until and not heard:
    time.sleep(0.02)
time.sleep(0.2)
print(*[int(n) for n in heard], flush=True)
sys.exit(40 + len(heard))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_to_the_wrapper_reaches_the_command_once(place, number) -> None:
    child = waiting(place, HEARS, start_new_session=True)
    child.send_signal(number)
    out, err = child.communicate(timeout=240)
    assert out.split() == [b"%d" % number] and child.returncode == 41, err
    assert len(place.tapes()) == 1


def test_a_command_killed_by_the_signal_gives_its_code_and_a_record(place) -> None:
    child = waiting(place, "import time; print('ready', flush=True); time.sleep(20)", start_new_session=True)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=240)
    assert child.returncode == 128 + signal.SIGTERM and Tape.open(place.tapes()[0]).sealed


@pytest.mark.parametrize("hang_up", [signal.SIG_DFL, signal.SIG_IGN])
def test_the_command_gets_the_signals_that_the_wrapper_was_started_with(place, hang_up) -> None:
    look = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    before = signal.signal(signal.SIGHUP, hang_up)  # ignored, as under nohup
    try:
        alone = subprocess.run(look, capture_output=True, check=True).stdout
        measured = place.run("--quiet", "--", *look, check=0).stdout
    finally:
        signal.signal(signal.SIGHUP, before)
    assert masks(measured) == masks(alone)


def masks(status: bytes) -> list[int]:
    """Blocked and ignored signals, without the two that the C library keeps to itself."""
    return [int(line.split()[1], 16) & ~(0b11 << 31) for line in status.splitlines()]


def test_ctrl_c_at_a_terminal_reaches_the_command_once(place) -> None:
    """A real terminal sends SIGINT to the whole foreground group: the wrapper must not pass on a second one."""
    script = place.folder / "hears.py"
    script.write_text(HEARS)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.folder)
        os.execve(sys.executable, place.words("run", "--quiet", "--", sys.executable, str(script)), place.environ)
    shown = read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    shown += read_until(terminal, None)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 41, shown
    assert shown.replace(b"^C", b"").split()[-1] == b"2", "the terminal echoes ^C in between"


def read_until(fd: int, word: bytes | None) -> bytes:
    shown = b""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and (word is None or word not in shown):
        if not select.select([fd], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(fd, 4096)
        except OSError:  # the other side has closed
            break
        if not data:
            break
        shown += data
    return shown


# Places that cannot be written.


@pytest.mark.parametrize("asked", [False, True])
def test_runs_go_to_the_state_folder_and_it_says_so(place, asked) -> None:
    (place.folder / "everywatt-runs").write_text("in the way")
    if asked:
        place.environ["EVERYWATT_HOME"] = str(place.folder / "everywatt-runs" / "deeper")
    done = place.run("--", "sh", "-c", "exit 6", check=6)
    assert str(place.folder / "state" / "everywatt").encode() in done.stderr
    assert len(list((place.folder / "state" / "everywatt").glob("*/*.tape"))) == 1


def test_nowhere_to_write_is_said_and_the_command_runs(place) -> None:
    (place.folder / "everywatt-runs").write_text("in the way")
    place.environ["XDG_STATE_HOME"] = str(place.folder / "everywatt-runs")
    done = place.run("--json=out.json", "--", "sh", "-c", "echo fine; exit 6", check=6)
    assert done.stdout == b"fine\n" and b"nothing recorded" in done.stderr
    assert json.loads((place.folder / "out.json").read_text())["energy"]["joules"] is None


def test_a_working_folder_that_is_gone(place) -> None:
    gone = place.folder / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m everywatt run -- sh -c 'exit 6'"
    done = subprocess.run(["sh", "-c", command], env=place.environ, capture_output=True, timeout=240)
    assert done.returncode == 6, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk(place) -> None:
    small = place.folder / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(small)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        place.environ["EVERYWATT_HOME"] = str(small)
        code = f"import sys; open({str(small / 'fill')!r}, 'wb', 0).write(b'x' * 90_000); sys.exit(9)"
        done = place.run("--json=out.json", *python(code), check=9)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert b"Traceback" not in done.stderr
    assert (place.folder / "out.json").exists()


def test_the_folder_of_the_run_is_removed_meanwhile(place) -> None:
    code = "import shutil, time; time.sleep(0.5); shutil.rmtree('everywatt-runs'); time.sleep(0.5); print('fine')"
    done = place.run("--json=out.json", *python(code), check=0)
    assert done.stdout == b"fine\n" and b"Traceback" not in done.stderr
    out = json.loads((place.folder / "out.json").read_text())
    energy = out["energy"]
    assert energy["refused"] if energy["joules"] is None else holds(energy, WATTS * out["duration_s"])


def test_two_at_once_see_the_same_truth(place) -> None:
    both = [place.start("--json", "--", "sleep", "0.6") for _ in range(2)]
    outs = [json.loads(child.communicate(timeout=240)[0]) for child in both]
    assert [child.returncode for child in both] == [0, 0]
    assert len({out["name"] for out in outs}) == 2
    for out in outs:
        assert holds(out["energy"], WATTS * out["duration_s"])


def test_runs_may_nest(place) -> None:
    inner = f"{sys.executable} -m everywatt run --quiet -- sh -c 'exit 3'"
    place.run("--quiet", "--", "sh", "-c", inner, check=3)
    assert len(place.tapes()) == 2


@pytest.mark.parametrize(("mask", "devices"), [("2,3", {"gpu.2", "gpu.3"}), ("1", {"gpu.1"})])
def test_only_visible_gpus_are_measured(tmp_path, sim_machine, mask, devices) -> None:
    """Four cards of 10, 20, 30 and 40 W; the mask of CUDA_VISIBLE_DEVICES selects exactly those devices."""
    machine = sim_machine(gpus=[f"constant:{watts}W" for watts in (10, 20, 30, 40)])
    environ = {**machine.environment(), "CUDA_VISIBLE_DEVICES": mask, "EVERYWATT_HOME": str(tmp_path / "runs")}
    words = [sys.executable, "-m", "everywatt", "run", "--json", "--", "sleep", "0.5"]
    done = subprocess.run(words, env=environ, capture_output=True, timeout=240)
    energy = json.loads(done.stdout)["energy"]
    assert set(energy["parts"]) == devices
    # Which cards it is, is what 15 % tell; on a machine that holds the recorder up, half a second has a wider interval.
    assert energy["joules"] / json.loads(done.stdout)["duration_s"] == pytest.approx(
        70 if mask == "2,3" else 20, rel=0.15
    )


def test_bytes_that_are_no_text_reach_the_command_and_the_run_is_kept(place) -> None:
    odd = b"caf\xe9"
    done = place.run("--tag", b"label=" + odd, "--note", odd, "--", "printf", "%s", b"\xff" + odd, check=0)
    assert done.stdout == b"\xff" + odd
    (tape,) = place.tapes()
    with Tape.open(tape) as opened:
        assert opened.meta["command"] == ["printf", "%s", "\\xffcaf\\xe9"]
        assert opened.meta["note"] == opened.meta["tags"]["label"] == "caf\\xe9"


def test_runs_may_be_kept_in_a_folder_whose_name_is_no_text(place) -> None:
    folder = os.fsdecode(os.fsencode(place.folder) + b"/caf\xe9")
    Path(folder).mkdir()
    for words in (["run", "--", "true"], ["show"], ["show", "--json"], ["list"], ["list", "--json"]):
        done = subprocess.run(place.words(*words), cwd=folder, env=place.environ, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_a_run_without_a_figure_leads_with_cpu_time_and_names_commands_that_work(place):
    done = place.run("--no-estimate", "--sensors", "use", "--", sys.executable, "-c", "sum(range(10**6))", check=0)
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith("cpu     ") and lines[1].startswith("energy  refused")
    assert " show " in lines[-1] and " why " not in lines[-1], lines[-1]
