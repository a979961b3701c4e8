"""Jobs from time series: what is asked, and what a server can answer."""

import json

import pytest
from api_server import ApiServer

from everywatt.core.errors import MeasurementRefused
from everywatt.net.api import ApiClient
from everywatt.net.http1 import Backoff
from everywatt.slurm.site.figures import JobList, RunningJobs, energy_of
from everywatt.slurm.site.from_series import jobs_of_series, running_in_series
from everywatt.slurm.site.totals import Wanted

WANTED = Wanted(since_s=1_000.0, until_s=4_600.0)


def client(url):
    return ApiClient(url, waits=Backoff(retries=1), sleep=lambda s: None)


def answering(metric, value):
    return {"status": "success", "data": {"result": [{"metric": metric, "value": [4600, str(value)]}]}}


def prometheus(asked):
    query = asked.query["query"]
    if "query_range" in asked.path:
        data = {
            "status": "success",
            "data": {"result": [{"metric": {"owner": "7"}, "values": [[1000, "1"], [2000, "2"]]}]},
        }
    elif "job_info" in query:
        data = answering({"exported_job": "7", "user": "ada"}, 1)
    elif "owner_energy" in query:
        ends = {"low_joules": 0.9, "high_joules": 1.2}
        value = (500 if "max_over_time" in query else 100) * next((ends[end] for end in ends if end in query), 1.0)
        data = answering({"owner": "7", "instance": "node1", "device": "gpu.0"}, value)
    else:
        data = {"status": "success", "data": {"result": []}}
    return 200, {}, json.dumps(data).encode()


def test_a_job():
    with ApiServer(prometheus) as server:
        (job,) = jobs_of_series(client(f"{server.url}/"), WANTED)
    assert (job["job_id"], job["user"], job["energy_uj"], job["nodes"]) == (7, "ada", 400_000_000, ["node1"])
    assert (job["low_uj"], job["high_uj"]) == (360_000_000, 480_000_000)


def test_that_coverage_is_not_known_is_said():
    with ApiServer(prometheus) as server:
        rows = jobs_of_series(client(f"{server.url}/"), WANTED)
    (line,) = JobList(rows, WANTED, url=server.url).tables()[1].notes
    assert line == "1 job from start to end: 400 J −40/+80 (coverage unknown)"
    assert energy_of(rows[0])["notes"] == ["from time series: no idle share, coverage unknown"]


def test_an_agent_without_ends_of_intervals():
    def answer(asked):
        old = "low_joules" in asked.query["query"] or "high_joules" in asked.query["query"]
        return (200, {}, b'{"status": "success", "data": {"result": []}}') if old else prometheus(asked)

    with ApiServer(answer) as server:
        (job,) = jobs_of_series(client(server.url), WANTED)
    assert (job["energy_uj"], job["low_uj"], job["high_uj"]) == (400_000_000, None, None)


@pytest.mark.parametrize(
    "answer, why",
    [
        ((422, {}, b"too many"), "rejects .*: too many"),
        ((200, {}, b"<html>"), "its response is not valid"),
        ((200, {}, b"[]"), "is not a Prometheus server"),
        ((200, {}, b'{"status": "error"}'), "rejects .*: no reason given"),
        ((302, {"Location": "http://elsewhere/"}, b""), "redirects to http://elsewhere"),
    ],
)
def test_what_is_no_answer(answer, why):
    server = ApiServer(lambda asked: (answer[0], dict(answer[1]), answer[2]))
    with server, pytest.raises(MeasurementRefused, match=why):
        jobs_of_series(client(server.url), WANTED)
    with pytest.raises(MeasurementRefused, match="does not respond: Connection refused"):
        jobs_of_series(client(server.url), WANTED)


@pytest.mark.parametrize(
    ("told", "end_s", "state"),
    [([], 2000.0, "UNKNOWN"), ([1000, 1800], 1800.0, "UNKNOWN"), ([1000, 4600], 4600.0, "RUNNING")],
)
def test_a_counter_that_stays_is_no_job_that_runs(told, end_s, state):
    """Energy is told on and on after a job's end; that the job is here is told while it is."""

    def answer(asked):
        query = asked.query["query"]
        if query == "everywatt_job_info" and told[-1:] != [4600]:
            return 200, {}, b'{"status": "success", "data": {"result": []}}'
        if "query_range" not in asked.path:
            return prometheus(asked)
        if "job_info" in query:
            result = [{"metric": {"exported_job": "7"}, "values": [[at, "1"] for at in told]}] if told else []
        else:
            values = [[1000, "1"], [1500, "1.5"], [2000, "2"], [3000, "2"], [4600, "2"]]
            result = [{"metric": {"owner": "7"}, "values": values}]
        return 200, {}, json.dumps({"status": "success", "data": {"result": result}}).encode()

    with ApiServer(answer) as server:
        (job,) = jobs_of_series(client(server.url), WANTED)
    assert (job["start_s"], job["end_s"], job["state"]) == (1000.0, end_s, state)


def test_a_job_between_two_steps():
    """Asked for a week, a step is ten minutes; this job had half a minute, and ended a minute ago."""

    def answer(asked):
        query = asked.query["query"]
        if "query_range" in asked.path or query == "everywatt_job_info":
            return 200, {}, json.dumps({"status": "success", "data": {"result": []}}).encode()
        if "timestamp" in query:
            at_s = 604_500 if "min_over_time" in query else 604_530
            return 200, {}, json.dumps(answering({"owner": "7"}, at_s)).encode()
        return prometheus(asked)

    with ApiServer(answer) as server:
        (job,) = jobs_of_series(client(server.url), Wanted(since_s=0.0, until_s=604_590.0))
    assert (job["start_s"], job["end_s"], job["state"]) == (604_500.0, 604_530.0, "UNKNOWN")


def test_what_runs_now():
    def answer(asked):
        query = asked.query["query"]
        if "job_info" in query:
            metrics = [{"exported_job": "7", "user": "ada", "instance": node} for node in ("n1", "n2")]
            result = [{"metric": metric, "value": [1, "1"]} for metric in [*metrics, {"job": "8", "instance": "n1"}]]
        else:
            watts = {"7": "30", "8": "90", "9": "5"} if "rate" in query else {"7": "1000", "8": "50", "9": "7"}
            result = [{"metric": {"owner": owner}, "value": [1, value]} for owner, value in watts.items()]
        return 200, {}, json.dumps({"status": "success", "data": {"result": result}}).encode()

    with ApiServer(answer) as server:
        rows = running_in_series(client(server.url), 5000.0)
    told = [(row["job_id"], row["user"], row["nodes"], row["power_w"], row["energy_j"]) for row in rows]
    assert told == [("8", "", ["n1"], 90.0, 50.0), ("7", "ada", ["n1", "n2"], 30.0, 1000.0)], "job 9 is not here"


def test_that_the_coverage_of_what_runs_is_not_known_is_said():
    row = dict.fromkeys(("account", "power_w", "idle_j", "waste_j", "elapsed_s", "coverage", "low_j", "high_j"))
    row |= {"job_id": "7", "user": "ada", "nodes": ["n1"], "energy_j": 5.0}
    (note,) = RunningJobs([row], "http://127.0.0.1:9090", 0.0).tables()[0].notes
    assert note == "1 job running; energy as of 1970-01-01T00:00:00Z (coverage unknown)."
