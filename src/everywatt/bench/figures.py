"""From trials to figures: the mean of each candidate with its interval, its ratio to the first one, and conditions."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from everywatt.bench.trials import NOT_EXECUTABLE, NOT_FOUND, Candidate, Trial
from everywatt.bench.verdict import Comparison, Sample, Verdict, compare, interval, of_candidate, outliers
from everywatt.core.energy import Energy, sum_energies
from everywatt.core.errors import ScopeError, UsageError
from everywatt.core.format import format_count, format_rounded
from everywatt.core.jsonio import ToDict
from everywatt.core.tables import Cell, Quantity
from everywatt.core.units import parse_bytes, parse_duration_s, parse_energy_j, parse_power_w

FEWEST = 3  # trials of each candidate before a question can be answered
MOST_OF_ONE = 10  # trials of a candidate that there is nothing to compare with
MOST_PLACES = 8  # numbers of trials in one sentence
WHY = {NOT_EXECUTABLE: "{} cannot be executed", NOT_FOUND: "there is no {}"}
COLUMNS = (
    "label=candidate.label command=candidate.text trials=trials_done failures energy_j=energy.value "
    "energy_low_j=energy.low energy_high_j=energy.high net_j=net.value net_low_j=net.low net_high_j=net.high "
    "ratio=gross.ratio ratio_low=gross.low ratio_high=gross.high ratio_net=above_idle.ratio "
    "ratio_net_low=above_idle.low ratio_net_high=above_idle.high seconds=seconds.value power_w max_rss_bytes "
    "energy_delay_js=edp_js verdict"
)


@dataclass(frozen=True, slots=True)
class Mean(ToDict):
    """A mean over trials with its 95 % interval; the ends are infinite with fewer than three trials."""

    value: float
    low: float
    high: float
    sd: float
    n: int

    def quantity(self, unit: str) -> Quantity:
        """The mean with its interval, for a table; without one where the ends are infinite."""
        if not math.isfinite(self.low):
            return Quantity(self.value, unit)
        return Quantity(self.value, unit, self.value - self.low, self.high - self.value)

    @property
    def time(self) -> Quantity | None:
        """The mean of seconds with their standard deviation, for a table; None where no trial ended."""
        sd = self.sd if math.isfinite(self.sd) else 0.0
        return Quantity(self.value, "s", min(sd, self.value), sd) if math.isfinite(self.value) else None

    def amount(self) -> Mean:
        """The mean of something that is not below zero, however trials scatter: energy, time; not energy above idle."""
        return replace(self, low=0.0) if -math.inf < self.low < 0 else self


@dataclass(frozen=True, slots=True)
class Figures(ToDict):
    """One candidate: its means, its trials, and its comparison with the first candidate."""

    JSON = (
        "label=candidate.label command=candidate.text params=candidate.params trials energy energy_net=net seconds "
        "cpu_s power_w max_rss_bytes energy_delay_js=edp_js failures outliers verdict notes ratio=gross.ends "
        "comparison_gross=gross comparison_net=above_idle comparison_time=time comparison_cpu=cpu"
    )

    candidate: Candidate
    trials: tuple[Trial, ...]
    energy: Mean | None
    net: Mean | None
    seconds: Mean
    power_w: float | None
    max_rss_bytes: int | None
    edp_js: float | None
    failures: int
    outliers: tuple[int, ...] = ()
    gross: Comparison | None = None
    above_idle: Comparison | None = None
    time: Comparison | None = None
    verdict: str = ""
    notes: tuple[str, ...] = ()
    cpu_s: Mean | None = None
    cpu: Comparison | None = None

    @property
    def modelled(self) -> bool:
        """Whether its energies are estimated: CPU time, which the kernel counts, is then what is certain."""
        known = [trial.energy for trial in self.trials if trial.energy is not None and trial.energy.joules is not None]
        return bool(known) and all(energy.pedigree == "modelled" for energy in known)

    @property
    def decisive(self) -> Comparison | None:
        """The comparison that decides: of energy, or of CPU time where energy is modelled from it."""
        return self.cpu if self.modelled and self.cpu is not None else self.gross

    @property
    def never_began(self) -> bool:
        """Whether none of its trials could start its command."""
        return bool(self.trials) and all(t.exit_code in (NOT_FOUND, NOT_EXECUTABLE) for t in self.trials)

    @property
    def trials_done(self) -> int:
        return len(self.trials)

    @property
    def trial_count(self) -> str:
        """How many trials there are, for a table: `5 (1 failed)`."""
        return str(len(self.trials)) + (f" ({self.failures} failed)" if self.failures else "")

    @property
    def endings(self) -> str:
        """How its trials ended that did not end well: `ended with 9`; empty where all did."""
        codes = sorted({trial.exit_code for trial in self.trials if trial.failed})
        words = [
            f"{code} ({WHY[code].format(self.candidate.words[0])})" if code in WHY else str(code) for code in codes
        ]
        return f"ended with {' and '.join(words)}" if words else ""

    @property
    def outlier_line(self) -> str:
        """A sentence about trials that lie far off: `trial 1 is an outlier; kept`; empty where none does."""
        if len(self.outliers) > MOST_PLACES:
            return f"{len(self.outliers)} of {len(self.trials)} trials are outliers; kept"
        places = ", ".join(str(place + 1) for place in self.outliers)
        if len(self.outliers) == 1:
            return f"trial {places} is an outlier; kept"
        return f"trials {places} are outliers; kept" if places else ""

    def verdicts(self, first: str) -> list[str]:
        """What its trials say of it beside the candidate `first`: of CPU time where energy is modelled, and of energy;
        nothing for that candidate itself."""
        label, lines = self.candidate.label, []
        if not self.verdict:
            return []
        if self.modelled and self.cpu is not None and not self.failures:
            said = self.cpu.text(label, first, "CPU time")
            lines.append(said if said.startswith(f"{label} ") else f"{label}: CPU time: {said}")
        certain = not self.modelled or self.verdict.startswith("no verdict")
        return [*lines, of_candidate(label, self.verdict) + ("" if certain else " (modelled)")]

    @property
    def half_share(self) -> float:
        """Half of the energy's interval as a share of it: what everything that follows from the energy may be off."""
        if self.energy is None or not self.energy.value:
            return 0.0
        half = (self.energy.high - self.energy.low) / 2
        if not math.isfinite(half):  # too few trials: what their measurement leaves open is known all the same
            known = [t.energy for t in self.trials if t.energy is not None and t.energy.joules is not None]
            half = sum(sum_energies(known).sides()) / 2 / len(known)
        return half / abs(self.energy.value)

    def rounded(self, value: float | None, unit: str) -> str | None:
        """A figure that follows from the energy, with the digits that the interval of the energy leaves it."""
        if value is None or self.energy is None:
            return None
        return format_rounded(unit, self.half_share * abs(value), value)

    @property
    def energy_cell(self) -> Cell:
        """The mean energy for a table; without its interval where there are too few trials for one."""
        if self.energy is None or math.isfinite(self.energy.low):
            return quantity(self.energy, "J")
        return self.rounded(self.energy.value, "J")

    def ratio_beside(self, first: Figures) -> Cell:
        """The ratio to the first candidate (1 for the first itself), or None if it is unknown."""
        if self.gross is not None:
            return self.gross.cell
        return 1 if self is first and self.energy is not None else None


