"""Three data sets that are made here, by code and a seed: arithmetic, multiple choice, instruction following.

Generated and not copied, so they have no owner, are in no training data, and need no network. 1,000 items each: two
models whose accuracy differs by 5 points around 70 % on the same items can be distinguished. No two items of a set have
the same prompt: an item that is asked twice adds no information, and a server may remember its answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from everywatt.bench.llm.records import Item
from everywatt.core.errors import UsageError

SIZE = 1000  # items of a set
SEED = 20261115  # any number: the items, and so the fingerprints of runs, follow from it
MOST_DRAWS = 2000  # until a prompt is one that no item has yet


def arithmetic(n: int = SIZE, seed: int = SEED) -> Iterator[Item]:
    """Sums, differences, products, divisions and short stories with one number as the answer."""
    chance = random.Random(f"arithmetic {seed}")
    kinds = list(_ARITHMETIC)

    def make(number: int) -> Item:
        kind = kinds[number % len(kinds)]
        question, answer = _ARITHMETIC[kind](chance)
        prompt = f"{question}\nGive the number alone, without words."
        return Item(f"arithmetic-{number:04d}", prompt, str(answer), "numeric", kind)

    return _different(n, make)


def _different(n: int, make: Callable[[int], Item]) -> Iterator[Item]:
    """`n` items with distinct prompts. UsageError if there are not enough."""
    seen: set[str] = set()
    for number in range(n):
        for _ in range(MOST_DRAWS):
            item = make(number)
            if item.prompt not in seen:
                break
        else:
            raise UsageError(f"This data set cannot provide {n} different items.", cure=f"--dataset-param n={number}")
        seen.add(item.prompt)
        yield item


Question = tuple[str, object]


def _drawn(*ranges: tuple[int, int], say: Callable[..., Question]) -> Callable[[random.Random], Question]:
    """A question about whole numbers, each drawn from its range, the ends included."""
    return lambda chance: say(*(chance.randint(*one) for one in ranges))


def _fraction(chance: random.Random) -> Question:
    b = chance.randint(2, 12)
    a, c = chance.randint(1, b - 1), chance.randint(2, 60)
    return f"What is {a}/{b} + {c}? Give a fraction.", f"{a + c * b}/{b}"


def _shop(chance: random.Random) -> Question:
    price, count, paid = chance.randint(2, 19), chance.randint(2, 9), chance.choice((200, 250, 500))
    what = chance.choice(("lamps", "books", "mugs", "plants", "cables"))
    return (
        f"A shop sells {what} for {price} coins each. Someone buys {count} and pays with {paid} coins. "
        "How many coins come back?",
        str(paid - price * count),
    )


_ARITHMETIC: Mapping[str, Callable[[random.Random], Question]] = {
    "plus": _drawn((2, 999), (2, 999), say=lambda a, b: (f"What is {a} + {b}?", a + b)),
    "minus": _drawn((2, 999), (2, 999), say=lambda a, b: (f"What is {a} - {b}?", a - b)),
    "times": _drawn((2, 99), (2, 49), say=lambda a, b: (f"What is {a} times {b}?", a * b)),
    "divided": _drawn((2, 49), (2, 99), say=lambda b, q: (f"What is {b * q} divided by {b}?", q)),
    "shop": _shop,
    "fraction": _fraction,
    "steps": _drawn((2, 50), (2, 50), (2, 9), say=lambda a, b, c: (f"What is ({a} + {b}) times {c}?", (a + b) * c)),
}


def multiple_choice(n: int = SIZE, seed: int = SEED) -> Iterator[Item]:
    """Four choices with one right one: order, counting, calendars, opposites of a small code, odd ones out."""
    chance = random.Random(f"multiple-choice {seed}")
    kinds = (_largest, _weekday, _spelling, _pattern, _odd_one)

    def make(number: int) -> Item:
        kind = kinds[number % len(kinds)]
        question, right, wrong = kind(chance)
        choices = [right, *wrong]
        chance.shuffle(choices)
        letter = "ABCD"[choices.index(right)]
        listed = "\n".join(f"{name}. {choice}" for name, choice in zip("ABCD", choices, strict=True))
        prompt = f"{question}\n{listed}\nAnswer with the letter alone."
        group = kind.__name__.strip("_")
        return Item(f"multiple-choice-{number:04d}", prompt, letter, "letter", group, {"choices": 4})

    return _different(n, make)


def _largest(chance: random.Random) -> tuple[str, str, list[str]]:
    numbers = chance.sample(range(100, 9999), 4)
    word = chance.choice(("largest", "smallest"))
    right = max(numbers) if word == "largest" else min(numbers)
    return f"Which number is the {word}?", str(right), [str(one) for one in numbers if one != right]


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _weekday(chance: random.Random) -> tuple[str, str, list[str]]:
    start, later = chance.randrange(7), chance.randint(2, 99)
    right = _DAYS[(start + later) % 7]
    wrong = chance.sample([day for day in _DAYS if day != right], 3)
    return f"Today is {_DAYS[start]}. Which day is it in {later} days?", right, wrong


_WORDS = (
    *("window", "energy", "planet", "silver", "garden", "bridge", "candle", "forest", "market", "pencil", "basket"),
    *("anchor", "bottle", "carpet", "desert", "engine", "farmer", "guitar", "hammer", "island", "jacket", "kettle"),
    *("ladder", "magnet", "needle", "orange", "pepper", "rabbit", "saddle", "temple", "valley", "winter", "yellow"),
    *("button", "castle", "dragon", "flower", "ginger", "helmet", "lizard", "mirror", "office", "pocket", "ribbon"),
)


def _spelling(chance: random.Random) -> tuple[str, str, list[str]]:
    word = chance.choice(_WORDS)
    at = chance.randrange(len(word))
    right = word[at]
    wrong = chance.sample(sorted(set("abcdefghijklmnopqrstuvwxyz") - set(word)), 3)
    place = ("first", "second", "third", "fourth", "fifth", "sixth")[at]
    return f"What is the {place} letter of the word '{word}'?", right, wrong


def _pattern(chance: random.Random) -> tuple[str, str, list[str]]:
    start, step = chance.randint(1, 60), chance.randint(2, 15)
    shown = [start + step * k for k in range(4)]
    right = start + step * 4
    wrong = [str(right + off) for off in chance.sample((-2, -1, 1, 2, step + 3), 3)]
    return f"Which number comes next: {', '.join(map(str, shown))}?", str(right), wrong


_KINDS = {
    "animals": ("horse", "otter", "eagle", "salmon", "beetle", "goat"),
    "colours": ("red", "blue", "green", "yellow", "purple", "brown"),
    "tools": ("hammer", "saw", "wrench", "drill", "chisel", "pliers"),
    "fruit": ("apple", "pear", "plum", "cherry", "mango", "grape"),
}


def _odd_one(chance: random.Random) -> tuple[str, str, list[str]]:
    many, one = chance.sample(sorted(_KINDS), 2)
    return "Which word does not belong with the others?", chance.choice(_KINDS[one]), chance.sample(_KINDS[many], 3)


_THINGS = (
    *("rain", "bicycles", "bread", "bees", "libraries", "trains", "maps", "bridges", "gardens", "clocks", "boats"),
    *("paper", "salt", "birds", "music", "lamps", "roads", "stones", "games", "tea", "letters", "trees", "horses"),
)
_PLACES = (
    *("in the morning", "at night", "in winter", "in a small town", "by the sea", "on an island", "in the hills"),
    *(
        "a century ago",
        "in ten years",
        "for beginners",
        "at school",
        "in the kitchen",
        "in old stories",
        "at the market",
    ),
    *("in the desert", "in summer", "near a lake", "on a farm", "in the north", "in the south"),
)


def instructions(n: int = SIZE, seed: int = SEED) -> Iterator[Item]:
    """Short writing tasks with constraints that a program checks."""
    chance = random.Random(f"instructions {seed}")
    kinds = list(_INSTRUCTIONS)

    def make(number: int) -> Item:
        kind = kinds[number % len(kinds)]
        task, rules = _INSTRUCTIONS[kind](chance, f"{chance.choice(_THINGS)} {chance.choice(_PLACES)}")
        checks = [{"check": name, "value": value} for name, value in rules.items()]
        return Item(f"instructions-{number:04d}", task, None, "constraints", kind, {"constraints": checks})

    return _different(n, make)


Task = tuple[str, Mapping[str, object]]


def _chosen(values: Sequence[object], check: str, say: str) -> Callable[[random.Random, str], Task]:
    """A task about a topic with one of these values, and the check that it has to pass with it."""

    def make(chance: random.Random, topic: str) -> Task:
        value = chance.choice(values)
        return say.format(topic=topic, value=value), {check: value}

    return make


def _in_capitals(chance: random.Random, topic: str) -> Task:
    upper = chance.random() < 0.5
    word = "capital" if upper else "small"
    return f"Write one short sentence about {topic} in {word} letters only.", {"upper" if upper else "lower": None}


def _without(chance: random.Random, topic: str) -> Task:
    if chance.random() < 0.5:
        return f"Write two sentences about {topic} without using any comma.", {"no_comma": None}
    letter = chance.choice([one for one in "qxzjvpm" if one not in topic])
    return f"Write one sentence about {topic} without the letter '{letter}'.", {"lacks_letter": letter}


def _json(chance: random.Random, topic: str) -> Task:
    keys = chance.sample(("title", "summary", "keyword", "mood"), 2)
    listed = " and ".join(f'"{key}"' for key in keys)
    return f"Describe {topic} as a JSON object with exactly the keys {listed}. Give JSON only.", {"json_keys": keys}


_INSTRUCTIONS: Mapping[str, Callable[[random.Random, str], Task]] = {
    "most_words": _chosen(
        (8, 12, 15, 20), "words_at_most", "Write one sentence about {topic} with at most {value} words."
    ),
    "in_capitals": _in_capitals,
    "without": _without,
    "with_word": _chosen(_WORDS, "contains", "Write one sentence about {topic} that has the word '{value}' in it."),
    "list_of": _chosen(
        range(3, 7),
        "items_exactly",
        "List exactly {value} words about {topic}, separated by commas, and nothing else.",
    ),
    "bullets": _chosen(
        range(2, 6), "bullets_exactly", "Write exactly {value} bullet points about {topic}, each beginning with '- '."
    ),
    "json": _json,
    "ending": _chosen(
        ("That is all.", "The end.", "Good night."),
        "ends_with",
        "Write one sentence about {topic}, and then end with exactly these words: {value}",
    ),
}


def fixed_length(prompt_words: int = 128, n: int = 100, seed: int = SEED) -> Iterator[Item]:
    """Prompts of so many words that have no right answer: for energy and speed by length."""
    if prompt_words < 1 or n < 1:
        raise UsageError("fixed-length needs prompt_words and n of one or more.")
    chance = random.Random(f"fixed-length {seed}")
    for number in range(n):
        words = " ".join(chance.choice(_WORDS) for _ in range(prompt_words))
        yield Item(f"fixed-length-{prompt_words}-{number:04d}", words, None, None, str(prompt_words))
