"""Channels of every image in a random order."""

import torch

import sgqn


@sgqn.register_augmentation("channel_shuffle")
def channel_shuffle(obs, generator):
    frames = obs.unflatten(1, (-1, 3))  # (B, frames, RGB, H, W)
    order = torch.rand(len(obs), 3, generator=generator, device=obs.device).argsort(dim=1)
    return frames.take_along_dim(order[:, None, :, None, None], dim=2).flatten(1, 2).float()
