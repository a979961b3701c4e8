"""everywatt inside other people's tools. Each adapter imports its library when it is used, not before.

from everywatt.integrations.transformers import EverywattCallback   # Hugging Face Trainer
from everywatt.integrations.lightning import EverywattCallback      # Lightning
from everywatt.integrations.keras import EverywattCallback          # Keras 3
from everywatt.integrations.mlflow import log_run                   # MLflow
from everywatt.integrations.wandb import log_run                    # Weights & Biases
"""
