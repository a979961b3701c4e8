"""Who is charged for idle energy."""

import numpy as np
import pytest

from everywatt.core.errors import UsageError
from everywatt.ledger.owners import check_policy
from everywatt.ledger.split.sharing import allocated_cpus, charge_idle

# Owners 0 to 3 are idle, meter, other and nobody.
USE = np.array([0.0, 1.0, 2.0, 4.0, 5.0])
NOTHING = np.zeros(5)


def test_separate_leaves_it_with_idle():
    assert charge_idle("separate", 100.0, USE, NOTHING).tolist() == [100.0, 0.0, 0.0, 0.0, 0.0]


def test_by_use_goes_to_all_who_used_it_but_not_to_nobody():
    assert charge_idle("by-use", 80.0, USE, NOTHING).tolist() == [0.0, 10.0, 20.0, 0.0, 50.0]
    assert charge_idle("by-use", 80.0, NOTHING, NOTHING)[0] == 80.0


def test_by_allocation_leaves_idle_what_was_kept_for_nobody():
    share = np.array([0.0, 0.0, 0.0, 0.0, 0.25])
    assert charge_idle("by-allocation", 80.0, USE, share).tolist() == [60.0, 0.0, 0.0, 0.0, 20.0]
    assert charge_idle("by-allocation", 80.0, USE, share * 8).tolist() == [0.0, 0.0, 0.0, 0.0, 80.0]


def test_cpus_are_shared_by_limit_and_the_rest_by_use():
    group = np.array([-1, -1, -1, -1, 0, 0, -1])
    use = np.array([0.0, 1.0, 0.0, 0.0, 3.0, 1.0, 3.0])
    assert allocated_cpus(group, np.array([1.0]), use, 4.0) == pytest.approx([0, 0.1875, 0, 0, 0.1875, 0.0625, 0.5625])
    assert allocated_cpus(group, np.array([16.0]), use, 4.0)[4:6] == pytest.approx([0.75, 0.25])
    assert allocated_cpus(group, np.array([1.0]), np.zeros(7), 4.0)[4:6] == pytest.approx([0.125, 0.125])


def test_other_names_are_refused():
    with pytest.raises(UsageError, match="by-allocation"):
        check_policy("fair")
