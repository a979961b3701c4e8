"""With torch: what conversions really are, labels that are refused, hooks, and every layer of GPT-2."""

import os
import sys

import numpy as np
import pytest

from everywatt.bench.precision.backend import Unsupported, make
from everywatt.bench.precision.computed import refusal, widened
from everywatt.bench.precision.data import load_data
from everywatt.bench.precision.layers import apportion
from everywatt.bench.precision.plan import Job
from everywatt.bench.precision.variants import load_data_without_torch
from everywatt.core.errors import UsageError

pytestmark = pytest.mark.ml
ENTRIES = """
import torch

def float_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))

class Deaf(torch.nn.Module):
    # It does not use its mask.
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = torch.nn.Embedding(50, 64), torch.nn.Linear(64, 2)

    def forward(self, input_ids, attention_mask=None):
        return self.out(self.words(input_ids).mean(1))

def deaf():
    return Deaf()

def liar(precision):
    return float_model()

def fake(precision):
    model = float_model()
    for p in model.parameters():  # weights rounded to 256 levels, and still float32
        step = p.abs().max() / 127
        p.data = (p / step).round() * step
    return model
"""


@pytest.fixture(scope="module", autouse=True)
def torch():
    """Imported by the first test, not by the collection: every worker of every part collects."""
    pytest.importorskip("transformers")
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("entries")
    (folder / "lab_entries.py").write_text(ENTRIES)
    rng = np.random.default_rng(0)
    np.savez(folder / "d.npz", inputs=rng.normal(size=(64, 64)).astype(np.float32), labels=np.arange(64) % 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield Job(entry="lab_entries:float_model", task="classify", data=str(folder / "d.npz"), device="cpu")


def made(job, precision, entry=None):
    from dataclasses import replace

    job = replace(job, entry=entry or job.entry)
    data = load_data(job.data)
    batch = data.batch(np.arange(16))
    model = make(job, precision, [batch], None)
    return model, model.prepare(batch)


WEIGHTS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "qint8", "int8-static": "qint8"}


@pytest.mark.parametrize("precision", WEIGHTS)
def test_operators_weights_and_size_agree_with_the_label(job, precision):
    model, batch = made(job, precision)
    seen = model.facts(batch)
    assert refusal(precision, seen) is None
    assert max(seen.weights, key=seen.weights.get) == WEIGHTS[precision]
    if precision.startswith("int8"):
        assert any(name.startswith("quantized::linear") for name in seen.operators)
        assert seen.disk_bytes < 0.6 * made(job, "fp32")[0].facts(batch).disk_bytes
    else:
        assert set(seen.compute) == {WEIGHTS[precision]}
    assert refusal("int8" if not precision.startswith("int8") else "fp32", seen) is not None
    exact = made(job, "fp32")[0].answers(batch)["outputs"]
    assert model.answers(batch)["outputs"] == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize("entry", ["lab_entries:liar", "lab_entries:fake"])
def test_a_float_model_called_int8_is_refused(job, entry):
    model, batch = made(job, "int8", entry)
    facts = model.facts(batch)
    assert "none of them stored in 8 bits" in refusal("int8", facts)


@pytest.fixture(scope="module")
def gpt2():
    job = Job(model="gpt2-random", task="causal-lm", data="random-tokens", device="cpu")
    batch = load_data("random-tokens").batch(np.arange(2), 16)
    model = make(job, "fp32", [], None)
    return job, model, model.prepare(batch), batch


def test_gpt2_shows_its_attention_and_mlp(gpt2):
    _, model, prepared, _ = gpt2
    times, whole_s = model.layers(prepared, 3)
    assert whole_s > 0.8 * sum(one["seconds"] for one in times)
    kinds = {one["layer"]: one["type"] for one in times}
    for block in range(4):
        for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            assert kinds[f"transformer.h.{block}.{layer}"] == "Conv1D"
        assert kinds[f"transformer.h.{block}.attn"] == "GPT2Attention"
    leaves = {name for name, module in model.model.named_modules() if not list(module.children())}
    unused = {name for name in leaves if name.endswith("attn_dropout")}  # the fused attention does without it
    assert leaves - unused <= set(kinds), "every leaf of any class that ran has a row"
    rows, _ = apportion(times, sum(one["seconds"] for one in times) * 1.25, 10.0)
    assert sum(row.joules for row in rows) == pytest.approx(10.0, abs=1e-9)
    assert rows[-1].share == pytest.approx(0.2)


def test_no_hook_stays_and_none_is_there_when_measured(gpt2):
    from everywatt.bench.precision.torch_backend import module_times

    _, model, _prepared, _ = gpt2
    assert model.hooks() == 0
    handle = model.model.register_forward_hook(lambda *_: None)
    assert model.hooks() == 1, "hooks would be seen"
    handle.remove()
    with pytest.raises(RuntimeError):
        module_times(model.model, lambda: (_ for _ in ()).throw(RuntimeError()), 1, lambda: None)
    assert model.hooks() == 0


def count_calls(work):
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def test_a_layer_pass_leaves_a_batch_as_it_was(gpt2):
    _, model, prepared, _ = gpt2

    def functions():
        return min(count_calls(lambda: model.run(prepared)) for _ in range(3))

    functions()  # the first batches fill caches
    before = functions()
    model.layers(prepared, 3)
    assert functions() == before > 100


def test_gpt2_in_int8_has_all_its_products_in_int8(gpt2):
    job, model, prepared, _ = gpt2
    small = make(job, "int8", [], None)
    facts = small.facts(prepared)
    assert facts.operators["quantized::linear_dynamic"] == 4 * 4 + 1
    assert refusal("int8", facts) is None
    one, other = model.answers(prepared), small.answers(prepared)
    assert other["loss"] == pytest.approx(one["loss"], rel=0.01)
    assert one["tokens"].tolist() == [15, 15]


