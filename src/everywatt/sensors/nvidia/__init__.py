"""NVIDIA cards: NVML, and nvidia-smi where there is no NVML.

Reading order: `nvml` (the sensor: probe and groups, scopes of superchips), `nvml_groups` (energy, power and state of a
card), `nvml_device` (a card, its handle and its samples), `nvml_processes`, `nvml_api` (calls and errors of the
driver). `gpu_known` has what is known of models, `gpu_select` reads CUDA_VISIBLE_DEVICES. `nvidia_smi` is the other
sensor, `smi_csv` its parser; its child is `sensors.child`.
"""
