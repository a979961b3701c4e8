"""Data sets: bundled ones are the same everywhere; files and published layouts are read as they are."""

import json

import pytest

from everywatt.bench.llm.datasets import load_dataset
from everywatt.bench.llm.scorers import find_number, number
from everywatt.core.errors import UsageError


@pytest.mark.parametrize("name", ["arithmetic", "multiple-choice", "instructions"])
def test_a_bundled_set_has_a_thousand_items_and_is_always_the_same(name):
    one, again = load_dataset(name), load_dataset(name)
    assert len(one.items) == 1000 and one.about.sha256 == again.about.sha256
    assert load_dataset(name, {"seed": "7"}).about.sha256 != one.about.sha256
    assert load_dataset(name, {"n": "10"}).items == one.items[:10]
    # An item that is asked twice tells nothing new.
    assert len({item.prompt for item in load_dataset(name, {"n": "3000"}).items}) == 3000


def test_more_items_than_there_are_is_refused():
    with pytest.raises(UsageError, match="cannot provide 20000 different items"):
        load_dataset("instructions", {"n": "20000"})


def test_answers_of_arithmetic_are_right():
    for item in load_dataset("arithmetic").items:
        if item.group in ("plus", "minus", "times"):
            a, sign, b = item.prompt.split("\n")[0].removeprefix("What is ").rstrip("?").split()
            truth = {"+": int(a) + int(b), "-": int(a) - int(b), "times": int(a) * int(b)}[sign]
            assert number(item.answer) == truth
        assert find_number(item.answer)[0] == number(item.answer)


def test_a_choice_is_right_once():
    for item in load_dataset("multiple-choice").items:
        choices = [line[3:] for line in item.prompt.splitlines()[1:5]]
        assert len(set(choices)) == 4, item
        assert item.answer in "ABCD"
    assert {item.answer for item in load_dataset("multiple-choice").items} == set("ABCD")


def test_fixed_length():
    items = load_dataset("fixed-length", {"prompt_words": "50", "n": "3"}).items
    assert [len(item.prompt.split()) for item in items] == [50, 50, 50]
    with pytest.raises(UsageError, match="not a whole number"):
        load_dataset("fixed-length", {"n": "many"})
    with pytest.raises(UsageError, match="no parameter 'colour'"):
        load_dataset("fixed-length", {"colour": "red"})


ROWS = [{"question": "1+1?", "gold": "2", "key": "a"}, {"question": "2+2?", "gold": "4", "key": "b"}]
COLUMNS = {"prompt": "question", "answer": "gold", "id": "key", "scorer": "numeric"}


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "arrow", "folder"])
def test_files_with_a_column_map(tmp_path, kind):
    path = tmp_path / f"q.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "json":
        path.write_text(json.dumps(ROWS))
    elif kind == "csv":
        path.write_text("question,gold,key\n1+1?,2,a\n2+2?,4,b\n")
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(ROWS)
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            file = path if kind == "arrow" else tmp_path / "set" / "data-00000-of-00001.arrow"
            file.parent.mkdir(exist_ok=True)
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            path = file if kind == "arrow" else file.parent
    items = load_dataset(str(path), COLUMNS).items
    assert [(item.id, item.prompt, item.answer, item.scorer) for item in items] == [
        ("a", "1+1?", "2", "numeric"),
        ("b", "2+2?", "4", "numeric"),
    ]


PUBLISHED = {
    "mmlu-pro": ({"question_id": 70, "question": "Q?", "options": ["x", "y", "z"], "answer": "C"}, "C", "letter"),
    "gsm8k": ({"question": "Q?", "answer": "2+2\n#### 1,004"}, "1,004", "numeric"),
    "math-500": (
        {"problem": "Q?", "answer": "\\frac{3}{4}", "subject": "Algebra", "unique_id": "t/1"},
        "\\frac{3}{4}",
        "numeric",
    ),
    "simpleqa": ({"problem": "Q?", "answer": "Paris", "metadata": "{'topic': 'Geography'}"}, "Paris", "exact"),
    "wildchat": (
        {"conversation": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
        None,
        None,
    ),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_layouts(tmp_path, name):
    row, answer, scorer = PUBLISHED[name]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (item,) = load_dataset(name, {"path": str(path)}).items
    assert (item.answer, item.scorer) == (answer, scorer)
    path.write_text('{"colour": "red"}\n')
    with pytest.raises(UsageError, match=f"row 1, is not in the format of {name}"):
        load_dataset(name, {"path": str(path)})


def test_gpqa_is_shuffled_the_same_way_each_time(tmp_path):
    path = tmp_path / "gpqa.csv"
    head = "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
    path.write_text(head + "".join(f"r{n},Q{n}?,right,w1,w2,w3\n" for n in range(40)))
    items = load_dataset("gpqa", {"path": str(path)}).items
    assert items == load_dataset("gpqa", {"path": str(path)}).items
    assert all(f"{item.answer}. right" in item.prompt for item in items)
    assert {item.answer for item in items} == set("ABCD")


def test_what_cannot_be_read_is_said(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "a"}\nnonsense\n')
    with pytest.raises(UsageError, match=r"q\.jsonl:2 is not JSON"):
        load_dataset(str(path))
    path.write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="no column 'prompt'; it has: text"):
        load_dataset(str(path))
    path.write_text('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}\n')
    with pytest.raises(UsageError, match="id twice"):
        load_dataset(str(path))
    path.write_text("")
    with pytest.raises(UsageError, match="no items"):
        load_dataset(str(path))
    path.write_text('{"prompt": "a"}\n{"prompt": null}\n')
    with pytest.raises(UsageError, match="Item 2 of the data set has no 'prompt'"):
        load_dataset(str(path))
    path.write_text("[1, 2]")
    with pytest.raises(UsageError, match="not a list of objects"):
        load_dataset(str(path))
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')  # as Windows begins a file
    assert [item.prompt for item in load_dataset(str(path)).items] == ["a"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('prompt,answer\n"What is 1+1?,2\nWhat is 2+2?,4\n', r"q\.csv: line \d cannot be read: unexpected end of data"),
        ("prompt,answer\nWhat is 1,000+1?,1001\n", r"q\.csv: line 2 has 3 cells, the header 2"),
        ("prompt,answer\nWhat is 1+1?\n", r"q\.csv: line 2 has 1 cells, the header 2"),
        ("prompt,prompt\na,b\n", "a distinct name for each column"),
    ],
)
def test_a_damaged_table_is_not_asked(tmp_path, text, why):
    (tmp_path / "q.csv").write_text(text)
    with pytest.raises(UsageError, match=why):
        load_dataset(str(tmp_path / "q.csv"))


def test_a_prompt_may_be_long(tmp_path):
    (tmp_path / "q.csv").write_text(",prompt\n0," + "long " * 50_000 + "\n")  # with the index that pandas writes first
    (item,) = load_dataset(str(tmp_path / "q.csv")).items
    assert len(item.prompt) == 250_000
