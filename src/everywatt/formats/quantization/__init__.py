"""Result files of energy_aware_quantization."""
