"""Remote write from the tape: every sample once, in order, whatever the receiver does."""

import json
import threading

import pytest
from agents import Receiver, write_segment
from webserver import certificate

from everywatt.core.errors import UsageError
from everywatt.fleet import segments
from everywatt.fleet.options import AgentOptions
from everywatt.fleet.sender import MOST_POSTS, Poster, Sender, Verdict
from everywatt.tape import places

pytest.importorskip("cramjam")


def sender(tmp_path, url, *, most=5000, start=1, waits=None, **options):
    made = AgentOptions(remote_write=url, state=tmp_path, instance="node7", **options)
    path = tmp_path / "remote-write.json"
    if not path.exists():
        data = {"url": url, "segment": start, "table": 0, "samples": {}}
        path.write_text(json.dumps(data))
    said: list[str] = []
    one = Sender(
        made, tmp_path, tmp_path / "tape", tmp_path / "none-9999.tape", say=said.append, most=most,
        sleep=(lambda seconds: waits.append(seconds) or len(waits) > 500) if waits is not None else lambda s: False,
    )  # fmt: skip
    one.said = said
    return one


def drain(one):
    while one.step():
        pass


def expected(series, ticks):
    return {
        f"d{i}": [(1_700_000_000_000 + tick * 1000, i + tick / 1000) for tick in range(ticks)] for i in range(series)
    }


def got(receiver):
    return {dict(labels)["device"]: samples for labels, samples in receiver.samples.items()}


def test_every_sample_goes_once_and_in_order_over_segments(tmp_path):
    for number in range(3):
        write_segment(tmp_path / "tape", number + 1, 40, 7, start=number * 40, seal=number < 2)
    with Receiver() as receiver:
        one = sender(tmp_path, receiver.url, most=50)
        drain(one)
        assert got(receiver) == expected(7, 120)
        assert one.counts == {"sent": 840, "dropped": 0, "rejected": 0}
        labels = dict(next(iter(receiver.samples)))
        assert (labels["instance"], labels["job"]) == ("node7", "everywatt")
        assert max(size for _, size in receiver.posts) <= 56, "batches are bounded"
        assert one.figures()["everywatt_remote_write_pending_bytes"] == {(): 0.0}
        one.close()


def test_a_receiver_that_is_down_for_an_hour_loses_nothing(tmp_path):
    # 3,600 s at full rate are written before the receiver answers again; time is the samples' own.
    write_segment(tmp_path / "tape", 1, 3600, 10)
    left = [140]

    def answer(series):
        left[0] -= 1
        return (503, {}, "down") if left[0] > 0 else (204, {}, "")

    waits: list[float] = []
    with Receiver(answer) as receiver:
        one = sender(tmp_path, receiver.url, waits=waits)
        drain(one)
        assert got(receiver) == expected(10, 3600)
        assert sum(waits) > 3600
        assert max(waits) <= 30, "it looks again within half a minute"
        assert one.said[0].endswith("503 down. They are kept.") and len(one.said) == 2, "said once, and once it is over"
        one.close()


def test_a_file_that_never_became_a_tape_is_passed_over(tmp_path):
    write_segment(tmp_path / "tape", 1, 5, 2)
    (tmp_path / "tape" / "host-0002.tape").write_bytes(b"")
    (tmp_path / "tape" / "host-0003.tape").write_bytes(b"no tape" * 1000)
    write_segment(tmp_path / "tape", 4, 5, 2, start=5)
    with Receiver() as receiver:
        one = sender(tmp_path, receiver.url)
        drain(one)
        assert got(receiver) == expected(2, 10)
        one.close()


def test_killed_and_started_again_it_goes_on_where_it_was(tmp_path):
    write_segment(tmp_path / "tape", 1, 300, 5)
    with Receiver() as receiver:
        first = sender(tmp_path, receiver.url, most=100)
        assert first.step() and first.step()
        del first
        second = sender(tmp_path, receiver.url, most=100)
        drain(second)
        assert got(receiver) == expected(5, 300)
        assert second.counts["sent"] == 1500
        second.close()


def test_one_batch_at_most_is_repeated_by_a_kill(tmp_path):
    write_segment(tmp_path / "tape", 1, 100, 5)
    with Receiver() as receiver:
        first = sender(tmp_path, receiver.url, most=50)
        first._keep = lambda: None  # killed after the answer and before the position was kept
        first.step()
        second = sender(tmp_path, receiver.url, most=50)
        drain(second)
        for name, samples in expected(5, 100).items():
            assert sorted(set(got(receiver)[name])) == samples, "what came twice is the same"
        assert len(receiver) == 500 + 50
        second.close()


def test_one_series_that_is_refused_does_not_stop_the_others(tmp_path):
    write_segment(tmp_path / "tape", 1, 20, 64)

    def answer(series):
        bad = any(labels["device"] == "d13" for labels, _ in series)
        return (400, {}, "label value is bad") if bad else (204, {}, "")

    with Receiver(answer) as receiver:
        one = sender(tmp_path, receiver.url)
        drain(one)
        everything = expected(64, 20)
        del everything["d13"]
        assert got(receiver) == everything
        assert one.counts == {"sent": 63 * 20, "dropped": 0, "rejected": 20}
        assert "rejected 20 samples: 400 label value is bad" in one.said[0]
        one.close()


