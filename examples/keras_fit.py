"""Keras: the callback puts the joules of each epoch into the history."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

from everywatt.integrations.keras import EverywattCallback


def main() -> None:
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(1024, 16)).astype("float32")
    y = x[:, :2].sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")

    callback = EverywattCallback(name="keras-fit")
    history = model.fit(x, y, epochs=3, batch_size=64, validation_split=0.2, verbose=0, callbacks=[callback])

    for loss, joules in zip(history.history["loss"], history.history["energy_joules"], strict=True):
        print(f"loss {loss:.4f} for {joules:.2f} J")
    print("all:", callback.energy)


if __name__ == "__main__":
    main()
