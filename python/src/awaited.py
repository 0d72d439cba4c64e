"""How requests are awaited: the loop watches their descriptors."""

import asyncio


async def awaited(request):
    """The result of a request, once it has ended. Cancelled, it is taken back."""
    if request.test():
        return request.wait()
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    descriptor, left = request.fileno(), request._left()
    loop.add_reader(descriptor, woken.set)
    # As its time is over a test reminds the owner, whose answer then comes.
    timer = None if left is None else loop.call_later(left, woken.set)
    try:
        while True:
            await woken.wait()
            woken.clear()
            # The descriptor goes with the request's end. Nothing is taken before, so that whoever
            # is cancelled meanwhile has taken nothing.
            loop.remove_reader(descriptor)
            if request.test():
                return request.wait()
            loop.add_reader(descriptor, woken.set)
    except asyncio.CancelledError:
        loop.remove_reader(descriptor)
        request.cancel()
        raise
    finally:
        if timer is not None:
            timer.cancel()
