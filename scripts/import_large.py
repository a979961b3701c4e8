"""Import the large libraries that programs started by the tests use, so that Python has compiled them before.

Several tests that start at once would each compile torch, 5 s of CPU time. What is not installed is left out.
"""

from contextlib import suppress
from importlib import import_module

LARGE = (
    *("scipy.stats", "sklearn.ensemble", "altair", "pandas", "polars", "torch", "torch._dynamo"),
    *("transformers.models.auto.modeling_auto", "transformers.models.bert.modeling_bert", "transformers.trainer"),
    *("lightning", "keras", "mlflow", "wandb", "playwright.sync_api"),
)

for name in LARGE:
    with suppress(Exception):  # whatever is wrong with it is reported by the tests that need it
        import_module(name)