def test_out_of_order_samples_are_given_up_and_those_after_them_go(tmp_path):
    write_segment(tmp_path / "tape", 1, 60, 3)
    edge = 1_700_000_000_000 + 30_000

    def answer(series):
        old = any(at < edge for _, samples in series for at, _ in samples)
        return (500, {}, "out of bounds") if old else (204, {}, "")

    with Receiver(answer) as receiver:
        one = sender(tmp_path, receiver.url)
        drain(one)
        assert one.counts == {"sent": 90, "dropped": 0, "rejected": 90}
        one.close()


def test_a_receiver_that_refuses_everything_is_not_asked_for_ever(tmp_path):
    write_segment(tmp_path / "tape", 1, 5, 1000)
    with Receiver(lambda series: (400, {}, "no")) as receiver:
        one = sender(tmp_path, receiver.url)
        drain(one)
        assert one.counts["rejected"] == 5000
        assert len(receiver.posts) < 5 * MOST_POSTS
        one.close()


def test_too_many_requests_are_waited_for_as_long_as_it_says(tmp_path):
    write_segment(tmp_path / "tape", 1, 5, 2)
    answers = iter([(429, {"Retry-After": "7"}, ""), (503, {"Retry-After": "99999"}, ""), (204, {}, "")])
    waits: list[float] = []
    with Receiver(lambda series: next(answers)) as receiver:
        one = sender(tmp_path, receiver.url, waits=waits)
        drain(one)
        assert waits == [7.0, 600.0]
        assert len(receiver) == 10
        one.close()


def test_ten_thousand_series(tmp_path):
    write_segment(tmp_path / "tape", 1, 3, 10_000)
    with Receiver() as receiver:
        one = sender(tmp_path, receiver.url)
        drain(one)
        assert len(receiver.samples) == 10_000
        assert got(receiver) == expected(10_000, 3)
        one.close()


def test_what_the_bound_on_the_disk_takes_is_counted(tmp_path):
    for number in range(4):
        write_segment(tmp_path / "tape", number + 1, 10, 5, start=number * 10)
    with Receiver() as receiver:
        one = sender(tmp_path, receiver.url, most=10)
        one.step()
        found = segments.segments(tmp_path / "tape")
        most = sum(map(segments.size_bytes, found[2:]))
        left = segments.prune(
            tmp_path / "tape", live=found[-1], most_bytes=most, oldest_utc_s=0, sent=one.needs(), drop=one.drop
        )
        assert left <= most and segments.segments(tmp_path / "tape") == found[2:]
        assert one.counts["dropped"] == 100 - one.counts["sent"]
        drain(one)
        assert one.counts["sent"] + one.counts["dropped"] == 200
        one.close()


def test_what_is_not_sent_outlives_its_age(tmp_path):
    paths = [write_segment(tmp_path / "tape", number + 1, 5, 5, start=number * 5) for number in range(3)]
    segments.prune(
        tmp_path / "tape", live=paths[2], most_bytes=10**9, oldest_utc_s=4e9, sent=paths[1], drop=lambda path: None
    )
    assert segments.segments(tmp_path / "tape") == paths[1:]


def test_space_that_a_killed_agent_held_is_counted_and_goes_with_its_segment(tmp_path):
    paths = [write_segment(tmp_path / "tape", number + 1, 5, 5, seal=bool(number)) for number in range(2)]
    before = segments.size_bytes(paths[0])
    spare = places.hold_space(paths[0], 200_000)
    assert segments.size_bytes(paths[0]) == before + 200_000
    segments.prune(
        tmp_path / "tape", live=paths[1], most_bytes=100_000, oldest_utc_s=0, sent=None, drop=lambda path: None
    )
    assert not paths[0].exists() and not spare.exists()


def test_a_new_receiver_gets_what_comes_from_now_on(tmp_path):
    write_segment(tmp_path / "tape", 1, 5, 5)
    with Receiver() as receiver:
        one = sender(tmp_path, receiver.url)
        drain(one)
        other = Sender(
            AgentOptions(remote_write=receiver.url + "/other", state=tmp_path), tmp_path, tmp_path / "tape",
            tmp_path / "tape" / "host-0002.tape", say=print,
        )  # fmt: skip
        assert other.queue.position == (2, 0)
        one.close()
        other.close()


def test_the_thread_sends_what_comes_and_ends(tmp_path):
    write_segment(tmp_path / "tape", 1, 5, 5)
    with Receiver() as receiver:
        one = sender(tmp_path, receiver.url)
        one.start()
        one.wake()
        one.close(drain_s=10.0)
        assert len(receiver) == 25
        assert not any(thread.name == "remote-write" for thread in threading.enumerate())


def test_a_name_that_is_not_found_and_a_port_where_nobody_is(tmp_path):
    series = [(b"", ((1, 1.0),))]
    for url in ("http://no-such-host.invalid/write", "http://127.0.0.1:9/write"):
        answer = Poster(AgentOptions(remote_write=url)).post(series)
        assert answer.verdict is Verdict.LATER and answer.why


def test_a_certificate_that_is_not_trusted_and_one_that_is(tmp_path):
    cert, key = certificate(tmp_path)
    with Receiver(tls=(cert, key)) as receiver:
        stranger = Poster(AgentOptions(remote_write=receiver.url))
        assert "not trusted" in stranger.post([]).why
        friend = Poster(AgentOptions(remote_write=receiver.url, remote_write_ca=cert))
        assert friend.post([]).verdict is Verdict.TAKEN
        friend.close()
    with pytest.raises(UsageError, match="cannot be used for TLS"):
        Poster(AgentOptions(remote_write="https://x/", remote_write_ca=tmp_path / "none.pem"))
