"""Jobs from a real VictoriaMetrics and a real Prometheus that hold what agents export."""

import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import until

from everywatt.cli.main import main
from everywatt.slurm.site.from_series import jobs_of_series
from everywatt.slurm.site.totals import Wanted

T0 = 1_794_700_800  # 2026-11-15T00:00Z
ENERGY = "everywatt_owner_energy_joules_total"


def need(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(f"{program} is not installed")
        pytest.skip(f"{program} is not installed")
    return path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def serving(command: list[str], url: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(process, url), "the engine to start")
        yield
    finally:
        process.terminate()
        process.wait(240)


def answers(process: subprocess.Popen, url: str) -> bool:
    assert process.poll() is None, "it did not start"
    try:
        urllib.request.urlopen(f"{url}/api/v1/query?query=1", timeout=2).close()
    except OSError:
        return False
    return True


def lines() -> list[tuple[str, float, int]]:
    """Series, value, time: job 12 on two nodes from 1:00 to 2:00, 10 W and 20 W; job 13 from 23:00 to 3:00, 5 W."""
    made = []
    for second in range(0, 4 * 3600 + 1, 15):
        at = T0 - 3600 + second
        labels = 'kind="job",owner="13",device="cpu.0",instance="n1"'
        made.append((f"{ENERGY}{{{labels}}}", 5.0 * second, at))
        inside = at - (T0 + 3600)
        if 0 <= inside <= 3600:
            for node, watts in (("n1", 10.0), ("n2", 20.0)):
                one = f'kind="job",owner="12",device="cpu.0",instance="{node}"'
                made.append((f"{ENERGY}{{{one}}}", watts * inside, at))
            made.append(('everywatt_owner_cpu_seconds_total{kind="job",owner="12",instance="n1"}', 0.5 * inside, at))
            info = 'exported_job="12",job="everywatt",user="ada",account="phys",partition="p",instance="n1"'
            made.append((f"everywatt_job_info{{{info}}}", 1.0, at))
    return made


@pytest.fixture(scope="module")
def victoria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program, port = need("victoria-metrics"), free_port()
    url = f"http://127.0.0.1:{port}"
    folder = tmp_path_factory.mktemp("victoria")
    command = [program, f"-storageDataPath={folder}", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=100y"]
    with serving(command, url):
        text = "\n".join(f"{series} {value} {at * 1000}" for series, value, at in lines())
        urllib.request.urlopen(f"{url}/api/v1/import/prometheus", text.encode(), timeout=240).close()
        urllib.request.urlopen(f"{url}/internal/force_flush", timeout=240).close()
        yield url


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program, tool, port = need("prometheus"), need("promtool"), free_port()
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text("global: {}\n")
    kinds = f"# TYPE {ENERGY} counter\n"
    by_name: dict[str, list[str]] = {}
    for series, value, at in lines():
        by_name.setdefault(series.partition("{")[0], []).append(f"{series} {value} {at}.000")
    text = kinds + "\n".join(line for of_name in by_name.values() for line in of_name) + "\n# EOF\n"
    (folder / "data.om").write_text(text)
    subprocess.run([tool, "tsdb", "create-blocks-from", "openmetrics", "data.om", "tsdb"], cwd=folder, check=True)
    url = f"http://127.0.0.1:{port}"
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y"]
    with serving(command, url):
        yield url


@pytest.mark.parametrize("server", ["victoria", "prometheus"])
def test_jobs_and_their_joules(server: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(server)
    rows = jobs_of_series(url, Wanted(T0, T0 + 6 * 3600), "id")
    told = [(row["job_id"], row["user"], row["account"], row["nodes"], row["energy_uj"]) for row in rows]
    assert told[0] == (12, "ada", "phys", ["n1", "n2"], 108_000_000_000)
    # Job 13 had 18 kJ when the day began, and 72 at its end.
    assert told[1] == (13, "", "", ["n1"], 54_000_000_000)
    assert rows[0]["cpu_s"] == 1800.0 and rows[1]["cpu_s"] is None
    assert rows[0]["low_uj"] is None and rows[0]["idle_uj"] is None
    assert rows[0]["start_s"] == pytest.approx(T0 + 3600, abs=30)
    assert rows[0]["end_s"] == pytest.approx(T0 + 7200, abs=330)  # a server repeats a value for five minutes
    assert [row["job_id"] for row in jobs_of_series(url, Wanted(T0, T0 + 6 * 3600, user="ada"))] == [12]


def test_the_command(victoria: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["slurm", "jobs", "--from", victoria, "--since", "2026-11-15T00:00Z", "--until", "2026-11-15T06:00Z"]
    assert main([*words, "--sort", "energy"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[:3] == ["12", "ada", "phys"] and "108.0 kJ" in out[1]
    assert main([*words, "--json"]) == 0
    energy = json.loads(capsys.readouterr().out)["jobs"][0]["energy"]
    assert (energy["low"], energy["notes"]) == (None, ["from time series: no interval, no idle share"])
    assert main([*words, "--by", "user"]) == 2


def test_what_is_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "jobs", "--from", f"http://127.0.0.1:{free_port()}"]) != 0
    assert "does not answer" in capsys.readouterr().err
    assert main(["slurm", "jobs", "--from", str(tmp_path)]) == 2
