"""The full-screen view (Textual, extra `tui`): one widget that draws the board and redraws only lines that changed.

Textual's own widgets cost more where values change with every refresh. CPU time of one refresh of 30 rows with four
changed cells each, on a terminal of 140 × 40 (medians of three interleaved turns of 40 refreshes): this widget 4.0
ms, with two Sparklines 8.5, with a ProgressBar 5.7, a Static with the same text 8.9, a DataTable of 12 columns of
fixed widths whose changed cells are set by `update_cell` 31 to 37: any changed cell discards what it keeps of all
rows (Textual 8.2), so that setting fewer cells saves nothing, and only one column of ready-made lines comes down to
8. At a refresh a second that is 3 % of a core for the table alone; with this widget the whole monitor, recorder
included, takes about 1 %. A Footer adds nothing, as it does not change.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from dataclasses import replace
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.events import Click, Key, MouseScrollDown, MouseScrollUp, Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from everywatt.core.errors import EverywattError
from everywatt.report.live.board import Line, View, board, plain
from everywatt.report.live.snapshot import LiveSource, Snapshot

STYLES = {
    "": Style.null(),
    "title": Style(bold=True, reverse=True),
    "power": Style(bold=True),
    "head": Style(bold=True, color="cyan"),
    "key": Style(bold=True, color="cyan", underline=True),
    "dim": Style(dim=True),
    "good": Style(color="green"),
    "warm": Style(color="yellow"),
    "hot": Style(bold=True, color="red"),
    "bar": Style(color="green"),
}
PLAIN_STYLES = {name: Style(bold=style.bold, reverse=style.reverse, underline=style.underline, dim=style.dim)
                for name, style in STYLES.items()}  # fmt: skip
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
STEPS_S = {"left": -1.0, "right": 1.0, "shift+left": -10.0, "shift+right": 10.0}
PAGE = 10
WHEEL = 3  # rows


class BoardWidget(Widget, can_focus=True):
    """The lines of the board. `show` draws what is different from what is there."""

    DEFAULT_CSS = "BoardWidget { width: 100%; height: 100%; }"

    def __init__(self, *, colour: bool = True) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self._styles = STYLES if colour else PLAIN_STYLES

    def show(self, lines: list[Line]) -> None:
        before, self.lines = self.lines, lines
        if len(before) != len(lines):
            self.refresh()
            return
        width = self.size.width
        changed = [Region(0, y, width, 1) for y, (old, new) in enumerate(zip(before, lines, strict=True)) if old != new]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        line = self.lines[y] if y < len(self.lines) else []
        segments = [Segment(text, self._styles.get(style)) for text, style in line]
        return Strip(segments).adjust_cell_length(self.size.width)


class MonitorApp(App[int]):
    """Polls a source once an interval and shows its snapshots."""

    CSS = "Screen { background: ansi_default; color: ansi_default; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        Binding("ctrl+c", "leave", show=False, priority=True),
        Binding("ctrl+q", "leave", show=False, priority=True),
    ]

    def __init__(
        self,
        source: LiveSource,
        interval_s: float,
        *,
        ascii_only: bool = False,
        colour: bool = True,
        for_s: float | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.source = source
        self.interval_s = interval_s
        self.view = View(ascii=ascii_only)
        self.snapshot: Snapshot | None = None
        self.shown: Snapshot | None = None
        self._for_s = for_s
        self._widget = BoardWidget(colour=colour)
        self._polling = False
        self._filter_before = ""
        self.error: EverywattError | None = None

    def compose(self) -> ComposeResult:
        yield self._widget

    def on_mount(self) -> None:
        """Begin; a signal ends it as `q` does, so that the terminal is left as it was."""
        self.screen.styles.background = "transparent"
        loop = asyncio.get_running_loop()
        for number in ENDING:
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread: a test
                loop.add_signal_handler(number, self.exit, 0)
        self.set_interval(self.interval_s, self.poll)
        if self._for_s is not None:
            self.set_timer(self._for_s, lambda: self.exit(0))
        self.call_after_refresh(self.poll)

    async def poll(self) -> None:
        """Ask the source and show the answer. In a thread, so that keys are heard while it works."""
        if self._polling:
            return
        self._polling = True
        try:
            snapshot = await asyncio.to_thread(self.source.poll)
        except EverywattError as error:
            self.error = error
            self.exit(error.exit_code)
            return
        except OSError as error:
            self.error = EverywattError(f"The view stopped: {error.strerror or error}.")
            self.exit(1)
            return
        finally:
            self._polling = False
        self.snapshot = snapshot
        if not self.view.frozen:
            self.shown = snapshot
            self.draw()

    def draw(self) -> None:
        """Show what is known in the way that was chosen."""
        size = self._widget.size
        if self.shown is not None and size.width and size.height:
            self._widget.show(board(self.shown, self.view, size.width, size.height))

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.draw)

    def action_leave(self) -> None:
        self.exit(0)

    def on_key(self, event: Key) -> None:
        """Keys change the view; in a filter they are text."""
        event.stop()
        if self.view.typing:
            self.view = typed(self.view, event.key, event.character, self._filter_before)
        else:
            self._command(event.key, event.character or "")
        self.draw()

    def on_click(self, event: Click) -> None:
        """A click on a heading sorts by it; one on a key in the last line does what the key does."""
        lines = plain(self._widget.lines).split("\n")
        text, last = lines[event.y] if event.y < len(lines) else "", event.y == len(lines) - 1
        words = re.finditer(r"\S+(?: \S+)*" if last else r"\S+", text)
        word = next((found[0] for found in words if found.start() <= event.x < found.end()), "")
        if last and word and not self.view.typing:
            key = word.split()[0]
            self._command("", " " if key == "space" else key)
        elif not self.view.help:
            self.view = self.view.sorted_by(text, word)
        self.draw()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._wheel(WHEEL)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._wheel(-WHEEL)

    def _wheel(self, rows: int) -> None:
        most = len(self.view.owners(self.shown)) - 1 if self.shown is not None else 0
        self.view = self.view.scrolled(rows, max(0, most))
        self.draw()

    def _command(self, key: str, character: str) -> None:
        view = self.view
        if character in ("q", "Q"):
            self.exit(0)
        elif character == "s":
            self.view = view.next_sort()
        elif character == "d":
            self.view = view.next_device_sort()
        elif character == "r":
            self.view = replace(view, reverse=not view.reverse)
        elif character == "u":
            self.view = view.next_unit()
        elif character in ("?", "h"):
            self.view = replace(view, help=not view.help)
        elif character == "/":
            self._filter_before = view.filter
            self.view = replace(view, typing=True)
        elif character in (" ", "f"):
            self._freeze()
        elif key == "escape":
            self.view = replace(view, filter="", help=False)
        elif key in ("up", "down", "pageup", "pagedown"):
            rows = {"up": -1, "down": 1, "pageup": -PAGE, "pagedown": PAGE}[key]
            most = len(view.owners(self.shown)) - 1 if self.shown is not None else 0
            self.view = view.scrolled(rows, max(0, most))
        elif key in (*STEPS_S, "home", "end"):
            self._seek(key)

    def _freeze(self) -> None:
        self.view = replace(self.view, frozen=not self.view.frozen)
        if not self.view.frozen:
            self.shown = self.snapshot

    def _seek(self, key: str) -> None:
        seek = getattr(self.source, "seek", None)
        if seek is None or self._polling:
            return
        seek({"home": -1e9, "end": 1e9}.get(key) or STEPS_S[key] * self.interval_s)
        self.call_later(self.poll)


def typed(view: View, key: str, character: str | None, before: str) -> View:
    """The view after a key in the filter's line: enter keeps it, escape gives the one before back."""
    if key == "enter":
        return replace(view, typing=False, scroll=0)
    if key == "escape":
        return replace(view, typing=False, filter=before)
    if key in ("backspace", "ctrl+h"):
        return replace(view, filter=view.filter[:-1])
    if key == "ctrl+u":
        return replace(view, filter="")
    if character and character.isprintable():
        return replace(view, filter=view.filter + character, scroll=0)
    return view
