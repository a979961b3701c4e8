import io
import pickle
import zipfile
from hashlib import sha256

import numpy as np
import pytest

from everywatt.bench.precision.data import by_length, halves, load_data, scored_items, timed_batches
from everywatt.bench.precision.ptfile import read_tensor
from everywatt.core.errors import UsageError


class Name:
    """Pickles as a reference to a name, like torch's own classes."""

    def __init__(self, module, name, args=()):
        self.told = (module, name, args)


class Writer(pickle._Pickler):
    """Writes names that are not installed here, and storages as persistent ids: the form of torch.save."""

    def persistent_id(self, obj):
        return obj.told[2] if isinstance(obj, Name) and obj.told[0] == "storage" else None

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Name) and obj.told[0] != "storage":
            module, name, args = obj.told
            self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
            if args:
                self.save(tuple(args))
                self.write(pickle.REDUCE)
            return
        super().save(obj, save_persistent_id)


def storage(kind, key, count):
    return Name("storage", "", ("storage", Name("torch", kind), key, "cpu", count))


def pt_file(path, tree, blobs):
    text = io.BytesIO()
    Writer(text, protocol=2).dump(tree)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", text.getvalue())
        archive.writestr("archive/byteorder", "little")
        for key, data in blobs.items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def tensor(array, kind="LongStorage", shape=None, stride=None, offset=0):
    shape = array.shape if shape is None else shape
    stride = [s // array.itemsize for s in array.strides] if stride is None else stride
    args = (storage(kind, "0", array.size), offset, tuple(shape), tuple(stride), False)
    return Name("torch._utils", "_rebuild_tensor_v2", (*args, Name("collections", "OrderedDict", ((),))))


def write(path, array, kind="LongStorage", **more):
    return pt_file(path, tensor(array, kind, **more), {"0": array.tobytes()})


def test_a_tensor_is_read_without_torch(tmp_path):
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    assert (read_tensor(write(tmp_path / "a.pt", array)) == array).all()
    turned = write(tmp_path / "b.pt", array, shape=(4, 3), stride=(1, 4))
    assert (read_tensor(turned) == array.T).all()


@pytest.mark.parametrize(
    "tree, why",
    [
        (Name("os", "system", ("touch hacked",)), "refers to os.system"),
        (Name("builtins", "eval", ("1",)), "refers to builtins.eval"),
        ([1, 2], "contains a list"),
    ],
)
def test_nothing_in_a_file_is_executed(tmp_path, monkeypatch, tree, why):
    monkeypatch.chdir(tmp_path)
    file = pt_file(tmp_path / "bad.pt", tree, {})
    with pytest.raises(UsageError, match=why):
        read_tensor(file)
    assert not (tmp_path / "hacked").exists()


def test_a_tensor_may_not_reach_beyond_its_bytes(tmp_path):
    array = np.arange(4, dtype=np.int64)
    with pytest.raises(UsageError, match="beyond its storage"):
        read_tensor(write(tmp_path / "a.pt", array, shape=(4, 4), stride=(4, 1)))
    with pytest.raises(UsageError, match="shorter than declared"):
        read_tensor(pt_file(tmp_path / "b.pt", tensor(array), {"0": b"\0" * 8}))


def test_other_files_say_what_they_are(tmp_path):
    (tmp_path / "old.pt").write_bytes(pickle.dumps([1]))
    with pytest.raises(UsageError, match="not a PyTorch file"):
        read_tensor(tmp_path / "old.pt")
    with pytest.raises(UsageError, match="cannot be read"):
        read_tensor(tmp_path / "none.pt")


def folder(path, ids=None, mask=None, labels=None, told='{"num_samples": 3, "num_labels": 2}'):
    path.mkdir()
    ids = np.arange(12, dtype=np.int64).reshape(3, 4) if ids is None else ids
    write(path / "input_ids.pt", ids)
    write(path / "attention_mask.pt", np.ones((3, 4), dtype=np.int64) if mask is None else mask)
    write(path / "labels.pt", np.array([0, 1, 1]) if labels is None else labels)
    (path / "metadata.json").write_text(told)
    return str(path)


def test_the_old_folder_of_tensors(tmp_path):
    data = load_data(folder(tmp_path / "d"))
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
def test_wrong_shapes_and_labels_say_which(tmp_path, wrong, why):
    with pytest.raises(UsageError, match=why):
        load_data(folder(tmp_path / "d", **wrong))


def test_the_bundled_reviews():
    data = load_data("reviews")
    assert len(data) == 800 and int(data.labels.sum()) == 400
    assert int(data.lengths().sum()) == 13354 and data.fitting_length() == 24
    train, test = halves(len(data), 0)
    assert sorted([*train, *test]) == list(range(800))
    assert (scored_items(data, "encode", 0, None) == test).all()
    assert len(scored_items(data, "encode", 0, 100)) == 100 and set(scored_items(data, "encode", 0, 100)) <= set(test)


def test_sst2_is_read_where_the_user_puts_it_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="not bundled") as error:
        load_data("sst2")
    assert "--data reviews" in error.value.cure
    file = tmp_path / "everywatt" / "sst2_validation_tokens.npz"
    file.parent.mkdir()
    np.savez(file, input_ids=np.array([[101, 102]]), labels=np.array([1]))
    with pytest.raises(UsageError, match="not the expected file"):
        load_data("sst2")
    monkeypatch.setattr("everywatt.bench.precision.data.SST2_SHA256", sha256(file.read_bytes()).hexdigest())
    assert len(load_data("sst2")) == 1


def test_batches_hold_every_item_once_and_pad_little():
    data = load_data("reviews")
    parts = list(by_length(data, np.arange(800), 16))
    assert sorted(np.concatenate(parts)) == list(range(800))
    padded = sum(part.size * data.lengths()[part].max() for part in parts)
    assert padded < 1.05 * data.lengths().sum()
    timed = timed_batches(data, 8, 24)
    assert {batch["input_ids"].shape for batch in timed} == {(8, 24)}


def test_npz_without_labels_or_with_objects(tmp_path):
    np.savez(tmp_path / "a.npz", inputs=np.zeros((4, 3)), labels=np.array([0, 1, 0, 1]))
    assert not load_data(str(tmp_path / "a.npz")).tokens
    np.savez(tmp_path / "b.npz", inputs=np.array([object()]))
    with pytest.raises(UsageError, match="cannot be read: Object arrays"):
        load_data(str(tmp_path / "b.npz"))
    with pytest.raises(UsageError, match="neither"):
        load_data("nowhere")
