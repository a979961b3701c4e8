"""The commands of the frozen corpus. The expectation of a case is `expected/NAME.txt`."""

from __future__ import annotations

import re

from corpus import Case

# Every command and its members, as they are called. A new one may be added; none may go.
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": (),
    "monitor": (),
    "attach": (),
    "compare": (),
    "sweep": (),
    "batch": ("probe", "summary"),
    "bench": ("precision", "train", "llm", "agents", "leaderboard"),
    "slurm": (
        "jobs", "job", "top", "summary", "report", "daily", "forget", "validate", "export", "import", "wall",
        "annotate", "reconcile", "install", "check", "node",
    ),
    "stress": (),
    "show": (),
    "ledger": (),
    "list": (),
    "why": (),
    "report": (),
    "serve": (),
    "plot": (),
    "export": (),
    "import": ("sacct", "prometheus", "sage"),
    "meter": ("capture", "compare", "import", "map", "stats"),
    "model": ("collect", "explore", "fit", "evaluate", "explain", "predict", "show", "install"),
    "calibrate": (),
    "agent": (),
    "validate": (),
    "sensors": (),
    "plugins": (),
    "doctor": (),
    "config": ("show",),
    "completion": (),
    "demo": (),
    "sim": ("truth",),
}  # fmt: skip

TAPES = (
    "square", "owners", "spans", "steps", "gaps", "gauge", "mig", "smi", "jetson-hwmon", "jetson-iio",
    "jetson-tegrastats", "cray", "hwmon", "exec", "wall", "modelled", "collected", "by-model", "unsealed",
    "recorder-killed", "killed", "hosts", "compared", "swept", "batch-one", "batch-two", "batch-killed", "llm-good",
    "llm-slow", "llm-sweep", "llm-command", "llm-server", "precision", "train", "stressed",
)  # fmt: skip
SITE = ("--store", "slurm/site")
NOVEMBER = ("--since", "2026-11-01T00:00+00:00", "--until", "2026-11-30T00:00+00:00")
FACTORS = ("--intensity", "56", "--pue", "1.3", "--price", "0.25 EUR")
CSV = tuple(
    word
    for pair in ("time=when", "values=power", "unit=W", "kind=gauge", "device=gpu.0", "domain=gpu", "delimiter=;",
                 "time_format=s", "gain_pct=2", "window_s=1")
    for word in ("--set", pair)
)  # fmt: skip
IMPORTS: dict[str, tuple[str, ...]] = {
    "nvidia-smi": ("foreign/smi.csv", "--set", "limit_w=400"),
    "dmon": ("foreign/dmon.txt", "--set", "period_s=2"),
    "pmon": ("foreign/pmon.txt",),
    "tegrastats": ("foreign/tegrastats.txt",),
    "powermetrics": ("foreign/powermetrics.txt",),
    "aipowermeter": ("foreign/aipowermeter",),
    "labia": ("foreign/labia/2026_11",),
    "codecarbon": ("foreign/codecarbon.csv",),
    "sage": ("foreign/sage.ndjson",),
    "ipmi": ("foreign/ipmi.log",),
    "omegawatt": ("foreign/omegawatt.csv",),
    "csv": ("foreign/any.csv", *CSV),
}


def _help() -> list[Case]:
    cases = [Case("help", [["--help"], ["--version"], [], ["-h"]])]
    for verb, members in COMMANDS.items():
        steps = [[verb, "--help"], *([verb, member, "--help"] for member in members)]
        cases.append(Case(f"help-{verb}", steps))
    return cases


def _tapes() -> list[Case]:
    """Each tape: its figures as JSON, as text, its ledger, and whether it is whole."""
    cases = []
    for name in TAPES:
        cases.append(Case(f"show-{name}", [["show", name], ["show", name, "--json"]]))
        cases.append(Case(f"ledger-{name}", [["ledger", name], ["ledger", name, "--json"]]))
    cases.append(Case("validate-whole", [["validate", *TAPES], ["validate", *TAPES, "--json"]]))
    return cases


