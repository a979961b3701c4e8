"""When to read, in a process of its own, and how ticks and spans reach the tape. No numpy, click or rich in here."""
