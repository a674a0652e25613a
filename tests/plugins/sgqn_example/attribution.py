"""Gradient times input."""

import sgqn


@sgqn.register_attribution("gradient_times_input")
def gradient_times_input(q, obs, action):
    return sgqn.attribution.gradient(q, obs, action) * obs.float()
