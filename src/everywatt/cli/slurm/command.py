"""`everywatt slurm WHAT`: jobs of a cluster, each a module that is imported when it is called."""

from __future__ import annotations

from everywatt.cli.common.parts import parts

PARTS: dict[str, tuple[str, str]] = {
    "jobs": ("everywatt.cli.slurm.jobs", "List jobs with what each cost, or add them up."),
    "job": ("everywatt.cli.slurm.job", "Show one job in full, and what of its allocation it did not use."),
    "top": ("everywatt.cli.slurm.top", "List the jobs that run now, by power."),
    "summary": ("everywatt.cli.slurm.summary", "A few lines of your jobs, as a message after login."),
    "report": ("everywatt.cli.slurm.report", "A month of a site as a page or a table."),
    "daily": ("everywatt.cli.slurm.daily", "The daily work of a site: compact, join sacct, carbon, users' folders."),
    "validate": ("everywatt.cli.slurm.validate", "List jobs whose record is not whole."),
    "export": ("everywatt.cli.slurm.export", "Write jobs as the tables and trees of Lab-IA."),
    "import": ("everywatt.cli.slurm.import_", "Read a tree of jobs of Lab-IA into the store."),
    "wall": ("everywatt.cli.slurm.wall", "Join what wattmeters saw to the jobs of their nodes."),
    "install": ("everywatt.cli.slurm.install", "Write the hooks of Slurm and the units of a node."),
    "check": ("everywatt.cli.slurm.check", "Check what nodes need so that their jobs are recorded."),
    "node": ("everywatt.cli.slurm.node", "Record the jobs of this node, and put them into the store."),
}

command = parts("slurm", "The energy of every job of a Slurm cluster, and of every user.", PARTS)
