"""So many streams at once with the official OpenAI client: when each piece arrived, CPU seconds and wall seconds.

python openai_streams.py URL STREAMS TOKENS FIRST_MS GAP_MS
"""

import asyncio
import json
import sys
import time

from openai import AsyncOpenAI


async def one(client, number, tokens, first_ms, gap_ms):
    script = {"tokens": tokens, "first_ms": first_ms, "gap_ms": gap_ms, "n": number}
    pieces = []
    stream = await client.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": json.dumps(script)}],
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        at = time.monotonic_ns()
        if chunk.choices and chunk.choices[0].delta and chunk.choices[0].delta.content:
            pieces.append(at)
    return pieces


async def main(url, streams, tokens, first_ms, gap_ms):
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        await client.models.list()
        began, cpu = time.monotonic(), time.process_time()
        pieces = await asyncio.gather(*(one(client, n, tokens, first_ms, gap_ms) for n in range(streams)))
        print(json.dumps({"pieces": pieces, "cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - began}))


if __name__ == "__main__":
    url, *numbers = sys.argv[1:]
    asyncio.run(main(url, int(numbers[0]), int(numbers[1]), float(numbers[2]), float(numbers[3])))
