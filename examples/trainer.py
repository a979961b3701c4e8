"""The Hugging Face Trainer on a tiny model with random weights; nothing is downloaded."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from everywatt.integrations.transformers import EverywattCallback


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    words = torch.randint(0, 64, (128, 12))
    data = [{"input_ids": row, "labels": int(row.sum()) % 2} for row in words]

    callback = EverywattCallback(name="trainer")
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=4,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        model = BertForSequenceClassification(config)
        trainer = Trainer(model, args, train_dataset=data, eval_dataset=data[:32], callbacks=[callback])
        metrics = trainer.train().metrics

    for name in ("epoch", "evaluation"):
        print(f"{name}:", callback.run.energy(span=name))
    print("in the metrics:", metrics["energy_joules"], "J")
    print("all:", callback.energy)


if __name__ == "__main__":
    main()
