"""What the scripted model says to which message."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from scripted_engine import Piece

ESSAY = """\
The keeper had not slept since the fog came in. **Three nights** he had sat beside the lamp, winding the clockwork every
hour, listening to the horn answer itself across the bay.

On the fourth night a voice answered instead.

## What the log says

1. At 02:10 the horn fell silent, though nobody had touched the valve.
2. At 02:14 a light showed to the *south*, where there is no land.
3. At 02:31 the light went out.

He wrote it down in the plain hand he used for weather and oil, and then he worked out the distance: with the lamp at
height \\(h\\) the horizon lies at

\\[ d = \\sqrt{2Rh + h^2} \\approx 3.57\\sqrt{h} \\]

which for his tower is nineteen kilometres, and a boat out there would cost $40 a day.

| Hour | Wind | Seen |
|:-----|-----:|:-----|
| 02:00 | 3 kn | nothing |
| 02:14 | 2 kn | a light, steady |
| 02:31 | 4 kn | nothing |

```python
from math import sqrt

def horizon_km(height_m: float) -> float:
    \"\"\"How far the lamp can be seen.\"\"\"
    return 3.57 * sqrt(height_m)

print(f"{horizon_km(28.5):.1f} km")  # 19.1 km
```

> Keep the light. Whoever is out there can see you, even when you cannot see them.

In the morning the fog was gone, and on the step of the tower stood a pair of wet boots, set neatly side by side.
"""

LONG = "\n\n".join([ESSAY] * 6)
REPEATED = 4  # the long reply: a minute and a half, which a test never waits for


def words(text: str) -> list[str]:
    return re.findall(r"\s*\S{1,9}|\s+", text)


def script(message: str) -> Iterator[Piece]:
    """clock N: the time in ms, N times · echo TEXT · say TEXT: in one piece · read N TEXT: N steps of reading first ·
    think TEXT · ponder TEXT: reasoning alone · guess DRAFTED ACCEPTED TEXT · fail · long: to be stopped · book: a part
    of it, fast · novel N M: N characters fast, then M pieces · anything else: a story."""
    command, _, rest = message.strip().partition(" ")
    if command == "clock":
        for _ in range(int(rest)):
            yield f"{time.time_ns() // 1_000_000} "
    elif command == "say":
        yield rest
    elif command == "novel":
        at_once, words_after = map(int, rest.split())
        text = (ESSAY + "\n\n") * (at_once // len(ESSAY) + 1)
        yield from (text[start : start + 1000] for start in range(0, at_once, 1000))
        yield "\n\n"
        yield from (words(ESSAY) * words_after)[:words_after]
    elif command == "echo":
        yield from words(rest)
    elif command == "read":
        count, _, text = rest.partition(" ")
        for done in range(int(count)):
            yield ("read", 100 * (done + 1), 100 * int(count))
        yield from words(text)
    elif command == "think":
        for piece in words("First I weigh the question.\n\nThen I *decide*. " * 3):
            yield ("reasoning", piece)
        yield from words(rest)
    elif command == "ponder":
        for piece in words(rest):
            yield ("reasoning", piece)
    elif command == "guess":
        drafted, accepted, text = rest.split(" ", 2)
        yield ("guess", int(drafted), int(accepted))
        yield from words(text)
    elif command == "fail":
        yield "Half of"
        raise ValueError("The scores were not numbers.")
    elif command == "long":
        for _ in range(REPEATED):
            yield from words(LONG + "\n\n")
    elif command == "book":
        for start in range(0, len(LONG), 300):
            yield LONG[start : start + 300]
    else:
        yield from words(ESSAY)
