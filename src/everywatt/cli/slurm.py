"""`everywatt slurm WHAT`: jobs of a cluster, each a module that is imported when it is called."""

from __future__ import annotations

from everywatt.cli.parts import parts

PARTS: dict[str, tuple[str, str]] = {
    "jobs": ("everywatt.cli.slurm_jobs", "List jobs with what each cost, or add them up."),
    "job": ("everywatt.cli.slurm_job", "Show one job in full, and what of its allocation it did not use."),
    "summary": ("everywatt.cli.slurm_summary", "A few lines of your jobs, as a message after login."),
    "report": ("everywatt.cli.slurm_report", "A month of a site as a page or a table."),
    "daily": ("everywatt.cli.slurm_daily", "The daily work of a site: compact, join sacct, carbon, users' folders."),
    "validate": ("everywatt.cli.slurm_validate", "List jobs whose record is not whole."),
    "export": ("everywatt.cli.slurm_export", "Write jobs as the tables and trees of Lab-IA."),
    "import": ("everywatt.cli.slurm_import", "Read a tree of jobs of Lab-IA into the store."),
    "wall": ("everywatt.cli.slurm_wall", "Join what wattmeters saw to the jobs of their nodes."),
    "install": ("everywatt.cli.slurm_install", "Write the hooks of Slurm and the units of a node."),
    "node": ("everywatt.cli.slurm_node", "Record the jobs of this node, and put them into the store."),
}

command = parts("slurm", "The energy of every job of a Slurm cluster, and of every user.", PARTS)