def _reading() -> list[Case]:
    by = ("process", "container", "user", "job", "step", "span", "device")
    policies = ("separate", "by-allocation", "by-use")
    return [
        *(Case(f"ledger-by-{kind}", [["ledger", "owners", "--by", kind], ["ledger", "spans", "--by", kind, "--json"]])
          for kind in by),
        Case("ledger-policy", [["ledger", "owners", "--idle-policy", one, "--json"] for one in policies]),
        Case("ledger-baseline", [["ledger", "square", "--baseline", "cpu.0=35W,gpu.0=90W"],
                                 ["ledger", "owners", "--top", "1"],
                                 ["ledger", "spans", "--span", "epoch", "--json"],
                                 ["ledger", "owners", "--between", "1", "2", "--json"]]),
        Case("show-window", [["show", "spans", "--span", "epoch", "--json"], ["show", "spans", "--span", "request"],
                             ["show", "square", "--between", "0.5", "1.5", "--json"]]),
        Case("show-carbon", [["show", "square", *FACTORS], ["show", "square", *FACTORS, "--json"],
                             ["show", "square", "--country", "FR"],
                             ["show", "square", "--intensity-file", "foreign/intensity.csv", "--json"]]),
        Case("show-quiet", [["show", "gaps", "--quiet"], ["show", "gaps", "--verbose"],
                            ["show", "square", "--json=out/square.json"]]),
        *(Case(f"why-{name}", [["why", name], ["why", name, "--json"]])
          for name in ("square", "gaps", "gauge", "modelled", "jetson-hwmon", "hosts", "by-model", "wall")),
        Case("why-part", [["why", "square", "--device", "gpu.0"], ["why", "square", "--net", "--json"],
                          ["why", "spans", "--span", "epoch"]]),
        Case("list", [["list"], ["list", "--json"], ["list", "--tag", "project=alpha"], ["list", "--limit", "2"],
                      ["list", "--sum", "project"], ["list", "--sum", "project=alpha", "--json"],
                      ["show", "last"]], needs=("runs",)),
        Case("report", [["report", "spans", "-o", "out/spans.html", *FACTORS]]),
        Case("report-several", [["report", "square", "owners", "-o", "out/two.html"]]),
        Case("report-gaps", [["report", "gaps", "-o", "out/gaps.html", "--raw"]]),
        Case("plot-list", [["plot", "square", "--list"], ["plot", "owners", "--list", "--json"]]),
        Case("plot", [["plot", "square", "-o", "out/power.svg"],
                      ["plot", "owners", "--what", "ledger", "-o", "out/ledger.svg"],
                      ["plot", "spans", "--what", "spans", "-o", "out/spans.svg"],
                      ["plot", "square", "--what", "energy-by-device", "-o", "out/devices.svg"],
                      ["plot", "llm-server", "--what", "llm-tokens", "-o", "out/tokens.svg"],
                      ["plot", "llm-server", "--what", "llm-density", "-o", "out/density.svg"],
                      ["plot", "llm-good", "--what", "llm-tokens", "-o", "out/none.svg"]], extra="altair"),
        Case("monitor-run", [["monitor", "square", "--once", "--json"], ["monitor", "square", "--once", "--ascii"],
                             ["monitor", "owners", "--once", "--by", "process"],
                             ["monitor", "batch-two", "--once"], ["monitor", "killed", "--once", "--json"]],
             shape=_without_now),
    ]  # fmt: skip


def _without_now(text: str) -> str:
    """A view of the present has a time of day, and readings have an age."""
    text = re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", text)
    return re.sub(r'("(?:at|at_ns|age_s)": ?)[^,}\n]*', r'\1"NOW"', text)


def _without_times(text: str) -> str:
    """A view of an agent also says for how long it has been watched."""
    return re.sub(r'("elapsed_s": ?)[^,}\n]*|( in )\d+(?:\.\d+)? m?s', r'\1\2"TIME"', _without_now(text))


