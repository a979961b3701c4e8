"""Items over devices: every item a span with its device, its attempts and its joules; the largest size that fits."""
