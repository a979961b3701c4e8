"""Jobs from time series: what is asked, and what a server can answer."""

import json

import pytest
from api_server import ApiServer

from everywatt.core.errors import EverywattError, UsageError
from everywatt.slurm.site.from_series import jobs_of_series, running_in_series
from everywatt.slurm.site.totals import Wanted

WANTED = Wanted(since_s=1_000.0, until_s=4_600.0)


def answering(metric, value):
    return {"status": "success", "data": {"result": [{"metric": metric, "value": [4600, str(value)]}]}}


def prometheus(asked):
    query = asked.body.decode()
    if "query_range" in asked.path:
        data = {
            "status": "success",
            "data": {"result": [{"metric": {"owner": "7"}, "values": [[1000, "1"], [2000, "2"]]}]},
        }
    elif "job_info" in query:
        data = answering({"exported_job": "7", "user": "ada"}, 1)
    elif "owner_energy" in query:
        value = 500 if "max_over_time" in query else 100
        data = answering({"owner": "7", "instance": "node1", "device": "gpu.0"}, value)
    else:
        data = {"status": "success", "data": {"result": []}}
    return 200, {}, json.dumps(data).encode()


def test_a_job():
    with ApiServer(prometheus) as server:
        (job,) = jobs_of_series(f"{server.url}/", WANTED)
        asked = server.asked[0]
    assert (job["job_id"], job["user"], job["energy_uj"], job["nodes"]) == (7, "ada", 400_000_000, ["node1"])
    assert asked.path == "/api/v1/query" and asked.headers["Content-Type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    "answer, why",
    [
        ((422, {}, b"too many"), "responded with 422: too many"),
        ((200, {}, b"<html>"), "is not a Prometheus server"),
        ((200, {}, b'{"status": "error"}'), "is not a Prometheus server"),
        ((302, {"Location": "http://elsewhere/"}, b""), "responded with 302"),
    ],
)
def test_what_is_no_answer(answer, why):
    server = ApiServer(lambda asked: (answer[0], dict(answer[1]), answer[2]))
    with server, pytest.raises(EverywattError, match=why):
        jobs_of_series(server.url, WANTED)
    with pytest.raises(EverywattError, match="does not respond: Connection refused"):
        jobs_of_series(server.url, WANTED)
    with pytest.raises(UsageError):
        jobs_of_series("prometheus:9090", WANTED)


@pytest.mark.parametrize(
    ("told", "end_s", "state"),
    [([], 2000.0, "UNKNOWN"), ([1000, 1800], 1800.0, "UNKNOWN"), ([1000, 4600], 4600.0, "RUNNING")],
)
def test_a_counter_that_stays_is_no_job_that_runs(told, end_s, state):
    """Energy is told on and on after a job's end; that the job is here is told while it is."""

    def answer(asked):
        query = asked.body.decode()
        if "query_range" not in asked.path:
            return prometheus(asked)
        if "job_info" in query:
            result = [{"metric": {"exported_job": "7"}, "values": [[at, "1"] for at in told]}] if told else []
        else:
            values = [[1000, "1"], [1500, "1.5"], [2000, "2"], [3000, "2"], [4600, "2"]]
            result = [{"metric": {"owner": "7"}, "values": values}]
        return 200, {}, json.dumps({"status": "success", "data": {"result": result}}).encode()

    with ApiServer(answer) as server:
        (job,) = jobs_of_series(server.url, WANTED)
    assert (job["start_s"], job["end_s"], job["state"]) == (1000.0, end_s, state)


def test_what_runs_now():
    def answer(asked):
        query = asked.body.decode()
        if "job_info" in query:
            metrics = [{"exported_job": "7", "user": "ada", "instance": node} for node in ("n1", "n2")]
            result = [{"metric": metric, "value": [1, "1"]} for metric in [*metrics, {"job": "8", "instance": "n1"}]]
        else:
            watts = {"7": "30", "8": "90", "9": "5"} if "rate" in query else {"7": "1000", "8": "50", "9": "7"}
            result = [{"metric": {"owner": owner}, "value": [1, value]} for owner, value in watts.items()]
        return 200, {}, json.dumps({"status": "success", "data": {"result": result}}).encode()

    with ApiServer(answer) as server:
        rows = running_in_series(server.url, 5000.0)
    told = [(row["job_id"], row["user"], row["nodes"], row["power_w"], row["energy_j"]) for row in rows]
    assert told == [("8", "", ["n1"], 90.0, 50.0), ("7", "ada", ["n1", "n2"], 30.0, 1000.0)], "job 9 is not here"
