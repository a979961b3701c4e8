"""Lightning: fit and test, each a run of its own."""

import tempfile

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from everywatt.integrations.lightning import EverywattCallback


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def _loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = self._loss(batch)
        self.log("loss", loss)
        return loss

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("test_loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
    callback = EverywattCallback()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=3,
            accelerator="cpu",
            callbacks=[callback],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Line()
        trainer.fit(model, loader)
        print("epochs:", callback.run.energy(span="epoch"))
        print("fit:", callback.energy)
        trainer.test(model, loader, verbose=False)
        print("test:", callback.energy)


if __name__ == "__main__":
    main()