def _moving() -> list[Case]:
    """Out of a tape, and into one."""
    cases = []
    for kind in ("csv", "jsonl", "parquet", "arrow"):
        for run in ("square", "spans", "gaps"):
            back = ["import", kind, f"out/{run}.{kind}", "-o", "out/again.tape"]
            out = ["export", run, "--to", kind, "-o", f"out/{run}.{kind}"]
            cases.append(Case(f"export-{kind}-{run}", [out, back, ["show", "out/again.tape", "--json"]]))
    for name, run in (("aipowermeter", "square"), ("ipw", "llm-good")):
        cases.append(Case(f"export-{name}", [["export", run, "--to", name, "-o", f"out/{name}", "--json"]]))
    cases.append(Case("export-owners", [["export", "owners", "--to", "csv", "-o", "out/owners.csv", "--json"]]))
    for kind, words in IMPORTS.items():
        steps = [["import", kind, *words, "-o", "out/made.tape"], ["show", "out/made.tape"],
                 ["show", "out/made.tape", "--json"], ["validate", "out/made.tape"]]  # fmt: skip
        cases.append(Case(f"import-{kind}", steps))
    return cases


def _trials() -> list[Case]:
    llm = ("llm-good", "llm-slow")
    return [
        Case("compare-runs", [["compare", "square", "owners", "--force"], ["compare", "square", "owners", "--json"],
                              ["compare", "llm-good", "llm-slow"],
                              ["compare", "llm-good", "llm-slow", "--json", "-o", "out/two.md"]]),
        Case("batch-summary", [["batch", "summary", "batch-one"], ["batch", "summary", "batch-two", "--json"],
                               ["batch", "summary", "batch-one", "batch-two"],
                               ["batch", "summary", "batch-one", "batch-two", "--to", "csv"],
                               ["batch", "summary", "batch-killed", "--to", "md"],
                               ["batch", "summary", "batch-two", "--to", "csv"],
                               ["batch", "summary", "batch-two", "--baseline", "batch-one"]]),
        Case("batch-plan", [["batch", "--plan", "--gpus", "none", "--cpu-workers", "2", "foreign/any.csv", "--",
                             "echo", "{input}"]], apart=True),
        Case("leaderboard", [["bench", "leaderboard", *llm], ["bench", "leaderboard", *llm, "--json"],
                             ["bench", "leaderboard", "llm-server", "--by", "joules-per-token", "-o", "out/board.json"],
                             ["bench", "leaderboard", *llm, "-o", "out/board.md"],
                             ["bench", "leaderboard", "llm-sweep", "llm-good", "--by", "accuracy"]]),
        Case("agents", [["bench", "agents", "steps"], ["bench", "agents", "steps", "--steps", "--json"],
                        ["bench", "agents", "steps", "--otel", "foreign/otel.jsonl"]]),
        *(Case(f"report-{name}", [["report", name, "-o", f"out/{name}.html"]])
          for name in ("precision", "train", "batch-two", "llm-server", "llm-sweep", "compared", "swept")),
        Case("report-batches", [["report", "batch-one", "batch-two", "-o", "out/batches.html"]]),
    ]  # fmt: skip


