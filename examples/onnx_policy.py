"""Act from camera frames with an exported agent: numpy and onnxruntime, nothing else.

    sgqn export RUN --format onnx --out agent
    python onnx_policy.py agent/model.onnx frames.npy actions.npy

frames.npy: uint8 (T, H, W, 3), one frame per action, of the size that the agent was trained with.
"""

import sys

import numpy as np
import onnxruntime


class Policy:
    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(path)
        self.about = self.session.get_modelmeta().custom_metadata_map
        self.frames = []

    def act(self, frame):
        """The action for the newest frame of an episode; the first frame is repeated to fill the stack."""
        self.frames = [*(self.frames or [frame] * int(self.about["frame_stack"]))[1:], frame]
        observation = np.concatenate([frame.transpose(2, 0, 1) for frame in self.frames])[None]
        return self.session.run(["action"], {"observation": observation})[0][0]


if __name__ == "__main__":
    model, frames, out = sys.argv[1:]
    policy = Policy(model)
    actions = np.stack([policy.act(frame) for frame in np.load(frames)])
    np.save(out, actions)
    print(f"{len(actions)} actions of {policy.about['agent']} on {policy.about['task']}: {policy.about['action']}")
