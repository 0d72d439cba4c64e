"""How requests are awaited: the loop watches their descriptors."""

import asyncio
import os


async def awaited(request):
    """The result of a request, once it has ended. Cancelled, it is taken back."""
    if request.test():
        return request.wait()
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    # One for each coroutine: a loop has one reader of a descriptor.
    descriptor, left = request._descriptor(), request._left()
    # As its time is over a test reminds the owner, whose answer then comes.
    timer = None if left is None else loop.call_later(left, woken.set)
    try:
        loop.add_reader(descriptor, woken.set)
        while True:
            await woken.wait()
            woken.clear()
            # Nothing is taken before, so that whoever is cancelled meanwhile has taken nothing.
            if request.test():
                return request.wait()
    except asyncio.CancelledError:
        request.cancel()
        raise
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        if timer is not None:
            timer.cancel()
