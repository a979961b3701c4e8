"""Counting with a tokenizer that the user names."""

import asyncio
import json

import pytest
from answering import answering, models, sse

from everywatt.bench.llm.clients import Connection, make
from everywatt.bench.llm.records import Ask
from everywatt.bench.llm.servers import counter
from everywatt.core.errors import UsageError

WORDS = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}


def tokenizer(folder):
    """One token for each word."""
    vocab = {"[UNK]": 0, "hello": 1, "world": 2}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    data = {**WORDS, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


def ask(url, **params):
    async def whole():
        client = make("openai", Connection.of("m", url, params, environ={}))
        try:
            return await client.ask(Ask("hello hello world"))
        finally:
            await client.close()

    return asyncio.run(whole())


def silent(path, body):
    """A server that tells no usage."""
    events = [
        {"choices": [{"delta": {"content": "hello "}}]},
        {"choices": [{"delta": {"content": "big world"}, "finish_reason": "stop"}]},
    ]
    return 200, models("m") if body is None else sse(*events)


@pytest.mark.ml
def test_a_named_tokenizer_counts_where_the_server_does_not(tmp_path):
    pytest.importorskip("tokenizers")
    with answering(silent) as (url, _):
        answer = ask(url, tokenizer=str(tokenizer(tmp_path)))
        none = ask(url)
    assert (answer.input_tokens, answer.output_tokens) == (3, 3)
    assert answer.counted == f"tokenizer {tmp_path / 'tokenizer.json'}"
    assert len(answer.piece_ns) == 2  # a piece is not a token
    assert (none.input_tokens, none.output_tokens, none.counted) == (None, None, None)


@pytest.mark.ml
def test_padding_and_truncation_of_a_tokenizer_file_are_not_counted(tmp_path):
    pytest.importorskip("tokenizers")
    file = tokenizer(tmp_path) / "tokenizer.json"
    padding = {
        "strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    }  # fmt: skip
    truncation = {"direction": "Right", "max_length": 128, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps({**json.loads(file.read_text()), "padding": padding, "truncation": truncation}))
    count = counter(str(file)).count
    assert (count("hello big world hello"), count("hello " * 300)) == (4, 300)


def test_a_tokenizer_that_is_not_there_is_said_at_once(tmp_path):
    with pytest.raises(UsageError, match="no tokenizer"):
        make("openai", Connection.of("m", "http://127.0.0.1:9", {"tokenizer": str(tmp_path)}))
