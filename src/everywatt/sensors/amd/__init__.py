"""AMD cards: amdsmi and rocm-smi."""
