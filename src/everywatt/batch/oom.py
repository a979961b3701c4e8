"""Out of memory, recognised by what programs print and how they end."""

from __future__ import annotations

import re

KILLED = 137  # 128 + SIGKILL
_GPU = {
    "torch": r"(?:CUDA|HIP|XPU|MPS) (?:error: )?out of memory|torch(?:\.cuda)?\.OutOfMemoryError",
    "tensorflow": r"OOM when allocating tensor|ResourceExhaustedError|failed to allocate .{0,60} from device",
    "jax": r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)|XlaRuntimeError: RESOURCE_EXHAUSTED",
    "cuda": (
        r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
        r"|CUFFT_ALLOC_FAILED|cudaMalloc\w*\b.{0,80}out of memory|OutOfMemory.{0,40}(?:cuda|gpu|device)"
    ),
}
_HOST = r"^MemoryError\b|std::bad_alloc|[Cc]annot allocate memory|DefaultCPUAllocator: can't allocate|ArrayMemoryError"
_PATTERNS = [(name, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for name, pattern in _GPU.items()]
_HOST_PATTERN = re.compile(_HOST, re.MULTILINE)


def out_of_memory(exit_code: int, text: str, *, oom_kills: int = 0) -> str | None:
    """Whose memory ran out, as `gpu (torch)` or `host`; None where nothing says that it did.

    `text` is the end of what the program printed, `oom_kills` how many processes the kernel ended for want of memory
    while it ran. A program that succeeded has got over it.
    """
    if exit_code == 0:
        return None
    for name, pattern in _PATTERNS:
        if pattern.search(text):
            return f"gpu ({name})"
    if _HOST_PATTERN.search(text) or (exit_code == KILLED and oom_kills > 0):
        return "host"
    return None
