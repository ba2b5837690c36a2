"""Work on many sequences, divided once between the threads that torch may use.

torch divides every operation between its threads. For operations on a tile, which take a tenth of a millisecond, that is a barrier each,
and the tile travels between the caches of the cores. Here sequences are divided instead: each thread runs the whole loop for its own
sequences, one operation after another, and its tiles stay in its own cache. Torch releases Python's lock while it computes.

Nothing is summed across threads and the division depends on sizes and on the number of threads alone, so results are the same in every run.
Threads are started once and wait for work. A forked process starts its own.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

LEAST = 2**25  # multiplications that are worth waking threads for: about half a millisecond of one core
MOST = 8  # Python threads: with more they would wait for Python's lock; each of them then has several of torch's
TURNS = 2  # slices for each thread, so that one that is held up leaves work to others

_starting = threading.Lock()
_setting = threading.Lock()
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _forget() -> None:
    """After a fork the threads are gone."""
    global _starting, _setting
    _starting, _setting = threading.Lock(), threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _take(threads: int) -> None:
    """Give the new thread this runs in so many threads of torch's, and leave the number for other threads as it was.

    ``torch.set_num_threads`` is for the thread that calls it and for all that begin later. What those would have got is what this one has
    got; a thread of a moment's life says so again.
    """
    with _setting:  # one after another, or the second would take what is meant for the first for usual
        usual = torch.get_num_threads()  # also makes torch set up this thread, which would undo what comes next
        torch.set_num_threads(threads)
        last = threading.Thread(target=torch.set_num_threads, args=(usual,))
        last.start()
        last.join()


def _pool(workers: int, threads: int) -> ThreadPoolExecutor:
    """So many workers with so many threads each, all of them started."""
    with _starting:
        if (workers, threads) not in _pools:
            pool, all_there = ThreadPoolExecutor(workers, "softmax-rnn", _take, (threads,)), threading.Barrier(workers)
            wait([pool.submit(all_there.wait) for _ in range(workers)])
            _pools[workers, threads] = pool
        return _pools[workers, threads]


def some(n: slice, *tensors: Any) -> list[Any]:
    """The sequences ``n`` of each tensor; None stays None."""
    return [None if x is None else x[n] for x in tensors]


def workers(sequences: int, multiplications: float, device: torch.device, least: float, most: int = MOST) -> int:
    """How many threads share such work, at most so many; 1 if it is done where it is asked for."""
    if device.type != "cpu" or sequences < 2 or multiplications < least or _get_current_dispatch_mode() is not None:
        return 1
    return min(torch.get_num_threads(), sequences, most)


def share(sequences: int, multiplications: float, device: torch.device, work: Callable[[slice], None]) -> None:
    """Call ``work`` with slices that make up all sequences. It writes into slices of the caller's tensors, and returns nothing.

    Worth it for steps of a millisecond: each time a thread finds the lock of Python taken, it sleeps for a tenth of one.
    """
    count = workers(sequences, multiplications, device, LEAST)
    if count == 1:
        return work(slice(0, sequences))
    inference, turn = torch.is_inference_mode_enabled(), itertools.count()
    step = max(1, -(-sequences // (count * TURNS)))

    def run() -> None:
        with torch.inference_mode(inference), torch.no_grad():
            while (first := next(turn) * step) < sequences:
                work(slice(first, min(sequences, first + step)))

    pool = _pool(count, torch.get_num_threads() // count)
    tasks: list[Future[None]] = [pool.submit(run) for _ in range(count)]
    wait(tasks)  # all of them, also after an error: they write into tensors of the caller
    for task in tasks:
        task.result()
    return None
