"""From rendered frames to observations: the video in the background, changed pixels, the stack of frames.

Batched, on one device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sgqn import reading
from sgqn.envs import chroma
from sgqn.envs.backgrounds import Backgrounds, open_backgrounds
from sgqn.envs.shifts import Shift


class Pixels:
    """The last frames of every environment. Each returned observation is a new tensor."""

    def __init__(self, num_envs: int, size: int, stack: int, shift: Shift, device: torch.device, episode_steps: int):
        self._shift, self._stack = shift, stack
        self._max_frames = episode_steps + 1
        self._clips = [0] * num_envs
        self._times = [0] * num_envs
        self._backgrounds: Backgrounds | None = None
        self._large: Backgrounds | None = None  # the same clips at the size of `compose`
        self._parameters: Tensor | None = None  # of the shift's change of pixels, a row per environment
        self.source = shift.source
        if shift.video is not None:
            self._backgrounds = open_backgrounds(shift.video, size, device, max_frames=self._max_frames)
            self.source = self._backgrounds.source
        self.observations = torch.zeros(num_envs, 3 * stack, size, size, dtype=torch.uint8, device=device)
        self.masks: Tensor | None = None

    def start(
        self,
        worlds: Sequence[int],
        seed: int,
        episodes: Sequence[int],
        frames: Tensor,
        masks: Tensor | None,
        screens: Tensor | None = None,
    ) -> Tensor:
        """Begin new episodes in some worlds: their stacks hold the first frame throughout.

        `frames` is uint8 (num_envs, size, size, 3), `screens` bool without the colours.
        """
        for world, episode in zip(worlds, episodes, strict=True):
            self._times[world] = 0
            if self._backgrounds is not None:
                self._clips[world] = self._shift.clip(episode, self._backgrounds.num_clips)
            self._set_parameters(world, self._shift.pixel_parameters(seed, episode))
        rows = list(worlds)
        first = self._composite(frames, screens)[rows]
        observations = self.observations.clone()
        observations[rows] = first.repeat(1, self._stack, 1, 1)
        self.observations = observations
        if masks is not None:
            stacked = masks[:, None].repeat(1, self._stack, 1, 1)
            if self.masks is not None:
                stacked = torch.where(_rows_like(stacked, rows), stacked, self.masks)
            self.masks = stacked
        return self.observations

    def prefetch(self, episodes: Sequence[int]) -> None:
        """Decode the clips of episodes in the background, in this order."""
        if self._backgrounds is not None:
            count = self._backgrounds.num_clips
            self._backgrounds.prefetch([self._shift.clip(episode, count) for episode in episodes])

    def push(self, frames: Tensor, masks: Tensor | None, screens: Tensor | None = None) -> Tensor:
        """Advance every world by one step."""
        self._times = [time + 1 for time in self._times]
        newest = self._composite(frames, screens)
        self.observations = torch.cat([self.observations[:, 3:], newest], dim=1)
        if masks is not None and self.masks is not None:
            self.masks = torch.cat([self.masks[:, 1:], masks[:, None]], dim=1)
        return self.observations

    def compose(self, frame: np.ndarray, screen: np.ndarray | None) -> np.ndarray:
        """A frame of the first environment at another size, (height, width, 3), changed like those of observations."""
        backgrounds = None
        if self._shift.video is not None:
            if self._large is None:
                height, width = frame.shape[:2]
                size = self.observations.shape[-1]
                self._large = open_backgrounds(
                    self._shift.video, (height, width), max_frames=self._max_frames, generated_size=size
                )
            backgrounds = self._large.frames(self._clips[:1], self._times[:1])
        screens = None if screen is None else torch.from_numpy(screen)[None]
        parameters = None if self._parameters is None else self._parameters[:1]
        return self._change(torch.from_numpy(frame)[None], screens, backgrounds, parameters)[0].numpy()

    def settle(self) -> None:
        """Wait for the clips that are being decoded ahead."""
        if self._backgrounds is not None:
            self._backgrounds.settle()

    def close(self) -> None:
        for backgrounds in (self._backgrounds, self._large):
            if backgrounds is not None:
                backgrounds.close()

    def state(self) -> dict[str, Tensor]:
        state = {"observations": self.observations.cpu(), "times": torch.tensor(self._times)}
        state["clips"] = torch.tensor(self._clips)
        if self.masks is not None:
            state["masks"] = self.masks.cpu()
        if self._parameters is not None:
            state["parameters"] = self._parameters.cpu()
        return state

    def check(self, state: dict[str, Tensor]) -> None:
        """Refuse a state of other environments."""
        own = self.observations
        reading.tensor(state["observations"], "observations", own.shape, own.dtype)
        for name in ("times", "clips"):
            reading.tensor(state[name], name, (len(own),), torch.int64)
            if (state[name] < 0).any():
                raise ValueError(f"{name} must not be negative")
        if "masks" in state:
            reading.tensor(state["masks"], "masks", (len(own), self._stack, *own.shape[2:]), state["masks"].dtype)
        if "parameters" in state and len(state["parameters"]) != len(own):
            raise ValueError(f"parameters are not of {len(own)} environments")

    def restore(self, state: dict[str, Tensor]) -> None:
        self.observations = state["observations"].to(self.observations.device)
        self._times, self._clips = state["times"].tolist(), state["clips"].tolist()
        if "masks" in state:
            self.masks = state["masks"].to(self.observations.device)
        if "parameters" in state:
            self._parameters = state["parameters"].to(self.observations.device)

    def _set_parameters(self, world: int, parameters: np.ndarray | None) -> None:
        if parameters is None:
            return
        if self._parameters is None:
            shape = (len(self.observations), *parameters.shape)
            self._parameters = torch.zeros(shape, device=self.observations.device)
        self._parameters = self._parameters.clone()  # a state that was handed out stays as it is
        self._parameters[world] = torch.from_numpy(parameters)

    def _composite(self, frames: Tensor, screens: Tensor | None) -> Tensor:
        """Channel-first frames as observations show them."""
        backgrounds = None if self._backgrounds is None else self._backgrounds.frames(self._clips, self._times)
        return self._change(frames, screens, backgrounds, self._parameters).permute(0, 3, 1, 2)

    def _change(
        self, frames: Tensor, screens: Tensor | None, backgrounds: Tensor | None, parameters: Tensor | None
    ) -> Tensor:
        """Frames with the video on the screens, else where frames are green, and with changed pixels."""
        if backgrounds is not None:
            frames = chroma.replace(frames, backgrounds, screens)
        if self._shift.pixels is not None and parameters is not None:
            frames = self._shift.pixels.apply(frames, parameters)
        return frames


def _rows_like(tensor: Tensor, rows: list[int]) -> Tensor:
    """Bool, true in the given rows, shaped to broadcast against `tensor`."""
    mask = torch.zeros(tensor.shape[0], dtype=torch.bool)
    mask[rows] = True
    return mask.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1))
