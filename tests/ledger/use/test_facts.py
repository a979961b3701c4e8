"""What is known of a process, as rows of the table tell it."""

from everywatt.ledger.use.facts import ProcessFacts


def test_a_process_that_became_somebody_else_has_not_the_name_of_before():
    """`su` starts as root and becomes a user whom the host may have no name for."""
    facts = ProcessFacts(7, 1)
    facts.take({"pid": 7, "name": "su", "uid": 0, "user": "root"})
    facts.take({"pid": 7, "cpu_s": 0.5})
    assert (facts.uid, facts.user) == (0, "root")
    facts.take({"pid": 7, "uid": 54321})
    assert (facts.uid, facts.user) == (54321, None)
    facts.take({"pid": 7, "uid": 65534, "user": "nobody"})
    assert (facts.uid, facts.user) == (65534, "nobody")
