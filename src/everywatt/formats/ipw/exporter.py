"""A run in the layout of Intelligence per Watt: a Hugging Face dataset folder and a `summary.json`, its field names.

Only what was measured is filled in; everything else is null, never zero. Fields mean what they mean in that tool:
`per_query_joules` is the GPUs' energy (of all devices where there is no GPU), `cpu_per_query_joules` the processors',
`per_token_ms` the whole time over the output tokens, and prefill all time until the first token. Energies are the
server's gross joules, with idle; `basis` says so.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everywatt.api.run import Run
from everywatt.bench.experiment import folder_of
from everywatt.bench.llm.compute import Facts
from everywatt.bench.llm.datasets import load_dataset
from everywatt.bench.llm.energy import FEWEST_TICKS, Bill, QueryEnergy
from everywatt.bench.llm.metrics import Conditions
from everywatt.bench.llm.phases import NAMES
from everywatt.bench.llm.plan import LlmPlan
from everywatt.bench.llm.records import Answer, Item, Record, read_records
from everywatt.bench.llm.result import conditions, known_facts, owed_by, placed
from everywatt.core.clocks import NS
from everywatt.core.device import Device, is_gpu
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.jsonio import dumps
from everywatt.core.plugins import library
from everywatt.tape.run_store import slug

_STATISTICS: Mapping[str, Literal["mean", "max", "median", "min"]] = {
    "avg": "mean",
    "max": "max",
    "median": "median",
    "min": "min",
}
DATA = "data-00000-of-00001.arrow"
_GPU_USE = (
    "compute_utilization_pct",
    "memory_bandwidth_utilization_pct",
    "tensor_core_utilization_pct",
    "memory_used_gb",
    "memory_total_gb",
)


def export_ipw(run: Run, out: Path | None = None) -> list[Path]:
    """Write the folder `out`, by default `folder_name(run)`; gives its files.

    UsageError where something else is there, or it is no such run.
    """
    pa = library("pyarrow", "analysis")
    folder = folder_of(run)
    out = out or Path(folder_name(run))
    plan, records = LlmPlan.read(folder), read_records(folder)
    levels = list(dict.fromkeys(record.level for record in records))
    if len(levels) != 1:
        raise UsageError(f"{run.name} has {len(levels)} loads, and the ipw layout holds only one.")
    ours = {DATA, "dataset_info.json", "state.json", "summary.json"}
    if out.exists() and (not out.is_dir() or any(one.name not in ours for one in out.iterdir())):
        raise UsageError(f"{out} exists already and is not an ipw export.", cure="--out NAME")
    owed = owed_by(run, records, plan)
    facts, about = known_facts(run, plan), _machine(run)
    during = conditions(placed(run, records, plan))
    # Records of older versions do not hold their items: the data set has them, if it is still there.
    items = {} if all(record.asked is not None for record in records) else _items(plan)
    rows = [
        _row(record, items.get(record.id), owed, plan.model, facts, about, during.get(record.span or "", {}))
        for record in records
    ]
    out.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(out / DATA), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    # Without `features` the library that reads this takes the columns as the Arrow file has them.
    _write(
        out / "dataset_info.json", {"description": "a run of everywatt", "citation": "", "homepage": "", "license": ""}
    )
    state: dict[str, Any] = {
        "_data_files": [{"filename": DATA}],
        "_fingerprint": slug(run.name),
        "_format_columns": None,
    }
    state |= {"_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": None}
    _write(out / "state.json", state)
    _write(out / "summary.json", _summary(run, plan, records, owed, out))
    return [out / name for name in sorted(ours)]


def folder_name(run: Run) -> str:
    """What that tool would call the folder: `profile_HARDWARE_MODEL_DATASET`."""
    plan = LlmPlan.read(folder_of(run))
    return f"profile_{_hardware(run)}_{slug(plan.model) or 'model'}_{slug(plan.dataset.name)}"


def _hardware(run: Run) -> str:
    """The name of the hardware, as that tool labels it: of the first GPU, else of the CPU."""
    about = _machine(run)
    name = about["gpu_info"]["name"] or about["system_info"]["cpu_brand"]
    return slug(str(name)) if name else "gpu" if any(map(is_gpu, run.devices())) else "cpu"


def _items(plan: LlmPlan) -> dict[str, Item]:
    """The items by id; none where the user's file is not there any more."""
    try:
        return {item.id: item for item in load_dataset(plan.dataset.name, plan.dataset.params).items}
    except EverywattError:
        return {}


def _row(
    record: Record,
    item: Item | None,
    bill: Bill,
    model: str,
    facts: Facts,
    about: Mapping[str, Any],
    during: Conditions,
) -> dict[str, Any]:
    asked = record.asked or item
    return {
        "problem": None if asked is None else asked.prompt,
        "answer": None if asked is None else asked.answer,
        "subject": record.group,
        "dataset_metadata": dumps({"id": record.id, **({} if asked is None else asked.meta)}),
        "model_answers": {model: record.answer.text},
        "model_metrics": {model: {**_metrics(record, bill, facts, during), **about}},
    }


