"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt in whatever the main thread is running. If that is a destructor or the callback of a
weak reference, of which Ray and matplotlib have many, the exception is forgotten there and the program goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def remembered() -> Iterator[Callable[[object], None]]:
    """Ctrl-C interrupts as ever; what this yields is to be called now and then, and raises it again if it got lost."""
    asked = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def check(event: object) -> None:
        if asked:
            raise KeyboardInterrupt

    # Only the main thread may set a handler; and a program in the background of a shell is started deaf to Ctrl-C.
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
