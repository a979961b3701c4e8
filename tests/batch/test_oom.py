"""Out of memory in the words of the libraries themselves, and what only looks like it."""

import pytest

from everywatt.batch.runner import out_of_memory


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "gpu (torch)"),
        ("RuntimeError: CUDA error: out of memory", "gpu (torch)"),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[8192]", "gpu (tensorflow)"),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying", "gpu (jax)"),
        ("CUDA driver: CUDA_ERROR_OUT_OF_MEMORY", "gpu (cuda)"),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", "gpu (cuda)"),
        ("ggml: cudaMalloc failed: out of memory", "gpu (cuda)"),
        ("Traceback\nMemoryError\n", "host"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "host"),
        ("RuntimeError: shapes do not match", None),
        ("no MemoryError here", None),
    ],
)
def test_messages(text, whose):
    assert out_of_memory(1, text) == whose


def test_a_program_that_succeeded_has_got_over_it():
    assert out_of_memory(0, "CUDA out of memory. Retrying with half the batch") is None


def test_sigkill_is_memory_only_where_the_kernel_says_so():
    assert out_of_memory(137, "") is None
    assert out_of_memory(137, "", oom_kills=1) == "host"
    assert out_of_memory(1, "", oom_kills=1) is None
