"""Several processes that train one study together, in a group of torch.distributed: the first writes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed, nn

from dst_analyze.errors import DstError, OptionError

T = TypeVar("T")


def together() -> bool:
    """True if this process is one of several of a group."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def is_first() -> bool:
    """True for the process that writes the study: rank 0, or the only one."""
    return not together() or distributed.get_rank() == 0


def check_group() -> None:
    """Refuse processes that were started together and do not know of each other yet: each would write the study."""
    started = int(os.environ.get("WORLD_SIZE", "1") or 1)
    if started > 1 and distributed.is_available() and distributed.is_torchelastic_launched() and not together():
        raise OptionError(
            f"{started} processes were started together, and there is no process group yet",
            place="Study",
            hint="call torch.distributed.init_process_group(...) before the study is iterated",
        )


def send(value: Any) -> None:
    """Send a value to the processes that follow; errors of this package reach them as such."""
    distributed.broadcast_object_list([value], src=0)


def received() -> Any:
    """Return what the first process sends; raise what it has raised."""
    found: list[Any] = [None]
    try:
        distributed.broadcast_object_list(found, src=0)
    except RuntimeError as error:
        raise OptionError(
            "the first process of this study has ended", place="Study", hint="its own output says why"
        ) from error
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def of_all(value: T) -> list[T]:
    """Return the value that each process has, by rank."""
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


def by_first(work: Callable[[], T]) -> T:
    """Let the first process do something; all return its result, or raise its error."""
    if not together():
        return work()
    if not is_first():
        result: T = received()
        return result
    try:
        result = work()
    except Exception as error:
        send(sendable(error))
        raise
    send(result)
    return result


def sendable(error: Exception) -> DstError:
    """Return an error that other processes can raise, too."""
    return error if isinstance(error, DstError) else DstError(f"{type(error).__name__}: {error}", place="process 0")


@torch.no_grad()
def share_weights(model: nn.Module) -> None:
    """Give all processes the weights and buffers of the first one's model, as DDP does."""
    if not together():
        return
    reached = "cuda" if distributed.get_backend() == "nccl" else ""
    for value in (*model.parameters(), *model.buffers()):
        if value.device.type.startswith(reached):
            distributed.broadcast(value.detach(), src=0)