def _metrics(record: Record, bill: Bill, facts: Facts, during: Conditions) -> dict[str, Any]:
    owed = bill.queries.get(record.span or "")
    answer, seconds = record.answer, record.answer.e2e_s
    mine = _by_kind({} if owed is None else owed.devices)
    whole = _by_kind({label: part.joules or 0.0 for label, part in bill.gross.parts})
    joules, total_j = _per_query(mine), _per_query(whole)
    inputs, outputs = answer.input_tokens, answer.output_tokens
    total = None if inputs is None or outputs is None else inputs + outputs
    watts = None if joules is None or not seconds else joules / seconds
    flops = None if facts.parameters is None or total is None else 2.0 * facts.parameters * total
    mfu = None if flops is None or facts.peak_flops is None or not seconds else flops / seconds / facts.peak_flops
    return {
        "compute_metrics": {
            "flops_per_request": flops,
            "macs_per_request": None if flops is None else flops / 2,
            "total_flops": flops,
            "flops_per_token": None if facts.parameters is None else 2.0 * facts.parameters,
        },
        "energy_metrics": {
            "per_query_joules": joules,
            "total_joules": total_j,
            "cpu_per_query_joules": mine.get("cpu"),
            "cpu_total_joules": whole.get("cpu"),
            "ane_per_query_joules": None,
            "ane_total_joules": None,
            "soc_per_query_joules": None,
            "soc_total_joules": None,
            "basis": f"everywatt: {bill.about}" + ("" if "gpu" in whole else "; no GPU: all devices"),
            "energy_per_output_token_joules": joules / outputs if joules is not None and outputs else None,
            "energy_per_total_token_joules": joules / total if joules is not None and total else None,
        },
        "latency_metrics": _latency(answer, seconds),
        "memory_metrics": {
            "cpu_mb": _block(during, "host", "memory_bytes", 1e-6),
            "gpu_mb": _block(during, "gpu", "memory_bytes", 1e-6),
        },
        "power_metrics": {
            **{
                kind: {"per_query_watts": _block(during, kind, "power_w"), "total_watts": _block({}, kind, "")}
                for kind in ("gpu", "cpu", "ane")
            },
            "soc": {
                "per_query_watts": {**_block({}, "soc", ""), "avg": watts},
                "total_watts": _block({}, "soc", ""),
            },
            "basis": "gpu, cpu: readings of the devices while the query was open; soc: joules / seconds",
        },
        "temperature_metrics": _block(during, "gpu", "temperature_c", together=False),
        "token_metrics": {"input": inputs, "output": outputs, "total": total},
        "phase_metrics": _phases(answer, owed),
        "hardware_utilization": {
            "gpu": {
                **dict.fromkeys(_GPU_USE),
                "compute_utilization_pct": _block(during, "gpu", "utilisation_pct", together=False)["avg"],
                "memory_bandwidth_utilization_pct": _block(during, "gpu", "memory_utilisation_pct", together=False)[
                    "avg"
                ],
                "memory_used_gb": _block(during, "gpu", "memory_bytes", 1e-9)["avg"],
            },
            "derived": {"mfu": mfu, "mbu": None, "arithmetic_intensity": None},
        },
        "efficiency": {
            "throughput_per_watt": outputs / joules if outputs is not None and joules else None,
            "flops_per_joule": flops / joules if flops is not None and joules else None,
            "flops_per_watt": flops / watts if flops is not None and watts else None,
        },
        "cost": _cost(facts, inputs, outputs),
        "lm_correctness": record.right if record.ok else False,
        "lm_response": answer.text,
        "evaluation": {
            "is_correct": record.right,
            "metadata": dumps({} if record.score is None else record.score.to_dict()),
        },
    }


def _kind(label: str) -> str:
    """`gpu`, `cpu` or what else a device is."""
    device = Device.parse(label)
    return "gpu" if device.is_gpu else "cpu" if device.is_cpu else device.kind


def _by_kind(devices: Mapping[str, float]) -> dict[str, float]:
    """Joules of GPUs, of processors, and of all devices; a kind that was not measured is absent."""
    found: dict[str, float] = {}
    for label, joules in devices.items():
        for kind in ("all", _kind(label)):
            found[kind] = found.get(kind, 0.0) + joules
    return found


def _per_query(joules: Mapping[str, float]) -> float | None:
    return joules.get("gpu", joules.get("all"))


def _block(
    during: Conditions, kind: str, name: str, scale: float = 1.0, *, together: bool = True
) -> dict[str, float | None]:
    """That tool's block of statistics over some devices: their sum, or, for what does not add up, their mean."""
    readings = [one[name] for device, one in during.items() if _kind(device) == kind and name in one]
    found: dict[str, float | None] = dict.fromkeys(("avg", "max", "median", "min"))
    if readings:
        share = scale if together else scale / len(readings)
        found = {key: share * sum(one[mine] for one in readings) for key, mine in _STATISTICS.items()}
    return found


