"""A small network trained with torch: what each epoch costs, and what a thousand samples cost."""

import torch

import everywatt

SAMPLES, EPOCHS = 2048, 3


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 64)
    y = x[:, :4].sum(1, keepdim=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimiser = torch.optim.Adam(model.parameters())

    with everywatt.Meter("torch-mlp") as meter:
        for epoch in range(EPOCHS):
            # With cuda=True the edges are where the GPU is; without a GPU the span is a plain one.
            with meter.span("epoch", number=epoch, cuda=True):
                for batch in torch.randperm(SAMPLES).split(64):
                    loss = torch.nn.functional.mse_loss(model(x[batch]), y[batch])
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
            meter.log(loss=loss.item())

    for span in meter.run.spans:
        if span.name == "epoch":
            print(f"epoch {span.attributes['number']}:", meter.run.energy(span=span))
    print("a thousand samples:", meter.run.energy(span="epoch") / (SAMPLES * EPOCHS / 1000))
    print("all:", meter.energy)


if __name__ == "__main__":
    main()
