"""Measure a block, a function and a coroutine of plain Python."""

import asyncio
import math

import everywatt


def work(rounds: int = 400_000) -> float:
    return sum(math.sqrt(number) for number in range(rounds))


@everywatt.measure("decorated")
def decorated() -> float:
    return work()


async def fetch(seconds: float) -> None:
    with everywatt.span("fetch", seconds=seconds):
        await asyncio.sleep(seconds)


@everywatt.measure("gathered")
async def gathered() -> None:
    await asyncio.gather(fetch(0.2), fetch(0.3))


def main() -> None:
    with everywatt.measure("block") as block:
        for number in range(5):
            with everywatt.span("round", number=number):
                everywatt.log(result=work())
    print("block:", block.energy)
    print("one round in five:", block.run.energy(span="round") / 5)

    decorated()
    print("decorated:", decorated.measurement.energy)

    asyncio.run(gathered())
    print("gathered:", gathered.measurement.energy)


if __name__ == "__main__":
    main()
