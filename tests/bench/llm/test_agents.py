"""Steps of agents, on a machine of exactly 50 W: recorded on this machine, and on a tape that is written by hand."""

import json
import subprocess
import sys

import pytest

from everywatt.api.run import load
from everywatt.bench.llm.agents import agent_bill, read_spans
from everywatt.core.channels import Channel, Domain, Kind
from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.meters.series import Part, Table, group, write_part
from everywatt.sim.machine import SimMachine

AGENT = """
import time, everywatt
from everywatt.bench.llm.agents import model_call, tool_call, turn
with everywatt.measure("agent"):
    for number in (1, 2):
        with turn(number):
            with model_call("tiny") as call:
                time.sleep(0.4)
                call.attributes["gen_ai.usage.input_tokens"] = 10
                call.attributes["gen_ai.usage.output_tokens"] = 5
            with tool_call("search"):
                time.sleep(0.2)
            time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        env = lab.environment() | {"HOME": str(folder), "EVERYWATT_HOME": str(folder / "runs")}
        subprocess.run([sys.executable, "-c", AGENT], env=env, check=True, timeout=240)
        yield folder, env


@pytest.fixture(scope="module")
def run(place):
    (folder,) = (place[0] / "runs").iterdir()
    return load(folder)


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    """A run of 2 s that is written by hand: no reading of it was held up."""
    path = tmp_path_factory.mktemp("steady") / "h-0001.tape"
    table = Table(group("host", "meter", [Channel("host.energy", "J", Kind.COUNTER, "host", Domain.NODE)]))
    for n in range(21):
        table.add(1_790_000_000 * NS + n * NS // 10, [5.0 * n])
    write_part(path, Part([table]), [path], {})
    return load(path.parent)


def joules(seconds):
    return pytest.approx(50 * seconds, rel=0.02)


def held_s(run):
    """How far the time of a reading may be off: a recorder that is held up reads late, and its tape says so."""
    tape = run.tapes[0]
    ids = [group.id for group in tape.groups if any(one.name == "cpu.0.package.energy" for one in group.info.channels)]
    rows = [row for name in ids for frame in tape.frames(name) for row in frame.rows()]
    rows += [row for name in ids for row in tape.edges(name)]
    return max(row.late_ns - row.early_ns for row in rows) / 1e9


def test_turns_calls_and_tools_add_up(run):
    found = agent_bill(run)
    kinds = found.by_kind()
    assert {kind: count for kind, (count, _, _) in kinds.items()} == {"turn": 2, "chat tiny": 2, "tool search": 2}
    near = 50 * held_s(run)  # at each edge of a span
    for count, seconds, own in (kinds["chat tiny"], kinds["tool search"]):
        assert own.value == pytest.approx(50 * seconds, rel=0.02, abs=2 * count * near)
    turns = [step for step in found.steps if step.kind == "turn"]
    for step in turns:
        inner = [one for one in found.steps if one.span.parent == step.span.id]
        assert step.whole.value == pytest.approx(50 * step.span.duration_s, rel=0.02, abs=2 * near)
        assert step.whole.value == pytest.approx(step.own.value + sum(one.own.value for one in inner), abs=1e-6)
    # Counted once: the whole is what the turns took, although every joule lies in two spans.
    seconds = sum(step.span.duration_s for step in turns)
    assert found.total.value == pytest.approx(50 * seconds, rel=0.02, abs=4 * near)
    calls = [step for step in found.steps if step.kind == "chat tiny"]
    assert [step.tokens for step in calls] == [(10, 5)] * 2


def otlp(path, tape, *spans):
    """Spans of (id, parent, name, start, end in seconds after the tape's start, attributes) as one line of OTLP."""
    zero = tape.to_utc_ns(tape.extent_ns()[0])

    def one(name, parent, title, start, end, attributes):
        pairs = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
        times = {"startTimeUnixNano": str(zero + int(start * 1e9)), "endTimeUnixNano": str(zero + int(end * 1e9))}
        return {"traceId": "t", "spanId": name, "parentSpanId": parent, "name": title, **times, "attributes": pairs}

    lines = {"resourceSpans": [{"scopeSpans": [{"spans": [one(*span) for span in spans]}]}]}
    path.write_text(json.dumps(lines) + "\n\n")
    return path


def gen_ai(operation, **more):
    return {"gen_ai.operation.name": operation, **more}


def test_spans_of_opentelemetry_are_placed_by_the_clock(steady, tmp_path):
    tape = steady.tapes[0]
    file = otlp(
        tmp_path / "spans.jsonl",
        tape,
        ("a", "", "agent", 0.1, 1.1, gen_ai("invoke_agent", **{"gen_ai.agent.name": "helper"})),
        ("h", "a", "POST", 0.1, 0.7, {"http.method": "POST"}),
        ("c", "h", "chat", 0.2, 0.6, gen_ai("chat", **{"gen_ai.request.model": "tiny"})),
        ("x", "a", "tool", 0.5, 0.8, gen_ai("execute_tool", **{"gen_ai.tool.name": "grep"})),
        ("far", "", "chat", 900.0, 901.0, gen_ai("chat")),
    )
    found = agent_bill(steady, file)
    own = {step.kind: step.own.value for step in found.steps}
    # From 0.5 to 0.6 s a model call and a tool call overlap: they share it.
    assert own == {"agent helper": joules(0.4), "chat tiny": joules(0.35), "tool grep": joules(0.25)}
    assert found.total.value == joules(1.0)
    assert {step.kind: step.whole.value for step in found.steps}["agent helper"] == joules(1.0)
    assert any("1 of 4 spans lie outside" in note for note in found.notes)


def test_what_is_no_file_of_spans_is_said(run, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}\n')
    with pytest.raises(UsageError, match="jsonl:1 is not OTLP"):
        read_spans(bad)
    bad.write_text("{}\n")
    with pytest.raises(UsageError, match="no OpenTelemetry spans"):
        read_spans(bad)
    far = otlp(tmp_path / "far.jsonl", run.tapes[0], ("far", "", "chat", 900.0, 901.0, gen_ai("chat")))
    with pytest.raises(MeasurementRefused, match="does not cover"):
        agent_bill(run, far)


def test_the_table(place, run, tmp_path):
    words = [sys.executable, "-m", "everywatt", "bench", "agents", "last", "--steps"]
    done = subprocess.run(words, env=place[1], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for text in ("chat tiny", "tool search", "turn", "10 + 5", "adds up"):
        assert text in done.stdout
    done = subprocess.run([*words, "--json"], env=place[1], capture_output=True, text=True, timeout=240)
    assert json.loads(done.stdout)["by_kind"]["turn"]["count"] == 2
