import os

import pytest

from everywatt.sensors import procfs

TICK = procfs.TICKS_PER_S


def test_busy_leaves_out_guests_and_steal():
    line = b"cpu  100 10 30 500 20 4 6 50 70 5\ncpu0 1 2 3 4\n"
    times = procfs.parse_host_times(line)
    # guest (70) and guest_nice (5) are inside user and nice already; steal is neither busy nor idle
    assert times == pytest.approx((150 / TICK, 520 / TICK, 50 / TICK))


def test_an_old_kernels_short_line_is_read():
    assert procfs.parse_host_times(b"cpu  100 10 30 500\n") == pytest.approx((140 / TICK, 500 / TICK, 0))


@pytest.mark.parametrize("data", [b"", b"intr 1 2 3 4 5", b"cpu  a b c d e", b"cpu  1 2"])
def test_garbage_is_an_error_and_not_zero(data):
    with pytest.raises(ValueError):
        procfs.parse_host_times(data)


def test_memory_in_use():
    sizes = procfs.parse_meminfo(b"MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nHugePages_Total: 3\n")
    assert sizes == {"MemTotal": 1024000, "MemFree": 102400, "MemAvailable": 614400, "HugePages_Total": 3}
    assert procfs.memory_used_bytes(sizes) == 400 * 1024
    assert procfs.memory_used_bytes({"MemTotal": 1000, "MemFree": 100, "Cached": 200, "Buffers": 50}) == 650
    assert procfs.memory_used_bytes({}) is None


def test_a_process_name_may_hold_anything():
    data = b"42 (a) b (c) S 7 42 42 0 -1 0 0 0 0 0 150 50 30 20 20 0 9 0 12345 1000 25 999 0 0\n"
    stat = procfs.parse_process_stat(data)
    assert (stat.pid, stat.name, stat.state, stat.ppid, stat.threads) == (42, "a) b (c", "S", 7, 9)
    assert (stat.cpu_s, stat.children_cpu_s) == (200 / TICK, 50 / TICK)
    assert (stat.start, stat.rss_bytes) == (12345, 25 * procfs.PAGE_BYTES)


@pytest.mark.parametrize("data", [b"", b"42", b"42 (x) S 1 2", b"42 )x( S 1 2"])
def test_a_torn_stat_is_an_error(data):
    with pytest.raises(ValueError):
        procfs.parse_process_stat(data)


def test_this_very_process():
    stat = procfs.parse_process_stat(procfs.slurp(f"/proc/{os.getpid()}/stat"))
    assert (stat.pid, stat.ppid) == (os.getpid(), os.getppid())
    assert stat.cpu_s <= sum(os.times()[:2]) + 0.05
    assert procfs.parse_uid(procfs.slurp(f"/proc/{os.getpid()}/status")) == os.getuid()


def test_a_command_line_is_bounded_and_printable():
    assert procfs.parse_cmdline(b"python\0-c\0a\x1b[31m\nb\0", 50) == "python -c a [31m b"
    assert procfs.parse_cmdline(b"x" * 100, 10) == "x" * 9 + "…"


def test_hidepid_is_found_in_the_mounts():
    assert procfs.hidepid(b"proc /proc proc rw,nosuid,hidepid=2,gid=5 0 0\n") == "2"
    assert procfs.hidepid(b"proc /proc proc rw,hidepid=invisible 0 0\n") == "invisible"
    assert procfs.hidepid(b"proc /proc proc rw,relatime 0 0\n") is None


def test_a_long_file_is_read_whole(tmp_path):
    (tmp_path / "children").write_bytes(b"12345 " * 20_000)
    assert len(procfs.slurp(tmp_path / "children")) == 120_000
