"""An agent that looks for some seconds and ends: for `agent --check` and for tests."""

from __future__ import annotations

import threading

from everywatt.fleet.agent import Agent

LOOK_S = 3.5


def look(agent: Agent, seconds: float = LOOK_S, *, open_metrics: bool = False) -> str:
    """Run an agent for so long in this thread; gives its text. NoSensor where nothing gives power."""
    agent.start()
    timer = threading.Timer(seconds, agent.stop)
    timer.start()
    try:
        agent.run()
    finally:
        timer.cancel()
        agent.finish()
    return agent.text(open_metrics=open_metrics)