def _site() -> list[Case]:
    return [
        Case("slurm-jobs", [["slurm", "jobs", *SITE, *NOVEMBER], ["slurm", "jobs", *SITE, *NOVEMBER, "--json"],
                            *(["slurm", "jobs", *SITE, *NOVEMBER, "--by", kind]
                              for kind in ("user", "account", "state", "partition", "node")),
                            ["slurm", "jobs", *SITE, *NOVEMBER, "--waste", "--user", "ada"],
                            ["slurm", "jobs", *SITE, *NOVEMBER, "--user", "ada", "--sort", "energy", "--limit", "1"],
                            ["slurm", "jobs", *SITE], ["slurm", "jobs", *SITE, "--by", "user", "--json"]]),
        Case("slurm-job", [["slurm", "job", *SITE, "1"], ["slurm", "job", *SITE, "2", "--json"],
                           ["slurm", "job", *SITE, "3_4"], ["slurm", "job", *SITE, "5"],
                           ["slurm", "job", *SITE, "99"]]),
        Case("slurm-summary", [["slurm", "summary", *SITE, "--user", "ada", *FACTORS],
                               ["slurm", "summary", *SITE, "--user", "bob", "--json"],
                               ["slurm", "summary", *SITE, "--user", "nobody"]]),
        Case("slurm-report", [["slurm", "report", *SITE, "--month", "2026-11", *FACTORS],
                              ["slurm", "report", *SITE, "--month", "2026-11", "--json"],
                              ["slurm", "report", *SITE, "--month", "2026-11", "-o", "out/month.csv", *FACTORS],
                              ["slurm", "report", *SITE, "--month", "2026-11", "-o", "out/month.html", *FACTORS]]),
        Case("slurm-validate", [["slurm", "validate", *SITE], ["slurm", "validate", *SITE, "--json"],
                                ["validate", "slurm/site"]]),
        Case("slurm-export", [["slurm", "export", "--to", kind, "-o", f"out/{kind}", *SITE, *NOVEMBER, *FACTORS[:2],
                               "--intensity-file", "foreign/intensity.csv"]
                              for kind in ("labia-csv", "labia-csv-co2", "labia-tree")]),
        Case("slurm-import", [["slurm", "import", "foreign/labia", "--store", "out/store"],
                              ["slurm", "jobs", "--store", "out/store", *NOVEMBER, "--json"]],
             needs=("foreign/labia",)),
        Case("slurm-sacct", [["import", "sacct", "foreign/sacct.txt", *SITE],
                             ["slurm", "jobs", *SITE, *NOVEMBER, "--json"]]),
        Case("slurm-daily", [["slurm", "daily", *SITE, "--date", "2026-11-15", "--no-sacct", *FACTORS],
                             ["slurm", "jobs", *SITE, *NOVEMBER, "--json"], ["slurm", "daily", "--units", *SITE]]),
        Case("slurm-node", [["slurm", "node", "--once", "--node", "n1", "--spool", "slurm/spool", "--store",
                             "slurm/store", "--tape", "slurm/tape"],
                            ["slurm", "jobs", "--store", "slurm/store", "--since", "2023-11-01T00:00+00:00", "--json"],
                            ["slurm", "job", "--store", "slurm/store", "1"]]),
        Case("slurm-wall", [["slurm", "wall", "--dry", "--run", "n1=wall", *SITE, *NOVEMBER]]),
        Case("slurm-install", [["slurm", "install", "--print", "--folder", "/etc/everywatt/slurm", "--store",
                                "/srv/everywatt", "--period", "5s"]]),
    ]  # fmt: skip


def _models_and_meters() -> list[Case]:
    xeon, table = "models/xeon.json", "foreign/xeon.csv"
    return [
        Case("model-show", [["model", "show", xeon], ["model", "show", "models/live.json", "--json"]]),
        Case("model-explain", [["model", "explain", xeon], ["model", "explain", "models/live.json", "--json"]]),
        Case("model-evaluate", [["model", "evaluate", xeon, table, "--target", "package_power"],
                                ["model", "evaluate", xeon, table, "--target", "package_power", "--json"],
                                ["model", "evaluate", "models/live.json", "collected", "--json"]]),
        Case("model-predict", [["model", "predict", xeon, table, "-o", "out/predicted.csv"],
                               ["model", "predict", "models/live.json", "collected"]]),
        Case("model-explore", [["model", "explore", table, "--target", "package_power"],
                               ["model", "explore", "collected", "--target", "cpu.0.package.power", "--json"]]),
        Case("model-install", [["model", "install", xeon, "--dry-run"], ["model", "install", "models/live.json"],
                               ["config", "show"], ["model", "install", "--remove"]]),
        Case("meter-stats", [["meter", "stats", "foreign/omegawatt.csv"],
                             ["meter", "stats", "--archive", "archive", "--json"],
                             ["meter", "stats", "--archive", "captured", "--plug", "1-3"],
                             ["meter", "stats", "foreign/omegawatt.csv", "--map", "foreign/map.toml", "--node", "n1"],
                             ["meter", "stats", "foreign/omegawatt.csv", "--head"]]),
        Case("meter-map", [["meter", "map", "--map", "foreign/map.toml"],
                           ["meter", "map", "--map", "foreign/map.toml", "foreign/omegawatt.csv", "--json"]]),
        Case("meter-import", [["meter", "import", "foreign/omegawatt.csv", "--archive", "out/archive", "--meter",
                               "m"]]),
        Case("meter-compare", [["meter", "compare", "--chips", "square", "--wall", "wall", "--json"],
                               ["meter", "compare", "--chips", "square", "--wall", "square", "--every", "500ms"],
                               ["meter", "compare", "--chips", "square", "--wall", "square", "--every", "500ms",
                                "--json"]]),
        Case("calibrate-list", [["calibrate", "--list"], ["calibrate", "--list", "--json"],
                                ["calibrate", "--forget", "GPU-0"]], needs=("home",)),
        Case("calibrate-from", [["calibrate", "--from", "square", "--meter", "square", "--dry-run"]], needs=("home",)),
        Case("characterise", [["doctor", "--characterise", "--from", "foreign/smi.csv"],
                              ["doctor", "--characterise", "--from", "foreign/smi.csv", "--json"]]),
    ]  # fmt: skip