def test_a_language_model_of_random_weights_is_as_good_as_guessing(gpt2):
    _, model, prepared, _ = gpt2
    told = model.answers(prepared)
    assert np.exp(told["loss"].sum() / told["tokens"].sum()) == pytest.approx(1000, rel=0.3)


def folder(torch, path, ids=None, mask=None, labels=None, told='{"num_samples": 3, "num_labels": 2}'):
    path.mkdir()
    ids = np.arange(12, dtype=np.int64).reshape(3, 4) if ids is None else ids
    torch.save(torch.from_numpy(ids), path / "input_ids.pt")
    torch.save(torch.from_numpy(np.ones((3, 4), dtype=np.int64) if mask is None else mask), path / "attention_mask.pt")
    torch.save(torch.from_numpy(np.array([0, 1, 1]) if labels is None else labels), path / "labels.pt")
    (path / "metadata.json").write_text(told)
    return str(path)


def test_the_old_folder_of_tensors(torch, tmp_path):
    data = load_data(folder(torch, tmp_path / "d"))
    apart = load_data_without_torch(str(tmp_path / "d"))
    assert (apart.name, apart.note, apart.labels.tolist()) == (data.name, data.note, data.labels.tolist())
    assert len(data) == 3 and data.labels.tolist() == [0, 1, 1]
    assert data.batch([2])["input_ids"].tolist() == [[8, 9, 10, 11]]


@pytest.mark.parametrize(
    "wrong, why",
    [
        ({"mask": np.ones((3, 5), dtype=np.int64)}, r"attention_mask has shape \(3, 5\), input_ids \(3, 4\)"),
        ({"mask": np.full((3, 4), 2)}, "attention_mask has values other than 0 and 1"),
        ({"labels": np.array([0, 1, 2])}, "label 2 of item 2 is invalid; labels are 0 to 1"),
        ({"labels": np.array([0, 1])}, r"labels has shape \(2,\)"),
        ({"ids": np.arange(3)}, r"input_ids has shape \(3,\)"),
        ({"told": '{"num_samples": 5}'}, "metadata.json reports 5 samples, the tensors have 3"),
        ({"told": "{"}, "is not JSON"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_shapes_and_labels_say_which(torch, tmp_path, wrong, why):
    with pytest.raises(UsageError, match=why):
        load_data(folder(torch, tmp_path / "d", **wrong))


class Hostile:
    def __reduce__(self):
        return os.system, ("touch hacked",)


@pytest.mark.parametrize("content, why", [(Hostile(), "cannot be read"), ([1, 2], "contains a list")])
def test_nothing_in_a_file_is_executed(torch, tmp_path, monkeypatch, content, why):
    monkeypatch.chdir(tmp_path)
    path = folder(torch, tmp_path / "d")
    torch.save(content, tmp_path / "d" / "labels.pt")
    with pytest.raises(UsageError, match=why):
        load_data(path)
    assert not (tmp_path / "hacked").exists()


def test_a_file_that_is_none_says_so(torch, tmp_path):
    path = folder(torch, tmp_path / "d")
    (tmp_path / "d" / "labels.pt").write_bytes(b"no tensor")
    with pytest.raises(UsageError, match=r"labels\.pt cannot be read"):
        load_data_without_torch(path)


ONNX = {
    "fp32": ("float32", {"float32"}, "Gemm"),
    "fp16": ("float16", {"float32"}, "Cast"),
    "int8": ("int8", {"int8"}, "DynamicQuantizeMatMul"),
    "int8-static": ("int8", {"int8"}, "QGemm"),
}


@pytest.mark.parametrize("precision", ONNX)
def test_onnxruntime_is_what_its_label_says(job, precision):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from dataclasses import replace

    model, batch = made(replace(job, runtime="onnxruntime"), precision)
    seen = model.facts(batch)
    assert refusal(precision, seen) is None
    weights, compute, operator = ONNX[precision]
    assert max(seen.weights, key=seen.weights.get) == weights
    assert set(seen.compute) == compute, seen.operators
    assert any(operator in name for name in seen.operators), seen.operators
    exact = made(job, "fp32")
    assert model.answers(batch)["outputs"] == pytest.approx(exact[0].answers(exact[1])["outputs"], abs=0.05)
    said = widened(precision, seen)
    if precision == "fp16":
        assert said == "emulated: weights are float16, but products are computed in float32"
    else:
        assert said is None
    other = {"fp32": "int8", "fp16": "int8-static", "int8": "fp32", "int8-static": "fp16"}[precision]
    assert refusal(other, seen).startswith(f"not {other}: "), "no other label is true of it"


def test_onnxruntime_without_bf16_says_why(job):
    pytest.importorskip("onnxruntime")
    from dataclasses import replace

    with pytest.raises(Unsupported, match="CPU provider has no bf16 kernels"):
        made(replace(job, runtime="onnxruntime"), "bf16")


def test_an_input_that_the_model_does_not_use_is_not_calibrated_with(job, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from dataclasses import replace

    ids = np.random.default_rng(0).integers(0, 50, (64, 8))
    np.savez(tmp_path / "d.npz", input_ids=ids, attention_mask=np.ones_like(ids), labels=np.arange(64) % 2)
    job = replace(job, data=str(tmp_path / "d.npz"), entry="lab_entries:deaf")
    model, batch = made(replace(job, runtime="onnxruntime"), "int8-static")
    exact = made(job, "fp32")
    assert model.answers(batch)["outputs"] == pytest.approx(exact[0].answers(exact[1])["outputs"], abs=0.05)
