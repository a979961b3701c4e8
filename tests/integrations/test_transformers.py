"""The Hugging Face Trainer, for real, on a tiny model with random weights."""

import warnings

import pytest

pytestmark = pytest.mark.ml
EPOCHS, STEPS = 3, 8


def make_trainer(folder, callbacks=(), **more):
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

    torch.set_num_threads(1)  # threads that spin for one another take long on a busy machine
    set_seed(7)
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    model = BertForSequenceClassification(config)
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(0, 32, (STEPS * 4, 6), generator=generator)
    data = [{"input_ids": row, "labels": int(row.sum()) % 2} for row in words]
    settings = {
        "output_dir": str(folder / "out"),
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_steps": 2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 7,
    }
    args = TrainingArguments(**{**settings, **more})
    return Trainer(model=model, args=args, train_dataset=data, eval_dataset=data[:16], callbacks=list(callbacks))


def weights(trainer):
    import torch

    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.fixture
def callback_class():
    from everywatt.integrations.transformers import EverywattCallback

    return EverywattCallback


def test_a_training_is_a_run_with_epochs_and_evaluations(card, against_truth, callback_class, tmp_path):
    callback = callback_class(name="tiny")
    trainer = make_trainer(tmp_path, [callback])
    output = trainer.train()
    inner = against_truth(callback.run, card, {"epoch", "evaluation"})
    assert [s.name for s in inner] == ["epoch", "evaluation"] * EPOCHS
    assert [s.attributes["number"] for s in inner if s.name == "epoch"] == [0, 1, 2]
    assert [s.attributes["step"] for s in inner if s.name == "evaluation"] == [8, 16, 24]
    points = {point.name for point in callback.run.points}
    assert {"loss", "eval_loss", "learning_rate", "train_runtime"} <= points
    energy = callback.energy
    assert output.metrics["energy_joules"] == energy.joules
    assert energy.low == output.metrics["energy_low"] < output.metrics["energy_high"] == energy.high
    assert trainer.state.log_history[-1]["energy_joules"] == energy.joules
    assert callback.run.name.endswith("-tiny")


def test_steps_and_evaluations_inside_an_epoch(card, callback_class, tmp_path):
    callback = callback_class(steps=True)
    trainer = make_trainer(tmp_path, [callback], eval_strategy="steps", eval_steps=4, num_train_epochs=1)
    trainer.train()
    spans = callback.run.spans
    epoch = next(s for s in spans if s.name == "epoch")
    steps = [s for s in spans if s.name == "step"]
    evaluations = [s for s in spans if s.name == "evaluation"]
    assert [s.attributes["number"] for s in steps] == list(range(STEPS))
    assert [s.attributes["step"] for s in evaluations] == [4, 8]
    assert {s.parent for s in (*steps, *evaluations)} == {epoch.id}
    for evaluation in evaluations:
        assert all(s.end_ns <= evaluation.start_ns or s.start_ns >= evaluation.end_ns for s in steps)


def trained(folder, callbacks):
    """Made and trained in one go, since the seed is set where a Trainer is made."""
    trainer = make_trainer(folder, callbacks, num_train_epochs=1)
    return trainer, trainer.train()


def test_the_training_is_the_same_with_and_without(card, callback_class, tmp_path):
    (plain, first), (measured, second) = trained(tmp_path, []), trained(tmp_path, [callback_class()])
    assert first.training_loss == second.training_loss
    assert weights(plain).equal(weights(measured)) and "energy_joules" in second.metrics


def test_a_training_survives_a_broken_meter(broken, callback_class, tmp_path):
    plain, first = trained(tmp_path, [])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        measured, second = trained(tmp_path, [callback_class()])
    ours = [str(w.message) for w in seen if "everywatt" in str(w.message)]
    assert len(ours) == 1 and "the sensor is on fire" in ours[0]
    assert first.training_loss == second.training_loss
    assert weights(plain).equal(weights(measured)) and "energy_joules" not in second.metrics


def test_a_second_training_is_a_second_run(card, callback_class, tmp_path):
    callback = callback_class()
    trainer = make_trainer(tmp_path, [callback], num_train_epochs=1)
    trainer.train()
    first = callback.run
    trainer.train()
    assert callback.run.path != first.path


def test_only_one_rank_of_a_host_measures(card, callback_class):
    from transformers import TrainerControl, TrainerState, TrainingArguments

    callback = callback_class()
    state = TrainerState(is_local_process_zero=False)
    callback.on_train_begin(TrainingArguments(use_cpu=True), state, TrainerControl())
    callback.on_train_end(TrainingArguments(use_cpu=True), state, TrainerControl())
    assert callback.run is None and state.log_history == []
