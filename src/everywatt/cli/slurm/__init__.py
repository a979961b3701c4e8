"""`everywatt slurm WHAT`: jobs of a cluster; the module of a verb is imported when it is called."""

from __future__ import annotations

from everywatt.cli.common.group import parts

PARTS: dict[str, tuple[str, str]] = {
    "jobs": ("everywatt.cli.slurm.jobs:jobs", "List jobs with their energy, or add them up."),
    "job": ("everywatt.cli.slurm.jobs:job", "Show one job in full, and what it did not use of its allocation."),
    "top": ("everywatt.cli.slurm.jobs:top", "List the jobs that run now, by power."),
    "summary": ("everywatt.cli.slurm.jobs:summary", "Print a few lines about your jobs, for a login message."),
    "report": ("everywatt.cli.slurm.jobs:report", "Report a month of a site as a page or a table."),
    "daily": (
        "everywatt.cli.slurm.daily:daily",
        "Do the daily work of a site: compact, join sacct, carbon, users' folders.",
    ),
    "forget": ("everywatt.cli.slurm.records:forget", "Delete the records of a user's jobs."),
    "validate": ("everywatt.cli.slurm.records:validate", "List jobs whose records are incomplete."),
    "export": ("everywatt.cli.slurm.records:export", "Write jobs as the tables and trees of Lab-IA."),
    "import": ("everywatt.cli.slurm.records:import_", "Read a tree of jobs of Lab-IA into the store."),
    "wall": ("everywatt.cli.slurm.wall:wall", "Add the energy measured by wattmeters to jobs."),
    "annotate": ("everywatt.cli.slurm.daily:annotate", "Write the energy of jobs to Slurm's accounting."),
    "reconcile": ("everywatt.cli.slurm.wall:reconcile", "Compare chips, node sensors, wall and Slurm by node and day."),
    "install": ("everywatt.cli.slurm.install:install", "Write the Slurm hooks and systemd units of a node."),
    "check": ("everywatt.cli.slurm.install:check", "Check that nodes have what they need to record their jobs."),
    "node": ("everywatt.cli.slurm.node", "Record the jobs of this node into the store."),
}

command = parts("slurm", "Measure the energy of every job and user of a Slurm cluster.", PARTS)
