"""Published data sets, read from the files that the user has: a row of each becomes an item.

Nothing is downloaded. The layouts are those in which the sets are distributed; a missing column says which one.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from everywatt.bench.llm.values import Item

Row = Mapping[str, Any]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTER_ALONE = "Think if you need to, and end with 'The answer is (X)', where X is the letter."


def choice_prompt(question: str, choices: list[str]) -> str:
    """A question with its lettered choices."""
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return f"{question}\n{listed}\n{_LETTER_ALONE}"


def mmlu_pro(row: Row, number: int) -> Item:
    """question_id, question, options, answer (a letter), answer_index, category."""
    choices = [str(one) for one in _list(row["options"]) if str(one) != "N/A"]
    group = str(row.get("category", ""))
    name = str(row.get("question_id", number))
    prompt = choice_prompt(str(row["question"]), choices)
    return Item(f"mmlu-pro-{name}", prompt, str(row["answer"]), "letter", group, {"choices": len(choices)})


def gpqa(row: Row, number: int) -> Item:
    """Question, Correct Answer, Incorrect Answer 1 to 3; shuffled by the record's own id, the same in every run."""
    right = str(row["Correct Answer"]).strip()
    choices = [right, *(str(row[f"Incorrect Answer {n}"]).strip() for n in (1, 2, 3))]
    name = str(row.get("Record ID") or number)
    random.Random(f"gpqa {name}").shuffle(choices)
    group = str(row.get("High-level domain") or "")
    answer = LETTERS[choices.index(right)]
    return Item(f"gpqa-{name}", choice_prompt(str(row["Question"]), choices), answer, "letter", group, {"choices": 4})


def gsm8k(row: Row, number: int) -> Item:
    """question, answer: the solution with `#### n` at its end."""
    final = str(row["answer"]).rpartition("####")[2].strip()
    prompt = f"{row['question']}\nEnd with '#### ' and the number alone."
    return Item(f"gsm8k-{number}", prompt, final, "numeric")


def math500(row: Row, number: int) -> Item:
    """problem, answer, subject, level, unique_id. Numbers are compared as numbers, other answers as text in a box."""
    answer = str(row["answer"])
    name = str(row.get("unique_id") or number)
    plain = re.fullmatch(r"\s*-?[\d,.]+\s*|\s*-?\\[dt]?frac\{-?\d+\}\{\d+\}\s*|\s*-?\d+/\d+\s*", answer)
    prompt = f"{row['problem']}\nPut the final answer in \\boxed{{}}."
    rules = {} if plain else {"pattern": r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}(?![\s\S]*\\boxed)"}
    return Item(f"math-500-{name}", prompt, answer, "numeric" if plain else "regex", str(row.get("subject", "")), rules)


def simpleqa(row: Row, number: int) -> Item:
    """problem, answer, metadata (a dict, or a text of one, with `topic`). Scored by the exact short answer."""
    meta = row.get("metadata") or {}
    if isinstance(meta, str):
        try:
            meta = ast.literal_eval(meta)
        except (ValueError, SyntaxError):
            meta = {}
    group = str(meta.get("topic", "")) if isinstance(meta, Mapping) else ""
    return Item(f"simpleqa-{number}", f"{row['problem']}\nGive the answer alone.", str(row["answer"]), "exact", group)


def wildchat(row: Row, number: int) -> Item:
    """conversation: a list of turns; the first of the user is asked. There is no right answer."""
    turns = _list(row["conversation"])
    prompt = next(str(turn["content"]) for turn in turns if turn.get("role") == "user")
    name = str(row.get("conversation_hash") or row.get("conversation_id") or number)
    return Item(f"wildchat-{name}-{number}", prompt, None, None, str(row.get("language", "")))


def _list(value: Any) -> list[Any]:
    if isinstance(value, str):
        return list(json.loads(value))
    return list(value.tolist() if hasattr(value, "tolist") else value)


LAYOUTS: Mapping[str, Callable[[Row, int], Item]] = {
    "mmlu-pro": mmlu_pro,
    "gpqa": gpqa,
    "gsm8k": gsm8k,
    "math-500": math500,
    "simpleqa": simpleqa,
    "wildchat": wildchat,
}
