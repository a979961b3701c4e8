import io
import time

from waiting import until

from everywatt.cli.common.output import Output
from everywatt.cli.common.progress import Task, task


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_what_a_line_says():
    now = [0.0]
    work = Task("report", clock=lambda: now[0])
    now[0] = 3.0
    assert work.line() == "report, 3.00 s"
    work.tell(0.25, "reading gpu.0")
    assert work.line() == "report: reading gpu.0, 25 %, 3.00 s, about 9.00 s left"
    work.tell(0.1, "again")
    assert work.share == 0.25, "it never goes back"


def test_on_a_terminal_it_is_silent_at_first_and_cleared_at_the_end():
    screen = Terminal()
    output = Output(stderr=screen, environ={"TERM": "xterm"})
    with task(output, "report") as tell:
        tell(0.5, "quick")
    assert screen.getvalue() == ""
    with task(output, "report") as tell:
        tell(0.5, "slow")
        until(lambda: "slow" in screen.getvalue())
    text = screen.getvalue()
    assert "\r\x1b[Kreport: slow, 50 %, " in text and text.endswith("\r\x1b[K")


def test_elsewhere_nothing_without_verbose(monkeypatch):
    monkeypatch.setattr("everywatt.cli.common.progress.PROGRESS_EVERY_S", 0.05)
    for settings, said in (({}, False), ({"verbose": True}, True), ({"verbose": True, "quiet": True}, False)):
        stream = io.StringIO()
        with task(Output(stderr=stream, environ={}, **settings), "export") as tell:
            tell(0.5, "writing")
            until(stream.getvalue) if said else time.sleep(0.3)  # six times the usual pause: nothing must come
        assert ("everywatt: export: writing, 50 %" in stream.getvalue()) is said
        assert "\r" not in stream.getvalue()