def quantity(mean: Mean | None, unit: str) -> Quantity | None:
    """A mean over trials as a cell."""
    return None if mean is None else mean.quantity(unit)


def figures(
    candidates: Sequence[Candidate],
    trials: Sequence[Trial],
    *,
    target: float = 0.02,
    ignore_failure: bool = False,
    anytime: bool = True,
) -> list[Figures]:
    """Every candidate beside the first one, from the trials that are complete. Warm-ups do not count.

    `anytime` is False where the number of trials was fixed beforehand: then intervals are Student's.
    """
    counted = [trial for trial in trials if not trial.warmup]
    own = {c.index: tuple(t for t in counted if t.candidate == c.index) for c in candidates}
    first = own[candidates[0].index]
    found = []
    for candidate in candidates:
        one = _alone(candidate, own[candidate.index], anytime)
        if candidate is not candidates[0]:
            one = _beside(one, candidates[0].label, first, target, ignore_failure, anytime)
        found.append(one)
    return found


def _alone(candidate: Candidate, trials: tuple[Trial, ...], anytime: bool) -> Figures:
    energies = [t.energy for t in trials if t.energy is not None and t.energy.joules is not None]
    nets = [t.net for t in trials if t.net is not None and t.net.joules is not None]
    seconds = [t.seconds for t in trials]
    joules = [energy.value for energy in energies]
    whole_s = math.fsum(t.seconds for t in trials if t.joules is not None)
    notes = dict.fromkeys(t.energy.refused for t in trials if t.energy is not None and t.energy.refused)
    mean = _mean_energy(energies, anytime)
    return Figures(
        candidate,
        trials,
        None if mean is None else mean.amount(),
        _mean_energy(nets, anytime),
        mean_of(seconds, anytime=anytime).amount(),
        math.fsum(joules) / whole_s if whole_s else None,
        max((t.max_rss_bytes for t in trials if t.max_rss_bytes is not None), default=None),
        mean_of([t.joules * t.seconds for t in trials if t.joules is not None]).value if joules else None,
        sum(t.failed for t in trials),
        tuple(outliers([math.nan if t.joules is None else t.joules for t in trials]))
        if len(joules) == len(trials)
        else (),
        notes=tuple(note for note in notes if note),
        cpu_s=mean_of([t.cpu_s for t in trials], anytime=anytime).amount() if trials else None,
    )


