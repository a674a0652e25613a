"""`sgqn watch`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from sgqn.cli.command import Flag, Method, Renderer, Shift, command


@command("watch", order=5)
def watch(
    paths: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN]")],
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
    """Watch an agent live on a local web page: where it looks, its value, its learning curves.

    Two agents of one task play the same episodes next to each other. The options are initial values: shift, method,
    rho, episode and speed can be changed on the page. While a run is training, its curves are updated, and its latest
    checkpoint is loaded at the next episode. Press Ctrl-C to stop.

    Args:
        paths: One or two runs, checkpoints, exported agents, or names such as pretrained:walker-walk.
        shift: Initial shift. Default: the task's hardest shift.
        method: Initial attribution method. Default: the first run's own.
        rho: Initial quantile below which pixels are masked. Default: the first run's own.
        seed: Seed of the episodes.
        host: Address to listen on. With 0.0.0.0, other machines can watch and use the controls.
        port: Port to listen on; 0: any free port.
        renderer: Renderer; gl draws the benchmark's own pixels.
        device: Device to run the networks on.
        no_browser: Print the page's address, but do not open a browser.
    """
    from sgqn import watch as live

    live.watch(paths, shift, method, rho, seed, host, port, renderer, device, browser=not no_browser)
