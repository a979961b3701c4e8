"""A hundred spans at once in a real recording of this machine, whatever measures it."""

import threading

import pytest

import everywatt
from everywatt.ledger.owners import OwnerKind


def test_a_hundred_threads_at_once_add_up_to_the_device(tmp_path):
    together, over = threading.Barrier(101), threading.Event()

    def query(meter, number):
        with meter.span("query", number=number):
            together.wait(30)
            over.wait(30)

    with everywatt.Meter("server", home=tmp_path) as meter:
        threads = [threading.Thread(target=query, args=(meter, number)) for number in range(100)]
        for thread in threads:
            thread.start()
        together.wait(30)
        threading.Event().wait(1.0)
        over.set()
        for thread in threads:
            thread.join()
    ledger = meter.run.ledger(by="span")
    assert ledger.checks.hold
    spans = [entry for entry in ledger.entries if entry.owner.kind is OwnerKind.SPAN]
    assert len(spans) == 100
    assert sum(entry.microjoules for entry in ledger.entries) == round(meter.energy.joules * 1e6)
    assert all(entry.energy.low <= entry.energy.joules <= entry.energy.high for entry in spans)
    # Each was open for the second that all shared; they differ by when they began and ended.
    amounts = [entry.microjoules for entry in spans]
    assert min(amounts) >= 0.5 * sum(amounts) / 100
    with pytest.raises(KeyError):
        ledger.entry("server")
