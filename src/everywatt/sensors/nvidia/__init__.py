"""NVIDIA cards: NVML, and nvidia-smi where there is no NVML.

Reading order: `nvml` (the sensor: probe and groups), `nvml_groups` (energy, power and state of a card),
`nvml_device` (a card and its handle), `nvml_api` (calls and errors of the driver); then, each used by one of these,
`nvml_scopes` (modules), `nvml_samples` (utilisation), `nvml_gpm`, `nvml_processes`. `gpu_known` has what is known of
models, `gpu_select` reads CUDA_VISIBLE_DEVICES. `nvidia_smi` is the other sensor, `smi_csv` its parser.
"""
