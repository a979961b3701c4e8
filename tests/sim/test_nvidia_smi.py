"""The simulated nvidia-smi: its formats, its traps and its faults."""

import subprocess
import time

import pytest


def smi(lab, *args, timeout=240):
    return subprocess.run(
        ["nvidia-smi", *args], env=lab.environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


def lines_after(lab, count, seconds, *args):
    """What comes out of a looping nvidia-smi through a pipe in the time after the first `count` lines."""
    child = subprocess.Popen(["nvidia-smi", *args], env=lab.environment(), stdout=subprocess.PIPE, text=True)
    assert all(child.stdout.readline() for _ in range(count))
    time.sleep(seconds)  # the time that the caller asks for
    child.kill()
    return child.communicate()[0].splitlines()


def test_the_query_prints_what_nvml_says(sim_machine):
    lab = sim_machine(gpus=["constant:123.45W", "constant:60W"], sensor=["gpu.1.lost_at=1h"])
    fields = "index, name, power.draw, power.draw.instant, memory.total, fan.speed, clocks.max.sm"
    done = smi(lab, f"--query-gpu={fields}", "--format=csv")
    name = "everywatt Simulated Exact GPU"
    assert done.stdout.splitlines() == [
        "index, name, power.draw [W], power.draw.instant [W], memory.total [MiB], fan.speed [%], clocks.max.sm [MHz]",
        f"0, {name}, 123.45 W, 123.45 W, 16384 MiB, [N/A], 1410 MHz",
        f"1, {name}, 60.00 W, 60.00 W, 16384 MiB, [N/A], 1410 MHz",
    ]
    bare = smi(lab, "--query-gpu=power.draw", "--format=csv,noheader,nounits", "-i", "1")
    assert bare.stdout == "60.00\n"


def test_list_apps_monitors_and_xml(sim_machine):
    lab = sim_machine(gpus=["constant:100W"], sensor=["processes=1:1GiB:40%"])
    assert smi(lab, "-L").stdout.startswith("GPU 0: everywatt Simulated Exact GPU (UUID: GPU-")
    assert smi(lab, "--query-compute-apps=pid,used_memory", "--format=csv,noheader").stdout == "1, 1024 MiB\n"
    assert smi(lab, "dmon", "-c", "1").stdout.splitlines()[2].split()[:2] == ["0", "100"]
    assert smi(lab, "pmon", "-c", "1").stdout.splitlines()[2].split()[:5] == ["0", "1", "C", "40", "16"]
    assert "<instant_power_draw>100.00 W</instant_power_draw>" in smi(lab, "-q", "-x").stdout


def test_wrong_options_end_with_2(sim_machine):
    lab = sim_machine(gpus=["constant:100W"])
    assert smi(lab, "-lms100").returncode == 2
    done = smi(lab, "--query-gpu=power.drawn", "--format=csv")
    assert (done.returncode, done.stdout) == (2, 'Field "power.drawn" is not a valid field to query.\n')
    assert smi(lab, "--help").returncode == 0


def test_it_sets_the_limit(sim_machine):
    lab = sim_machine(gpus=["constant:250W"], sensor=["period=1ms"])
    assert smi(lab, "-pl", "150").returncode == 0
    assert smi(lab, "-pl", "900").returncode == 3
    time.sleep(0.01)  # ten publications later
    assert smi(lab, "--query-gpu=power.draw,power.limit", "--format=csv,noheader").stdout == "150.00 W, 150.00 W\n"


def test_a_loop_in_milliseconds_runs_and_a_tenth_of_a_second_is_five(sim_machine):
    lab = sim_machine(gpus=["constant:100W"])
    query = ("--query-gpu=power.draw", "--format=csv,noheader")
    lines_after(lab, 4, 0.0, *query, "-lms", "50")
    assert lines_after(lab, 1, 0.5, *query, "-l", "0.1") == []


@pytest.mark.parametrize(
    ("word", "text"), [("na", "[N/A]"), ("not-supported", "[Not Supported]"), ("unknown-error", "[Unknown Error]")]
)
def test_words_for_a_missing_value(sim_machine, word, text):
    lab = sim_machine(gpus=["constant:100W"], sensor=[f"smi={word}"])
    assert smi(lab, "--query-gpu=power.draw", "--format=csv,noheader").stdout == f"{text}\n"


def test_it_hangs_exits_holds_back_and_fails(sim_machine):
    query = ("--query-gpu=power.draw", "--format=csv,noheader")
    with pytest.raises(subprocess.TimeoutExpired):
        smi(sim_machine(gpus=["constant:1W"], sensor=["smi=hang"]), *query, timeout=0.5)
    late = sim_machine(gpus=["constant:1W"], sensor=["smi=hang-after:3"])
    assert lines_after(late, 3, 0.3, *query, "-lms", "20") == []
    gone = smi(sim_machine(gpus=["constant:1W"], sensor=["smi=exit-after:2"]), *query, "-lms", "10")
    assert (gone.returncode, len(gone.stdout.splitlines())) == (1, 2)
    assert lines_after(sim_machine(gpus=["constant:1W"], sensor=["smi=buffered"]), 0, 0.6, *query, "-lms", "20") == []
    assert smi(sim_machine(gpus=["constant:1W"], sensor=["smi=no-loop"]), *query, "-lms", "20").returncode == 3
    lost = smi(sim_machine(gpus=["constant:1W"], sensor=["smi=no-handle"]), *query)
    assert lost.returncode != 0
    assert lost.stdout == "Unable to determine the device handle for GPU 0000:01:00.0: Unknown Error\n"


def test_without_cards_it_finds_no_devices(sim_machine):
    done = smi(sim_machine(packages=["constant:1W"]), "-L")
    assert (done.returncode, done.stdout) == (6, "No devices were found\n")


def test_the_log_of_a_query_shows_what_the_sensor_reads(sim_machine):
    lab = sim_machine(gpus=["constant:123.45W"], sensor=["period=100ms", "samples=20"])
    done = smi(lab, "-q", "-d", "POWER")
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[1] == "==============NVSMI LOG=============="
    assert "Attached GPUs                             : 1" in lines
    start = lines.index("    GPU Power Readings")
    assert lines[start + 1 : start + 3] == [
        "        Average Power Draw                : 123.45 W",
        "        Instantaneous Power Draw          : 123.45 W",
    ]
    samples = lines[lines.index("    Power Samples") :][:6]
    assert samples[1:] == [
        "        Duration                          : 1.90 sec",
        "        Number of Samples                 : 20",
        "        Max                               : 123.45 W",
        "        Min                               : 123.45 W",
        "        Avg                               : 123.45 W",
    ]
    whole = smi(lab, "-q").stdout
    assert "GPU Power Readings" in whole and "        GPU Current Temp" in whole


def test_a_card_without_a_sample_buffer_says_so(sim_machine):
    lab = sim_machine(gpus=["constant:50W"], sensor=["samples=0"])
    text = smi(lab, "--query", "--display=power").stdout
    assert "        Number of Samples                 : Not Found" in text.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ("-q", "-d", "PAGE_RETIREMENT"), ("-q", "-d"), ("-d", "POWER"), ("dmon", "-d", "often"), ("-l", "often"),
        ("-lms", "x"), ("dmon", "-c", "few"), ("-pl", "much"), ("--no-such-option",), ("topo", "-m"),
    ],
)  # fmt: skip
def test_what_it_does_not_know_is_one_line_and_code_2(sim_machine, words):
    done = smi(sim_machine(gpus=["constant:50W"]), *words)
    assert done.returncode == 2 and done.stderr == ""
    assert done.stdout.startswith("ERROR: ") and done.stdout.count("\n") == 1