def _cost(facts: Facts, inputs: int | None, outputs: int | None) -> dict[str, float | None]:
    found: dict[str, float | None] = dict.fromkeys(
        ("input_cost_usd", "output_cost_usd", "tool_cost_usd", "total_cost_usd")
    )
    dollars = facts.currency.upper() in ("", "USD")
    if facts.token_price is not None and dollars and inputs is not None and outputs is not None:
        read, written = inputs * facts.token_price[0] / 1e6, outputs * facts.token_price[1] / 1e6
        found |= {"input_cost_usd": read, "output_cost_usd": written, "total_cost_usd": read + written}
    return found


def _machine(run: Run) -> dict[str, Any]:
    """What that tool keeps of the machine with every query."""
    host = run.meta.get("host", {})
    system = {"os_name": host.get("system"), "os_version": None, "kernel_version": host.get("kernel")}
    system |= {"host_name": host.get("name"), "cpu_count": host.get("cpus"), "cpu_brand": host.get("cpu")}
    groups = [group.info for tape in run.tapes for group in tape.groups if is_gpu(group.info.device)]
    card = groups[0] if groups else None
    gpu: dict[str, Any] = dict.fromkeys(("name", "vendor", "device_id", "device_type", "backend"))
    if card is not None:
        vendor = {"nvml": "NVIDIA", "nvidia-smi": "NVIDIA", "rocm-smi": "AMD", "amdsmi": "AMD"}.get(card.sensor)
        index = Device.parse(card.device).index
        gpu |= {"name": card.label or None, "vendor": vendor, "device_id": index, "device_type": "gpu"}
        gpu |= {"backend": card.sensor}
    return {"system_info": system, "gpu_info": gpu}


def _latency(answer: Answer, seconds: float) -> dict[str, Any]:
    """`per_token_ms` is the whole time over the output tokens there, not the time between two."""
    gaps_ms = np.diff(answer.piece_ns) / 1e6 if len(answer.piece_ns) > 1 else np.zeros(0)
    named: dict[str, float | None] = {
        f"{name}_itl_ms": float(np.percentile(gaps_ms, p)) if len(gaps_ms) else None
        for name, p in (("median", 50), ("p90", 90), ("p95", 95), ("p99", 99))
    }
    return {
        "per_token_ms": seconds * 1000 / answer.output_tokens if answer.output_tokens else None,
        "throughput_tokens_per_sec": answer.output_tokens / seconds if answer.output_tokens and seconds else None,
        "time_to_first_token_seconds": answer.ttft_s,
        "total_query_seconds": seconds,
        **named,
        "itl_std_ms": float(np.std(gaps_ms)) if len(gaps_ms) else None,
    }


def _phases(answer: Answer, owed: QueryEnergy | None) -> dict[str, float | None]:
    """Prefill (all until the first token, the queue included) and decode; joules only where the sensor saw the phase
    three times."""
    first = answer.first_ns
    found: dict[str, float | None] = {}
    joules, ticks = ((0.0,) * 3, (0,) * 3) if owed is None else zip(*(owed.phases[name] for name in NAMES), strict=True)
    for name, count, amount, begin, end, tokens, each in (
        ("prefill", sum(ticks[:2]), sum(joules[:2]), answer.sent_ns, first, answer.input_tokens, "input"),
        ("decode", ticks[2], joules[2], first, answer.ended_ns, answer.output_tokens, "output"),
    ):
        seconds = None if begin is None or end is None else (end - begin) / NS
        seen = amount if count >= FEWEST_TICKS else None
        found[f"{name}_energy_j"] = seen
        found[f"{name}_duration_ms"] = None if seconds is None else seconds * 1000
        found[f"{name}_power_avg_w"] = seen / seconds if seen is not None and seconds else None
        found[f"{name}_energy_per_{each}_token_j"] = seen / tokens if seen is not None and tokens else None
        found[f"{name}_energy_components_j"] = None
    return found


def _summary(run: Run, plan: LlmPlan, records: Sequence[Record], bill: Bill, out: Path) -> dict[str, Any]:
    from everywatt import __version__

    return {
        "model": plan.model,
        "profiler_config": {
            "client_id": plan.client["client"],
            "dataset_id": plan.dataset.name,
            **plan.to_dict(),
        },
        "dataset": plan.dataset.name,
        "dataset_name": plan.dataset.name,
        "hardware_label": _hardware(run),
        "generated_at": run.started.timestamp(),
        "total_queries": len(records),
        **_machine(run),
        "output_dir": out.name,
        "versions": {"everywatt": __version__, "python": platform.python_version()},
        "client_info": plan.client,
        "energy": bill.gross.to_dict(),
        "energy_boundary": bill.boundary,
        "energy_by_device": True,  # unlike exports of older versions, in which per_query_joules was of all devices
    }


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(dumps(data, indent=2) + "\n", encoding="utf-8")
