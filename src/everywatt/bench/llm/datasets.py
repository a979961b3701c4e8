"""Data sets by name: bundled ones, files of the user with a column map, published layouts, or plug-ins.

    arithmetic                                      bundled; n, seed
    questions.jsonl   prompt=question answer=gold   any JSON lines, CSV, Parquet, or folder of Arrow files
    gsm8k             path=test.jsonl               a published layout

Nothing is downloaded: published sets are read from the user's files, in the layouts in which they are distributed. A
third-party data set registers by the entry point group `everywatt.llm_datasets`: a callable that takes the
parameters as keywords and gives items.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from everywatt.bench.llm.plan import Questions
from everywatt.bench.llm.records import Item
from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.plugins import LLM_DATASETS, border, load_plugin, registered
from everywatt.tape.importing import arrow_batches

Row = Mapping[str, Any]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTER_ALONE = "Think if you need to, and end with 'The answer is (X)', where X is the letter."


def choice_prompt(question: str, choices: list[str]) -> str:
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


_COLUMNS = ("prompt", "answer", "id", "group", "choices")
_FILE_WORDS = (*_COLUMNS, "scorer", "template", "path")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Items in order, and what the record of a run has of all of them: of some data sets only a part is here."""

    about: Questions
    items: tuple[Item, ...]


def load_dataset(name: str, params: Mapping[str, str] | None = None) -> Dataset:
    """All items of a data set. UsageError where it cannot be read, is empty, or has an id twice."""
    given = dict(params or {})
    items = tuple(_items(name, given))
    if not items:
        raise UsageError(f"The data set '{name}' has no items.")
    ids = {item.id for item in items}
    if len(ids) < len(items):
        raise UsageError(
            f"The data set '{name}' contains an id twice.", cure="choose another column with --dataset-param id=COLUMN"
        )
    return Dataset(Questions(name, given, len(items), fingerprint(items)), items)


def fingerprint(items: Iterable[Item]) -> str:
    """A hash of questions, answers and how they are scored."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(json.dumps([item.id, item.prompt, item.answer, item.scorer, item.rules], default=str).encode())
    return digest.hexdigest()


def _items(name: str, params: dict[str, str]) -> Iterable[Item]:
    if name in LAYOUTS:
        if set(params) != {"path"}:
            raise UsageError(
                f"'{name}' requires the path of your copy of the data set, and takes no other parameter.",
                cure="--dataset-param path=FILE",
            )
        return _published(name, Path(params["path"]))
    if Path(name).exists():
        return _mapped(Path(name), params)
    maker = load_plugin(LLM_DATASETS, name)
    if maker is not None:
        with border(name):
            return tuple(_called(name, maker, params))
    known = ", ".join((*registered(LLM_DATASETS), *LAYOUTS))
    raise UsageError(f"There is no data set or file '{name}'.", cure=f"a file, or one of: {known}")


def _called(name: str, make: Callable[..., Iterable[Item]], params: Mapping[str, str]) -> Iterable[Item]:
    known = inspect.signature(make).parameters
    odd = [word for word in params if word not in known]
    if odd:
        raise UsageError(f"'{name}' has no parameter '{odd[0]}'; it has: {', '.join(known)}.")
    values: dict[str, Any] = {}
    for word, text in params.items():
        whole = isinstance(known[word].default, int)
        if whole and not text.lstrip("-").isdecimal():
            raise UsageError(f"{word}={text} is not a whole number.")
        values[word] = int(text) if whole else text
    return make(**values)


def _published(name: str, path: Path) -> Iterator[Item]:
    for number, row in enumerate(rows(path)):
        try:
            yield replace(LAYOUTS[name](row, number), meta=dict(row))
        except (KeyError, ValueError, TypeError, StopIteration) as error:
            why = f"no column {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{path}, row {number + 1}, is not in the format of {name}: {why}.") from None


def _mapped(path: Path, params: Mapping[str, str]) -> Iterator[Item]:
    odd = [word for word in params if word not in _FILE_WORDS]
    if odd:
        raise UsageError(f"A file has no parameter '{odd[0]}'; it has: {', '.join(_FILE_WORDS)}.")
    column = {word: params.get(word, word) for word in _COLUMNS}
    for number, row in enumerate(rows(path)):
        if column["prompt"] not in row:
            cure = "--dataset-param prompt=COLUMN"
            raise UsageError(f"{path} has no column '{column['prompt']}'; it has: {', '.join(row)}.", cure=cure)
        if "answer" in params and column["answer"] not in row:
            raise UsageError(f"{path} has no column '{column['answer']}'; it has: {', '.join(row)}.")
        yield _item(row, number, column, params)


def _item(row: Mapping[str, Any], number: int, column: Mapping[str, str], params: Mapping[str, str]) -> Item:
    answer = row.get(column["answer"])
    rules = row.get("rules") if isinstance(row.get("rules"), dict) else {}
    if row[column["prompt"]] is None:
        raise UsageError(f"Item {number + 1} of the data set has no '{column['prompt']}'.")
    prompt = str(row[column["prompt"]])
    if "template" in params:
        prompt = params["template"].replace("{prompt}", prompt)
    choices = row.get(column["choices"])
    if choices is not None and not isinstance(choices, str | int):
        rules = {**(rules or {}), "choices": len(choices)}
    scorer = str(row.get("scorer") or params.get("scorer") or "") or None
    if scorer is None and answer is not None:
        scorer = "letter" if choices is not None else "exact"
    return Item(
        str(row.get(column["id"], number)),
        prompt,
        None if answer is None else str(answer),
        scorer,
        str(row.get(column["group"]) or ""),
        rules or {},
        dict(row),
    )


def rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Rows of a JSON-lines, JSON, CSV, Parquet or Arrow file, or of a folder of Arrow or Parquet files."""
    try:
        if path.is_dir():
            files = sorted(f for f in path.rglob("*") if f.suffix in (".arrow", ".parquet") and f.is_file())
            if not files:
                raise UsageError(f"{path} contains no Arrow or Parquet file.")
            for file in files:
                yield from chain.from_iterable(batch.to_pylist() for batch in arrow_batches(file))
        elif path.suffix in (".parquet", ".arrow"):
            yield from chain.from_iterable(batch.to_pylist() for batch in arrow_batches(path))
        elif path.suffix in (".csv", ".tsv"):
            text = foreign.read_text(path, limits=foreign.LIMITS)
            yield from (row for _, row in foreign.csv_rows(text, str(path), "\t" if path.suffix == ".tsv" else ","))
        else:
            yield from _json_rows(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if next(foreign.lines(path, errors="strict"), "").startswith("["):
        data = foreign.read_json(path)
        if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
            raise UsageError(f"{path} is not a list of objects.")
        yield from data
        return
    for number, row in foreign.json_lines(path):
        if not isinstance(row, dict):
            raise UsageError(f"{path}:{number} is not an object.")
        yield row
