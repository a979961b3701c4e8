from virtual_world import VirtualWorld
from everywatt.api.meter import Meter
import pytest, time

def test_one(tmp_path):
    began = time.monotonic()
    with VirtualWorld(tmp_path, cpu="square:30W,90W,0.7s", gpu="square:100W,300W,1.3s", board="sine:100W,50W,3s") as world:
        print("enter", time.monotonic() - began); began = time.monotonic()
        meter = Meter("work", sensors=["virtual"], estimate=False, period=0.1)
        meter.start()
        print("start", time.monotonic() - began); began = time.monotonic()
        with meter.span("s"):
            world.sleep(60)
        print("60s", time.monotonic() - began); began = time.monotonic()
        run = meter.stop()
        print("stop", time.monotonic() - began); began = time.monotonic()
        print(meter.energy, meter.energy.notes, run.trouble)
        (span,) = [s for s in run.spans if s.name == "s"]
        e = run.energy(span="s")
        print(e, world.machine.total_j(span.start_ns, span.end_ns), world.crashes, world.log)
        for name, part in e.parts: print(name, part)
        print("q", time.monotonic() - began); began = time.monotonic()
        world.wait_gone()
    print("leave", time.monotonic() - began)
