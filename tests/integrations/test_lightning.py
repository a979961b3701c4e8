"""Lightning, for real, on a tiny module."""

import csv
import warnings

import pytest

pytestmark = pytest.mark.ml
EPOCHS, BATCHES = 3, 6


@pytest.fixture
def parts(tmp_path):
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Tiny(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(5)
            self.layer = torch.nn.Linear(4, 1)

        def _loss(self, batch):
            x, y = batch
            return ((self.layer(x) - y) ** 2).mean()

        def training_step(self, batch, index):
            loss = self._loss(batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", self._loss(batch))

        def test_step(self, batch, index):
            self.log("test_loss", self._loss(batch))

        def predict_step(self, batch, index):
            return self.layer(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    x = torch.arange(96.0).reshape(24, 4) / 96
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=24 // BATCHES)

    def trainer(callbacks, **more):
        from lightning.pytorch.loggers import CSVLogger

        settings = {
            "max_epochs": EPOCHS,
            "accelerator": "cpu",
            "logger": CSVLogger(str(tmp_path), name="csv"),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "log_every_n_steps": 1,
            "num_sanity_val_steps": 1,
        }
        return lightning.Trainer(callbacks=callbacks, **{**settings, **more})

    return Tiny, loader, trainer


@pytest.fixture
def callback_class():
    from everywatt.integrations.lightning import EverywattCallback

    return EverywattCallback


def test_a_fit_is_a_run_with_epochs_and_validations(card, against_truth, callback_class, parts):
    Tiny, loader, trainer = parts
    callback = callback_class()
    fit = trainer([callback])
    fit.fit(Tiny(), loader, loader)
    inner = against_truth(callback.run, card, {"sanity-check", "epoch"})
    epochs = [s for s in inner if s.name == "epoch"]
    assert [s.attributes["number"] for s in epochs] == [0, 1, 2]
    validations = [s for s in callback.run.spans if s.name == "validation"]
    assert [s.parent for s in validations] == [s.id for s in epochs]
    assert {"loss", "val_loss"} == {p.name for p in callback.run.points}
    assert callback.run.name.endswith("-fit")
    with open(f"{fit.logger.log_dir}/metrics.csv") as file:
        logged = [row["energy_joules"] for row in csv.DictReader(file) if row.get("energy_joules")]
    assert [float(text) for text in logged] == [pytest.approx(callback.energy.joules)]


@pytest.mark.parametrize(("verb", "phase"), [("validate", "validation"), ("test", "test"), ("predict", "predict")])
def test_other_verbs_are_runs_too(card, against_truth, callback_class, parts, verb, phase):
    Tiny, loader, trainer = parts
    callback = callback_class(name="named" if verb == "test" else "")
    getattr(trainer([callback]), verb)(Tiny(), loader)
    against_truth(callback.run, card, {phase})
    assert callback.run.name.endswith("-named" if verb == "test" else f"-{verb}")


def test_steps_are_spans_where_asked_for(card, callback_class, parts):
    Tiny, loader, trainer = parts
    callback = callback_class(steps=True)
    trainer([callback], max_epochs=1).fit(Tiny(), loader)
    steps = [s for s in callback.run.spans if s.name == "step"]
    assert [s.attributes["number"] for s in steps] == list(range(BATCHES))


def test_the_training_is_the_same_with_and_without_and_with_a_broken_meter(card, monkeypatch, callback_class, parts):
    Tiny, loader, trainer = parts
    results = []
    for callbacks, fails in (([], False), ([callback_class()], False), ([callback_class()], True)):
        if fails:
            monkeypatch.setattr("everywatt.api.meter.record", lambda *_, **__: 1 / 0)
        model = Tiny()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trainer(callbacks).fit(model, loader, loader)
        assert len([w for w in seen if "everywatt" in str(w.message)]) == (1 if fails else 0)
        results.append(model.layer.weight.detach().clone())
    assert results[0].equal(results[1]) and results[0].equal(results[2])


def test_a_training_that_raises_leaves_its_record(card, callback_class, parts):
    Tiny, loader, trainer = parts

    class Fails(Tiny):
        def on_train_epoch_end(self):
            if self.current_epoch == 1:
                raise RuntimeError("out of memory")

    callback = callback_class()
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer([callback]).fit(Fails(), loader)
    assert callback.run is not None
    assert [s.end_ns is not None for s in callback.run.spans if s.name == "epoch"] == [True, True]
