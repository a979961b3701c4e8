"""MLflow with a local store: the joules of a run beside its other metrics."""

import os
import tempfile
from pathlib import Path

# MLflow 3 prefers a database; a folder of files needs no server and no driver, and has to be asked for.
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

import mlflow

import everywatt
from everywatt.integrations.mlflow import log_run


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri((Path(folder) / "store").as_uri())
        with mlflow.start_run() as active:
            with everywatt.measure("mlflow") as measured:
                total = sum(number * number for number in range(3_000_000))
            mlflow.log_metric("digits", len(str(total)))
            log_run(measured)
        stored = mlflow.MlflowClient().get_run(active.info.run_id)
        for name, value in sorted(stored.data.metrics.items()):
            print(f"{name} = {value:.3f}")
        print("all:", stored.data.tags["everywatt.energy"])


if __name__ == "__main__":
    main()
