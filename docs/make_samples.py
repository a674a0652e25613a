"""Plays the packed cartpole agent in Warp's pictures, with rays where OpenGL samples a pixel and in a square.

    python docs/make_samples.py       # writes docs/square/samples.json; some minutes on a CPU

docs/make_results.py makes a table of it. Actions are the policy's mean, as in evaluations, or drawn from it, as in
training.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch

import sgqn
from sgqn.envs import warp

FILE = Path(__file__).parent / "square" / "samples.json"
PLACES = {"square": ((0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)), "OpenGL's": warp.SAMPLES}
ACTIONS = {"mean": True, "drawn": False}


def main() -> None:
    agent = sgqn.load_agent("pretrained:cartpole-swingup")
    found = []
    for place, warp.SAMPLES in PLACES.items():
        for action, deterministic in ACTIONS.items():
            torch.manual_seed(0)
            played = sgqn.evaluate(
                partial(agent.act, deterministic=deterministic),
                "cartpole-swingup",
                episodes=30,
                renderer="warp",
                num_workers=0,
            )
            found.append({"samples": place, "actions": action, "returns": [round(one, 1) for one in played.returns]})
            print(place, action, f"{played.mean:.0f} ± {played.std:.0f}", flush=True)
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")


if __name__ == "__main__":
    main()
