"""Where a job's output is, on a real cluster: the line about its energy goes there."""

from everywatt.slurm.node.scontrol import show_jobs


def test_the_output_of_a_job_is_found_where_its_script_runs(slurm):
    conf = slurm.environ["SLURM_CONF"]
    job = slurm.sbatch("#!/bin/sh\ntrue\n", "--nodelist=node1", "--comment=mine")
    slurm.wait(job)
    assert show_jobs([job], "node1", conf)[job]["stdout"] == f"{slurm.folder}/out-{job}"
    assert "stdout" not in show_jobs([job], "node2", conf)[job]
