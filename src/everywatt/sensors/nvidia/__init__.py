"""NVIDIA cards: NVML, and nvidia-smi where there is no NVML."""