def mean_of(values: Sequence[float], systematic: tuple[float, float] = (0.0, 0.0), *, anytime: bool = True) -> Mean:
    """The mean with an interval that may be looked at after every trial, or Student's; `systematic` widens it below
    and above, in quadrature."""
    sample = Sample.of(values)
    low, high = interval(sample, anytime=anytime)
    if math.isfinite(low):
        low = sample.mean - math.hypot(sample.mean - low, systematic[0])
        high = sample.mean + math.hypot(high - sample.mean, systematic[1])
    return Mean(sample.mean, low, high, sample.sd, sample.n)


def _mean_energy(energies: Sequence[Energy], anytime: bool) -> Mean | None:
    """The mean of energies: the scatter of the trials, and what their sensors or models have in common, which for a
    model reaches further up than down."""
    if not energies:
        return None
    below, above = sum_energies(map(shared, energies)).sides()
    count = len(energies)
    return mean_of([energy.value for energy in energies], (below / count, above / count), anytime=anytime)


def shared(energy: Energy) -> Energy:
    """The same energy with only those errors that all trials share."""
    return replace(energy, budget=energy.budget.repeated(shared=True), parts=())


def _beside(
    one: Figures, name: str, first: Sequence[Trial], target: float, ignore_failure: bool, anytime: bool
) -> Figures:
    failures = one.failures + sum(trial.failed for trial in first)
    gross = _paired(first, one.trials, lambda t: t.energy, target, anytime)
    above_idle = _paired(first, one.trials, lambda t: t.net, target, anytime)
    if above_idle is None and (nets := _pairs(first, one.trials, lambda t: t.net)):
        idle = sum(not _positive(pair) for pair in nets)
        note = f"no ratio above idle: {idle} of {len(nets)} pairs have a trial that used no more than idle"
        one = replace(one, notes=(*one.notes, note))
    time = _paired_numbers(first, one.trials, lambda t: t.seconds, target, anytime)
    cpu = _paired_numbers(first, one.trials, lambda t: t.cpu_s, target, anytime)
    if failures and not ignore_failure:
        count = f"{format_count(failures, 'trial')} failed"
        verdict = f"no verdict: {count} (--ignore-failure counts them)"
        gross = None if gross is None else replace(gross, answer=Verdict.UNDECIDED)
    elif gross is None:
        verdict = "no verdict: energy is not available for both"
    else:
        verdict = gross.text(one.candidate.label, name)
    return replace(one, gross=gross, above_idle=above_idle, time=time, cpu=cpu, verdict=verdict)