TREE = {f"EVERYWATT_{name.upper()}": f"{{root}}/tree/{name}" for name in ("sys", "proc", "dev")}


def _series(text: str) -> str:
    """The series of an agent: names, types, help and labels, without values and times.

    Which owners there are is the machine's matter: of them the names of the labels are kept. Series that are there
    only where a machine has jobs or containers are left out.
    """
    kept = []
    for line in text.split("\n"):
        if re.match(r"(# \w+ )?(everywatt_job|everywatt_unattributed|kepler_(container|pod|process|vm))_", line):
            continue
        if not line.startswith("#"):
            line = re.sub(r"(?<=[}\w]) [-+\d.einfNa]+(?: \d+)?$", "", line)
            line = re.sub(r'(version|python|machine|Hostname)="[^"]*"', r'\1="…"', line)
            if re.match(r"\w*(owner|container|process)_", line):
                line = re.sub(r'="[^"]*"', "=…", line)
        if line not in kept:
            kept.append(line)
    return "\n".join(kept)


def _others() -> list[Case]:
    return [
        Case("config", [["config", "show"], ["config", "show", "--json"]],
             env={"EVERYWATT_PERIOD": "50ms", "EVERYWATT_TAG": "a=b"}),
        Case("config-file", [["config", "show"], ["config", "show", "--json"]], needs=("config",),
             env={"XDG_CONFIG_HOME": "{root}/config"}),
        Case("wrong-config-file", [["config", "show"], ["list"]], needs=("wrong-config",),
             env={"XDG_CONFIG_HOME": "{root}/wrong-config"}),
        Case("sensors", [["sensors", "--sensors", "hwmon,cray"], ["sensors", "--sensors", "hwmon,cray", "--json"],
                         ["sensors", "--sensors", "rapl,jetson", "--no-estimate"],
                         ["sensors", "--sensors", "nonsense"]], needs=("tree",), env=TREE),
        Case("plugins", [["plugins", "--json"], ["plugins"]]),
        Case("agent-series", [["sim", "--gpu", "constant:100W", "--package", "constant:60W", "--sensor",
                               "package.dram=0.2", "--", "PYTHON", "-m", "everywatt", "agent", "--check", "--state",
                               "out/state", "--compat", "kepler,dcgm,jetson"]], apart=True, shape=_series),
        Case("agent-tape", [["validate", "agent/tape", "agent-killed/tape", "--json"], ["show", "agent/tape"],
                            ["show", "agent/tape", "--json"], ["show", "agent-killed/tape", "--json"],
                            ["ledger", "agent-killed/tape"]]),
        Case("monitor-agent", [["monitor", "URL", "--once", "--json"], ["monitor", "URL", "--once", "--by", "job"]],
             serves="agent-metrics.txt", shape=_without_times),
        Case("sim-truth", [["sim", "truth", "truth.json"],
                           ["sim", "truth", "truth.json", "--between", "0.5", "1.25", "--json"],
                           ["sim", "truth", "truth.json", "--between", "250ms", "end"]]),
        Case("completion", [["completion", "bash"], ["completion", "zsh"], ["completion", "fish"]], apart=True),
        Case("stress-plan", [["stress", "foreign/program.toml", "--plan"],
                             ["stress", "--plan", "--cpu", "2", "--shape", "ramp", "--time", "10s", "--steps", "5"],
                             ["stress", "--plan", "--cpu", "1", "--ram", "1GiB", "--shape", "cpu=sine", "--time", "8s",
                              "--json"]]),
        Case("monitor-agent-log", [["monitor", "batch-one", "--once", "--tail", "3", "--json"]], shape=_without_now),
    ]  # fmt: skip


