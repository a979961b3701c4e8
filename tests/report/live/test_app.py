"""The full-screen view through Textual's pilot: keys change what is shown, and it ends well."""

import asyncio
import signal

import pytest
from snapshots import snapshot

from everywatt.core.errors import RecorderError
from everywatt.report.live.board import plain

textual = pytest.importorskip("textual")


class Source:
    """Counts how often it was asked; its power is that count."""

    title = "test"

    def __init__(self, cards=2, fail_at=None):
        self.count, self.cards, self.fail_at = 0, cards, fail_at
        self.sought = []

    def poll(self):
        self.count += 1
        if self.fail_at is not None and self.count >= self.fail_at:
            raise RecorderError("The recorder is gone.")
        return snapshot(self.cards, total_w=float(self.count))

    def seek(self, seconds):
        self.sought.append(seconds)

    def close(self):
        pass


def run(steps, *, size=(120, 40), source=None, **more):
    """Start the app, let `steps(pilot, app)` do its part, and give the app."""
    from everywatt.report.live.app import MonitorApp

    app = MonitorApp(source or Source(), 0.05, **more)

    async def whole():
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.shown is not None and app._widget.lines)
            await steps(pilot, app)

    asyncio.run(whole())
    return app


async def until(pilot, condition, tries=3000):
    for _ in range(tries):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError("it never came true")


def text(app) -> str:
    return plain(app._widget.lines)


def owners(app) -> list[str]:
    names = ("python train.py", "postgres", "idle", "unattributed")
    found = [(line.strip(), name) for line in text(app).splitlines() for name in names if line.strip().startswith(name)]
    return [name for _, name in found]


def test_sorting_filtering_and_units_change_the_rows():
    async def steps(pilot, app):
        assert owners(app) == ["python train.py", "idle", "postgres", "unattributed"]
        await pilot.press("s")
        assert owners(app) == ["postgres", "python train.py", "idle", "unattributed"]
        await pilot.press("r")
        assert owners(app) == ["unattributed", "idle", "python train.py", "postgres"]
        await pilot.press("/", "p", "o", "s", "t")
        assert owners(app) == ["postgres"] and "filter: post_" in text(app)
        await pilot.press("enter")
        assert owners(app) == ["postgres"] and not app.view.typing
        await pilot.press("escape")
        assert len(owners(app)) == 4
        await pilot.press("u")
        assert " Wh" in text(app) and "kJ" not in text(app)
        await pilot.press("d")
        names = [line.split()[0] for line in text(app).splitlines() if line.strip().startswith(("gpu.", "cpu.0"))]
        assert names == ["gpu.1", "gpu.0", "cpu.0"]

    run(steps)


def test_a_filter_is_edited_and_given_up():
    async def steps(pilot, app):
        await pilot.press("/", "q", "q", "backspace")
        assert app.view.filter == "q" and app.is_running, "q is a letter there"
        await pilot.press("escape")
        assert app.view.filter == "" and not app.view.typing

    run(steps)


def test_freezing_keeps_the_screen_while_time_goes_on():
    async def steps(pilot, app):
        await pilot.press("space")
        frozen, count = text(app), app.source.count
        assert "FROZEN" in frozen
        await until(pilot, lambda: app.source.count > count + 3)
        assert text(app) == frozen
        await pilot.press("f")
        await until(pilot, lambda: text(app) != frozen)
        assert "FROZEN" not in text(app)

    run(steps)


def test_help_scrolling_and_moving_in_time():
    async def steps(pilot, app):
        await pilot.press("question_mark")
        assert "move in time" in text(app)
        await pilot.press("question_mark", "down", "down")
        assert owners(app) == ["postgres", "unattributed"]
        await pilot.press("up", "pageup")
        assert app.view.scroll == 0
        await until(pilot, lambda: not app._polling)
        await pilot.press("left")
        assert app.source.sought in ([-0.05], [])  # not while it is being asked

    run(steps)


@pytest.mark.parametrize("cards", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_every_number_of_cards_is_laid_out(cards, size):
    async def steps(pilot, app):
        shown = text(app)
        assert all(f"gpu.{number}" in shown for number in range(cards))
        assert "python train.py" in shown

    run(steps, size=size, source=Source(cards))


def test_a_resize_lays_it_out_again():
    async def steps(pilot, app):
        await pilot.resize_terminal(200, 50)
        await until(pilot, lambda: "LIMIT" in text(app))
        assert len(app._widget.lines) == 50

    run(steps, size=(80, 24))


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_keys_that_end_it(key):
    async def steps(pilot, app):
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running or app._exit)

    assert run(steps).return_code == 0


def test_it_ends_after_its_time():
    async def steps(pilot, app):
        await until(pilot, lambda: app._exit)

    assert run(steps, for_s=0.3).return_code == 0


def test_an_error_of_the_source_ends_it_with_that_error():
    async def steps(pilot, app):
        await until(pilot, lambda: app._exit)

    app = run(steps, source=Source(fail_at=3))
    assert isinstance(app.error, RecorderError) and app._return_value == 3


def test_only_lines_that_changed_are_drawn():
    async def steps(pilot, app):
        await pilot.press("space")  # the source's own updates are not drawn now
        regions = []
        app._widget.refresh = lambda *which, **more: regions.append(which)
        app.draw()
        assert regions == []
        await pilot.press("u")
        assert len(regions) == 1 and 5 < len(regions[0]) < 20

    run(steps)


def test_signals_are_left_as_they_were():
    before = signal.getsignal(signal.SIGTERM)

    async def steps(pilot, app):
        await pilot.press("q")

    run(steps)
    assert signal.getsignal(signal.SIGTERM) is before


def test_clicks_sort_and_press_keys():
    async def click(pilot, app, words):
        y, line = next((y, line) for y, line in enumerate(text(app).splitlines()) if words in line)
        await pilot.click(offset=(line.index(words), y))

    async def steps(pilot, app):
        await pilot.press("s")
        await click(pilot, app, "OWNER")
        assert app.view.sort == "owner" and owners(app)[0] == "idle"
        await click(pilot, app, "▾OWNER")
        assert app.view.reverse and owners(app)[-1] == "idle"
        await click(pilot, app, "UTIL")
        assert app.view.device_sort == "use"
        await click(pilot, app, "u unit")
        assert app.view.unit == "Wh"
        await click(pilot, app, "space freeze")
        assert app.view.frozen
        await click(pilot, app, "python train.py")
        assert app.view.sort == "owner"
        await click(pilot, app, "q quit")

    assert run(steps).return_value == 0