Pick = Callable[[Trial], "Energy | None"]


def _pairs(first: Sequence[Trial], other: Sequence[Trial], pick: Pick) -> list[tuple[Energy, Energy]]:
    """Figures of trials of one block, which belong together."""
    mine = {trial.block: pick(trial) for trial in first}
    found = [(mine.get(trial.block), pick(trial)) for trial in other]
    return [(a, b) for a, b in found if a is not None and b is not None and None not in (a.joules, b.joules)]


def _positive(pair: tuple[Energy, Energy]) -> bool:
    return min(energy.value for energy in pair) > 0


def _paired(
    first: Sequence[Trial], other: Sequence[Trial], pick: Pick, target: float, anytime: bool
) -> Comparison | None:
    """None without pairs, and where one has no ratio: those that are left would be a sample selected by its result."""
    pairs = _pairs(first, other, pick)
    if not pairs or not all(map(_positive, pairs)):
        return None
    values = [a.value for a, _ in pairs], [b.value for _, b in pairs]
    return compare(*values, target=target, systematic=_systematic(pairs), anytime=anytime)


def _systematic(pairs: Sequence[tuple[Energy, Energy]]) -> float:
    """The half-width of log(B / A) from what pairing does not cancel: a sensor's offset, not its gain."""
    top, bottom = (sum_energies(shared(pair[side]) for pair in pairs) for side in (1, 0))
    try:
        ratio = top.ratio(bottom)
    except ScopeError:
        return math.inf
    # The upper side is the wider one, and infinite where the divisor may be zero.
    return math.log(ratio.high / ratio.value)


def _paired_numbers(
    first: Sequence[Trial], other: Sequence[Trial], pick: Callable[[Trial], float], target: float, anytime: bool
) -> Comparison | None:
    mine = {trial.block: pick(trial) for trial in first}
    pairs = [(mine[t.block], pick(t)) for t in other if mine.get(t.block, 0) > 0 and pick(t) > 0]
    values = [a for a, _ in pairs], [b for _, b in pairs]
    return compare(*values, target=target, anytime=anytime) if pairs else None


def answered(found: Sequence[Figures], target: float) -> bool:
    """Whether further trials are needless: every candidate has its verdict, or one alone is known to ± target as far as
    trials can tell. So they are where nothing measures anything, which more trials would not either."""
    if min(one.trials_done for one in found) < FEWEST:
        return False
    if all(one.energy is None for one in found):
        return True
    if len(found) == 1:
        return narrow(found[0], target)
    return all(one.decisive is not None and one.decisive.decided for one in found[1:])


def narrow(found: Figures, target: float) -> bool:
    """Whether the scatter of trials leaves the mean of one candidate known to ± target: what its sensor leaves open is
    the same in all of them, so that further trials would not narrow it."""
    mean = mean_of([trial.joules for trial in found.trials if trial.joules is not None])
    return mean.n >= FEWEST and (mean.high - mean.low) / 2 <= target * abs(mean.value)


def whole_blocks(trials: Sequence[Trial]) -> list[Trial]:
    """Trials of blocks that are complete with their energies, so that every candidate has the same number of them."""
    unfinished = {trial.block for trial in trials if trial.energy is None}
    return [trial for trial in trials if trial.block not in unfinished]


# `--fail-if 'energy > baseline * 1.05'`: a condition on figures, for continuous integration. It is true only where the
# interval says so: a comparison that is undecided does not fail a build. Where the figure that it is about does not
# exist, it is neither true nor false, and `unjudged` says so.
_RULE = re.compile(
    r"\s*(?P<metric>energy|net|time|cpu|power|memory)\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?:(?P<baseline>baseline)(?:\s*\*\s*(?P<factor>[\d.]+(?:e[-+]?\d+)?))?|(?P<amount>.+?))\s*$"
)
_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Rule:
    """`metric sign limit`, the limit being an amount or a multiple of the first candidate's figure."""

    text: str
    metric: str
    sign: str
    factor: float | None
    amount: float | None

    @property
    def upper(self) -> bool:
        """Whether it is about too much (and not too little)."""
        return self.sign.startswith(">")


