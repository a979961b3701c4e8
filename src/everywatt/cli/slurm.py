"""`everywatt slurm WHAT`: jobs of a cluster, each a module that is imported when it is called."""

from __future__ import annotations

from everywatt.cli.parts import parts

PARTS: dict[str, tuple[str, str]] = {
    "jobs": ("everywatt.cli.slurm_jobs", "List jobs with what each cost, or add them up."),
    "install": ("everywatt.cli.slurm_install", "Write the hooks of Slurm and the units of a node."),
    "node": ("everywatt.cli.slurm_node", "Record the jobs of this node, and put them into the store."),
}

command = parts("slurm", "The energy of every job of a Slurm cluster, and of every user.", PARTS)
