"""Who was on a GPU from when to when, out of rows of `nvml.processes`."""

from everywatt.core.clocks import NS
from everywatt.ledger.use.usage import GpuUse


def row(pid, sm, **more):
    return {"gpu": 0, "pid": pid, "sm": sm, "memory_bytes": 1, "gpu_instance": None, "compute_instance": None, **more}


def sms(use):
    """(from s, to s, {pid: sm}) of each stretch."""
    edges = [edge / NS for edge in use.edges[0]]
    kept = [{tenant.pid: tenant.sm for tenant in tenants} for tenants in use.tenants[0]]
    return list(zip(edges[:-1], edges[1:], kept, strict=True))


def feed(use, at_s, *rows):
    use.feed(int(at_s * NS), rows)


def test_a_stretch_starts_where_the_gpu_was_last_looked_at():
    use = GpuUse(1.0)
    feed(use, 10.0, row(1, 60.0))
    feed(use, 11.4, row(2, 30.0, since_ns=int(11.2 * NS)))
    feed(use, 11.6, row(1, 60.0, sample_us=2, since_ns=int(11.4 * NS)))
    feed(use, 13.0, row(2, 30.0, gone=True, since_ns=int(12.8 * NS)))
    assert sms(use) == [
        (9.0, 10.0, {1: 60.0}),
        (10.0, 11.2, {1: 60.0}),
        (11.2, 11.4, {1: 60.0, 2: 15.0}),  # it came in this stretch: half of it, as far as can be told
        (11.4, 11.6, {1: 60.0, 2: 30.0}),
        (11.6, 12.8, {1: 60.0, 2: 30.0}),
        (12.8, 13.0, {1: 60.0, 2: 15.0}),
    ]


def test_rows_that_do_not_say_are_of_the_period_before():
    use = GpuUse(1.0)
    feed(use, 10.0, row(1, 60.0))
    feed(use, 15.0, row(2, 30.0))
    assert sms(use) == [(9.0, 10.0, {1: 60.0}), (10.0, 14.0, {1: 60.0}), (14.0, 15.0, {1: 60.0, 2: 30.0})]


def test_a_first_tenant_came_after_the_last_look():
    use = GpuUse(1.0)
    feed(use, 10.0, row(1, 60.0, since_ns=int(9.8 * NS)))
    feed(use, 10.2, row(1, 60.0, sample_us=1, since_ns=int(10.0 * NS)))
    assert sms(use) == [(9.8, 10.0, {1: 30.0}), (10.0, 10.2, {1: 60.0})]