def parse_rule(text: str) -> Rule:
    """Read a condition. UsageError with an example if it is not valid."""
    found = _RULE.match(text)
    if found is None:
        raise UsageError(
            f"'{text}' is not a condition.", cure="--fail-if 'energy > baseline * 1.05' or --fail-if 'energy > 5 J'"
        )
    metric = found["metric"]
    if found["baseline"]:
        return Rule(text, metric, found["sign"], float(found["factor"] or 1), None)
    amount = found["amount"]
    return Rule(text, metric, found["sign"], None, _METRICS[metric][0](amount))


def failing(rule: Rule, found: Sequence[Figures]) -> list[str]:
    """Sentences about the candidates for which the condition holds; empty if it holds for none of them, or is open.

    A limit that is a multiple of the baseline is about all but the first candidate.
    """
    return _sentences(rule, found, lambda sure, possible: sure)


def undecided(rule: Rule, found: Sequence[Figures]) -> list[str]:
    """Sentences about the candidates whose interval leaves open whether the condition holds."""
    return _sentences(rule, found, lambda sure, possible: possible and not sure)


def _sentences(rule: Rule, found: Sequence[Figures], chosen: Callable[[bool, bool], bool]) -> list[str]:
    """About the candidates that are `chosen` by whether the condition holds at both ends of an interval, and at one."""
    limit = (rule.amount if rule.factor is None else rule.factor) or 0.0
    said = []
    for one, ends in _judged(rule, found):
        if isinstance(ends, str):
            continue
        near, far = (_SIGNS[rule.sign](end, limit) for end in (ends if rule.upper else ends[::-1]))
        if chosen(near, far):
            form, times = ("g", "") if rule.factor is None else (".3f", " times the first")
            said.append(f"{one.candidate.label}: {rule.text} ({ends[0]:{form}} … {ends[1]:{form}}{times})")
    return said


def unjudged(rule: Rule, found: Sequence[Figures]) -> list[str]:
    """Sentences about the candidates for which the condition cannot be judged, as they lack the figure."""
    return [
        f"{one.candidate.label}: {rule.text} cannot be decided: no {ends} for {rule.metric}"
        for one, ends in _judged(rule, found)
        if isinstance(ends, str)
    ]


def _judged(rule: Rule, found: Sequence[Figures]) -> Iterator[tuple[Figures, tuple[float, float] | str]]:
    """What the limit is compared with for each candidate that it is about: the ends of its figure, or of its ratio to
    the first candidate, of paired trials or of two numbers that have no interval; else what is missing for that."""
    _, name, paired = _METRICS[rule.metric]
    base = _ends(getattr(found[0], name))
    for one in found if rule.factor is None else found[1:]:
        mine = _ends(getattr(one, name))
        if mine is None or (rule.factor is not None and base is None):
            yield one, "figure"
        elif rule.factor is None or base is None:
            yield one, mine
        elif paired:
            yield one, _ends(getattr(one, paired)) or "ratio"
        else:
            yield one, (mine[0] / base[0], mine[1] / base[0]) if base[0] else "ratio"


def _ends(value: Mean | Comparison | float | None) -> tuple[float, float] | None:
    if value is None or isinstance(value, int | float):
        return None if value is None else (value, value)
    return value.low, value.high


# What is said of each metric: how its amounts are read, where a candidate has it, and where its ratio to the first.
_METRICS = {
    "energy": (parse_energy_j, "energy", "gross"),
    "net": (parse_energy_j, "net", "above_idle"),
    "time": (parse_duration_s, "seconds", "time"),
    "cpu": (parse_duration_s, "cpu_s", "cpu"),
    "power": (parse_power_w, "power_w", ""),
    "memory": (parse_bytes, "max_rss_bytes", ""),
}
