from hashlib import sha256

import numpy as np
import pytest

from everywatt.bench.precision.data import by_length, halves, load_data, scored_items, timed_batches
from everywatt.core.errors import UsageError


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