def _wrong() -> list[Case]:
    """What cannot be: codes 1, 2, 3 and 4 with their messages."""
    bad = [
        ["nonsense"], ["shwo"], ["show", "--nonsense"], ["show", "nowhere"], ["show", "square", "--between", "5", "1"],
        ["show", "square", "--span", "nothing"], ["show", "square", "--country", "XX"],
        ["show", "square", "--pue", "0.2"],
        ["ledger", "square", "--by", "colour"], ["ledger", "square", "--baseline", "x=1W"],
        ["why", "square", "--device", "gpu.9"],
        ["export", "square", "--to", "xml"], ["export", "square", "--to", "csv", "-o", "nowhere/x.csv"],
        ["import", "nonsense", "foreign/bad.txt"], ["import", "csv", "nowhere.csv"], ["list", "--sum", "="],
        ["run"], ["run", "--period", "a while", "--", "true"], ["sim", "--gpu", "circle:1W", "--", "true"],
        ["slurm", "jobs", "--store", "nowhere"], ["slurm", "jobs"], ["slurm", "nonsense"], ["slurm", "job", "x", *SITE],
        ["model", "show", "nowhere.json"], ["model", "show", "foreign/bad.txt"], ["model", "nonsense"],
        ["meter", "stats", "foreign/bad.txt"], ["bench", "leaderboard", "square"], ["bench", "llm"],
        ["bench", "leaderboard", "llm-good", "llm-command", "square"], ["batch", "summary", "square"],
        ["compare", "square", "wall"], ["plot", "square", "--metric", "nothing", "-o", "out/x.svg"],
        ["plot", "square", "-o", "out/x.bmp"], ["report", "nowhere"], ["monitor", "nowhere", "--once"],
        ["agent", "--listen", "nowhere"], ["agent", "--period", "x"], ["calibrate"], ["calibrate", "--from", "square"],
        ["stress", "--plan", "--shape", "blob"], ["stress", "foreign/bad.txt", "--plan"], ["completion", "tcsh"],
        ["attach"], ["attach", "x"], ["sweep", "--", "true"], ["doctor", "--characterise", "--from", "foreign/bad.txt"],
        ["sim", "truth", "nowhere"], ["bench", "agents", "square"], ["bench", "precision", "--resume", "square"],
        ["config", "nonsense"], ["validate", "nowhere"], ["validate"],
    ]  # fmt: skip
    torn = ("broken", "not-a-tape")
    return [
        *(Case(f"wrong-{verb}", [words for words in bad if words[0] == verb])
          for verb in dict.fromkeys(words[0] for words in bad)),
        *(Case(f"wrong-{name}", [["show", name], ["ledger", name, "--json"], ["validate", name],
                                 ["validate", name, "--json"], ["why", name], ["export", name, "--to", "csv"]])
          for name in torn),
        *(Case(f"wrong-import-{kind}", [["import", kind, "foreign/bad.txt", "-o", "out/x.tape"]]) for kind in IMPORTS),
        Case("wrong-store", [["validate", "slurm", "--json"]], needs=("slurm/spool",)),
    ]  # fmt: skip


CASES: dict[str, Case] = {
    case.name: case
    for part in (_help, _tapes, _reading, _moving, _trials, _site, _models_and_meters, _others, _wrong)
    for case in part()
}
