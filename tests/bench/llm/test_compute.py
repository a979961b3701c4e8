import pytest

from everywatt.bench.llm.compute import Facts, compute_figures, parse_count, parse_prices, peak_of
from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError

ENERGY = Energy(100.0, Budget((Term("gain", "g", 10.0),)), "gpu", "counter")


def test_flops_mfu_and_the_price_of_tokens_by_hand():
    facts = Facts(7e9, "given", 312e12, "given", (0.5, 1.5), "USD")
    found = compute_figures(facts, 1000, 500, 2.0, ENERGY)
    assert found["flops"].value == pytest.approx(2 * 7e9 * 1500)
    assert found["mfu"].value == pytest.approx(2.1e13 / 2 / 312e12)
    joule = found["flops_per_joule"]
    assert (joule.value, joule.low, joule.high) == pytest.approx((2.1e11, 2.1e13 / 110, 2.1e13 / 90))
    assert found["token_cost"].value == pytest.approx((1000 * 0.5 + 500 * 1.5) / 1e6)
    assert found["token_cost"].unit == "USD"


def test_what_is_not_known_is_refused_or_not_there():
    assert compute_figures(Facts(), 10, 10, 1.0, ENERGY) == {}
    found = compute_figures(Facts(7e9, "given"), 10, None, 1.0, ENERGY)
    assert found["flops"].refused == "token counts are unknown"
    assert "--peak-flops" in found["mfu"].refused
    found = compute_figures(Facts(7e9, "given"), 10, 10, 1.0, Energy.refuse("nothing was measured"))
    assert found["flops"].value == 2 * 7e9 * 20
    assert found["flops_per_joule"].refused == "nothing was measured"


def test_facts_come_back_from_a_record():
    facts = Facts(135e6, "the server", None, "", (0.1, 0.2), "EUR")
    assert Facts.from_dict(facts.to_dict()) == facts
    assert Facts.from_dict({}) == Facts()


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("Tesla V100-SXM2-16GB", 125),
    ],
)
def test_the_peak_of_a_card_by_its_name(name, tflops):
    assert peak_of([name])[0] == tflops * 1e12


def test_no_peak_is_guessed():
    assert peak_of(["NVIDIA GeForce GT 710"]) is None
    assert peak_of(["NVIDIA L40"]) is None
    assert peak_of(["NVIDIA L4", "NVIDIA L4"]) is None
    assert peak_of([]) is None


def test_counts_and_prices():
    assert parse_count("312T") == 312e12 and parse_count("1e9") == 1e9
    assert parse_prices("0.15, 0.6 USD") == (0.15, 0.6, "USD")
    for wrong in ("seven", "0", "-3M", ""):
        with pytest.raises(UsageError):
            parse_count(wrong)
    with pytest.raises(UsageError):
        parse_prices("0.15")
