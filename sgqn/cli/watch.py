"""`sgqn watch`"""

from __future__ import annotations

from sgqn.cli.command import Flag, Method, Renderer, Run, Shift, command


@command("watch", order=5)
def watch(
    path: Run,
    shift: Shift | None = None,
    method: Method | None = None,
    rho: float | None = None,
    seed: int = 0,
    host: str = "127.0.0.1",
    port: int = 8765,
    renderer: Renderer = "auto",
    device: str = "cpu",
    no_browser: Flag = False,
) -> None:
    """Watch an agent act, live on a local web page: where it looks, its value, its run's learning curves.

    Shift, method, rho, episode and speed can be changed on the page; the options set what it starts with. A run that is
    still training is followed: its curves as they grow, its newest checkpoint at the next episode. Ctrl-C ends it.

    Args:
        path: Run, checkpoint or exported agent, or a name such as pretrained:walker-walk.
        shift: Shift to start with. Default: the task's hardest.
        method: Attribution method to start with. Default: the run's own.
        rho: Quantile below which pixels are masked. Default: the run's own.
        seed: Seed of the episodes: the same for everyone.
        host: Address to listen at. Others than this machine's own can watch and change what is shown.
        port: Port to listen at; 0 for any free one.
        renderer: Renderer of the images. gl draws the benchmark's own pixels.
        device: Device of the networks.
        no_browser: Print the page's address, open no browser.
    """
    from sgqn import watch as live

    live.watch(path, shift, method, rho, seed, host, port, renderer, device, browser=not no_browser)
