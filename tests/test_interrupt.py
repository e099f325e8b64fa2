"""Ctrl-C ends a program, also where Python forgets it."""

import os
import signal
import threading
import weakref

import pytest

from dst_analyze.interrupt import remembered


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Thing:
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_got_lost_is_raised_again():
    with remembered() as check:
        check("nobody asked")
        thing = Thing()
        gone = weakref.ref(thing, lambda _: press())
        del thing  # the callback is interrupted, and nobody hears of it
        assert gone() is None
        with pytest.raises(KeyboardInterrupt):
            check("an event")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_interrupts_at_once_as_ever():
    with remembered(), pytest.raises(KeyboardInterrupt):
        press()


def test_who_ignores_it_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with remembered() as check:
            press()
            check("an event")
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_may_ask():
    heard = []

    def ask() -> None:
        with remembered() as check:
            check("an event")
        heard.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert heard
