"""`%load_ext everywatt` in Jupyter and IPython: `%%energy` measures a cell, `%energy` a statement.

    %%energy training --out joules
    model.fit(data)

The value of the last expression is the cell's, as always; an error in the cell is the cell's own.
"""

from __future__ import annotations

import argparse
import ast
import shlex
from typing import Any, NoReturn

from everywatt.api.measurement import Measurement
from everywatt.core.errors import UsageError


class _Parser(argparse.ArgumentParser):
    """Wrong words are an error of the cell, not the end of the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"%%energy: {message}.", cure="%%energy [NAME] [--period 100ms] [--no-estimate] [--out VAR] [-q]"
        )


def _parser() -> _Parser:
    parser = _Parser(prog="%%energy", add_help=False)
    parser.add_argument("name", nargs="*")
    parser.add_argument("--period", default=None)
    parser.add_argument("--no-estimate", dest="estimate", action="store_false", default=None)
    parser.add_argument("--out", default=None)
    parser.add_argument("-q", "--quiet", action="store_true")
    return parser


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext everywatt` calls."""
    shell.register_magic_function(_Magic(shell).line, "line", "energy")
    shell.register_magic_function(_Magic(shell).cell, "cell", "energy")


class _Magic:
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def line(self, line: str) -> Any:
        """%energy STATEMENT: measure one statement and show its energy."""
        if not line.strip():
            raise UsageError(
                "%energy measures the statement after it.", cure="%energy train(), or %%energy over a cell"
            )
        return self._measured(_parser().parse_args([]), line)

    def cell(self, line: str, cell: str) -> Any:
        """%%energy [NAME] [--period 100ms] [--no-estimate] [--out VAR] [-q]: measure a cell and show its energy.

        NAME names the run, in one or more words. --out keeps the measurement in a variable. -q shows nothing.
        """
        return self._measured(_parser().parse_args(shlex.split(line)), cell)

    def _measured(self, asked: argparse.Namespace, text: str) -> Any:
        body, last = self._compiled(text)
        options = {key: getattr(asked, key) for key in ("period", "estimate") if getattr(asked, key) is not None}
        measurement = Measurement(" ".join(asked.name) or "cell", **options)
        scope = self._shell.user_ns
        value = None
        try:
            with measurement:
                exec(body, scope)
                if last is not None:
                    value = eval(last, scope)
        finally:
            if asked.out is not None:
                scope[asked.out] = measurement
            if not asked.quiet:
                # One line in a terminal, a small table in a notebook.
                shown = {"text/plain": str(measurement), "text/html": measurement._repr_html_()}
                self._shell.display_pub.publish(shown)
        return value

    def _compiled(self, text: str) -> tuple[Any, Any]:
        """The cell without its last expression, and that expression, so that its value can be shown."""
        source = self._shell.transform_cell(text)
        file = self._shell.compile.cache(source, self._shell.execution_count, raw_code=text)  # for tracebacks
        tree = self._shell.compile.ast_parse(source)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        try:
            return (
                self._shell.compile(tree, file, "exec"),
                None if last is None else self._shell.compile(last, file, "eval"),
            )
        except SyntaxError as error:
            if "await" not in str(error):
                raise
            raise UsageError(
                "A cell with await outside a function cannot be measured by %%energy.",
                cure="async with everywatt.measure() as m: …",
            ) from None
