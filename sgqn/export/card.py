"""The model card of an exported agent: what it is, how it was trained, how well it does, how to use it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from sgqn.agents import AGENTS, Spec
from sgqn.config import TrainConfig, preset
from sgqn.envs.families import Task, find_task
from sgqn.pretrained.package import BASE, PRECISIONS, Package
from sgqn.results.runs import Curve
from sgqn.run_folder import changes

POINTS = 10
"""Rows of the training curve."""
GENERATED = "generated"
"""What `backgrounds` and `pictures` contain where the built-in ones were used."""
TRAINED = "the trained weights"


def command(config: TrainConfig) -> str:
    """The shortest `sgqn train` that makes a run of this configuration."""
    paper, tiny = (_command(config, name) for name in ("paper", "tiny"))
    return shlex.join(tiny if len(tiny) < len(paper) else paper)


def _command(config: TrainConfig, base: str) -> list[str]:
    words = ["sgqn", "train", "--task", config.task, "--agent", config.agent, "--seed", str(config.seed)]
    words += [] if base == "paper" else ["--preset", base]
    for name, (value, _) in changes(config, preset(base, config.task, config.agent)).items():
        if name not in ("seed", "plugins"):
            words += _option(name, value)
    return words


def _option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{flag}", *map(str, values)]


def write(package: Package) -> str:
    """The whole card, in Markdown; all it says is in agent.json."""
    config = package.config
    parts = [
        *_title(config, package.step),
        "## Use",
        *_use(config),
        "## Returns",
        *_returns(find_task(package.config.task), package.about["returns"], package.step),
        "## Training",
        f"    {command(config)}",
        *_training(package),
        *_selection(package),
        "## Weights",
        *_weights(package),
        "## Licence",
        "MIT, as the package.",
    ]
    return "\n\n".join(parts) + "\n"


def write_onnx(config: TrainConfig, spec: Spec, step: int, masks: bool) -> str:
    """The card of an agent as an ONNX graph."""
    size, repeat = spec.render_size, config.action_repeat
    stack = f"{spec.channels // 3} RGB frames, oldest first" if spec.channels > 3 else "an RGB frame"
    actions = (
        f"int64 (batch,): one of {spec.action_dim} actions"
        if spec.discrete
        else f"float32 (batch, {spec.action_dim}), from -1 to 1"
    )
    rows = [
        "| name | | |",
        "|---|---|---|",
        f"| `observation` | input | uint8 (batch, {spec.channels}, {size}, {size}): {stack} |",
        f"| `action` | output | {actions} |",
    ]
    if masks:
        rows.append(f"| `mask` | output | float32 (batch, {spec.channels}, {size}, {size}): the predicted mask |")
    parts = [
        *_title(config, step),
        "## Use",
        "`model.onnx` is one graph from observations to deterministic actions. Normalization is inside the graph; "
        f"the agent was trained with {repeat} control step{'s' * (repeat != 1)} per action. `sgqn evaluate`, `watch` "
        "and `demo` take this folder. Without `sgqn`, with numpy and onnxruntime alone:",
        *_code(
            "import onnxruntime",
            "",
            'session = onnxruntime.InferenceSession("model.onnx")',
            'action = session.run(["action"], {"observation": frames})[0]',
        ),
        "\n".join(rows),
        "The file's metadata has the task, the action repeat and the configuration of the training.",
        "## Training",
        f"    {command(config)}",
        "## Licence",
        "MIT, as the package.",
    ]
    return "\n\n".join(parts) + "\n"


def _title(config: TrainConfig, step: int) -> Iterator[str]:
    yield _front_matter(config)
    yield f"# {config.agent} on {config.task}"
    yield f"An agent that acts from pixels, trained by `sgqn` for {step:,} agent steps, seed {config.seed}."


def _front_matter(config: TrainConfig) -> str:
    """Facts that model hubs read."""
    tags = ["reinforcement-learning", "visual-reinforcement-learning", "sgqn", config.agent, config.task]
    facts = ["license: mit", "library_name: sgqn", "pipeline_tag: reinforcement-learning", "tags:"]
    return "\n".join(["---", *facts, *(f'  - "{tag}"' for tag in dict.fromkeys(tags)), "---"])


def _code(*lines: str) -> Iterator[str]:
    yield "\n".join(f"    {line}".rstrip() for line in lines)


def _use(config: TrainConfig) -> Iterator[str]:
    yield "`sgqn evaluate`, `explain` and the others that take a run take this folder too. From Python:"
    yield from _code(
        "import sgqn",
        "",
        'agent = sgqn.load_agent("FOLDER")',
        f'env = sgqn.make("{config.task}", shift="{find_task(config.task).shifts[-1]}"{_env_options(config)})',
        "obs, info = env.reset(seed=0)",
        "action = agent.act(obs)",
    )


def _env_options(config: TrainConfig) -> str:
    other = changes(config, preset("paper", config.task))
    names = ("image_size", "frame_stack", "action_repeat")
    return "".join(f", {name}={other[name][0]}" for name in names if name in other)


def _returns(task: Task, returns: Sequence[dict[str, Any]], step: int) -> Iterator[str]:
    if not returns:
        yield "Not evaluated."
        return
    solved = any("success_rate" in line for line in returns)
    names = ("shift", "return", *["solved"] * solved, "episodes", "renderer", "backgrounds", "weights", "at step")
    rows = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for line in returns:
        shown = [f"{task.return_text(line['mean'])} ± {task.return_text(line['std'])}"]
        if solved:
            shown.append(f"{line['success_rate']:.0%}" if "success_rate" in line else "")
        made_with = (line["renderer"], line["backgrounds"], line.get("weights", PRECISIONS[0]), f"{line['step']:,}")
        rows.append(f"| {' | '.join(map(str, (line['shift'], *shown, line['episodes'], *made_with)))} |")
    yield "\n".join(rows)
    yield "Mean and standard deviation over episodes. Weights: single precision is as trained, others are packed."
    if any(line["backgrounds"] == GENERATED for line in returns):
        yield "Rows with generated backgrounds are not the benchmark's: its clips were not there."
    if any(line["step"] != step for line in returns):
        yield f"Rows of another step than {step:,} are of earlier weights of the same run."


def _training(package: Package) -> Iterator[str]:
    config, about = package.config, package.about
    facts = {
        "trained on": ", ".join(about["machine"][key] for key in ("device", "precision") if about["machine"].get(key)),
        "action repeat": config.action_repeat,
        "rho": f"{config.settings.rho:g}" if AGENTS[config.agent].masks else "",
        "overlay images": about["pictures"],
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
    }
    if package.step < config.steps:
        yield f"Stopped at step {package.step:,} of {config.steps:,}."
    yield "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)
    if curve := about.get("curve"):
        show = find_task(config.task).return_text
        rows = ["| step | return of training episodes |", "|---|---|", *(f"| {s:,} | {show(r)} |" for s, r in curve)]
        yield "\n".join(rows)


def points(curve: Curve, step: int) -> Iterator[tuple[int, float]]:
    """Evenly spaced points of the learning curve, the last one included."""
    known = [(at, value) for at, value in zip(curve.steps, curve.returns, strict=True) if at <= step]
    count = min(POINTS, len(known))
    for i in range(1, count + 1):
        yield known[len(known) * i // count - 1]


def _selection(package: Package) -> Iterator[str]:
    """How the agent was chosen, where that is known."""
    runs = package.about.get("chosen_from")
    if not runs:
        return
    yield "## Selection"
    best = max(runs, key=lambda run: run["training_return"])["seed"]
    chosen = "The best" if package.config.seed == best else f"Not the best, which is seed {best},"
    yield (
        f"{chosen} of the kept seeds by training return (mean over the last tenth of the training); test returns were "
        "not used. The kept runs of this agent on this task:"
    )
    show = find_task(package.config.task).return_text
    rows = (f"| {run['seed']} | {run['steps']:,} | {show(run['training_return'])} |" for run in runs)
    yield "\n".join(["| seed | steps | training return |", "|---|---|---|", *rows])


def _weights(package: Package) -> Iterator[str]:
    about, check, discrete = package.about, package.about["check"], package.spec.discrete
    kind = {"half": "float16", "int8": "8 bits with a factor for each row, convolutions in float16"}
    source = about.get("packed_from")
    others = f"the weights in {source['precision']} precision that they were packed from" if source else TRAINED
    stored = f"Matrices in {kind[about['precision']]}, vectors in float32."
    if check is None:
        yield f"{stored} Actions were not compared with those of {others}."
    else:
        yield (
            f"{stored} On {check['observations']} observations of {' and '.join(check['shifts'])} the actions"
            f"{'' if discrete else ', which range from -1 to 1,'} differ from those of {others} "
            f"{_difference(check, discrete)}; the attribution masks have an IoU of {check['masks']:.3f} with theirs."
        )
    if BASE in about:
        name = about[BASE]["name"]
        yield f"Weights that are also those of `{name}` are not in the file: loading it needs that agent, of `sgqn`."
    if source and (before := source["check"]) is not None:
        yield (
            f"Actions of the weights in {source['precision']} precision differ from those of {TRAINED} "
            f"{_difference(before, discrete)} (IoU {before['masks']:.3f})."
        )
    yield "Left out, and replaced by copies when loaded: target networks, and the second critic if nothing reads it."


def _difference(check: dict[str, Any], discrete: bool) -> str:
    if discrete:
        return f"on {check['mean']:.1%} of them"
    return f"by {check['mean']:.1g} on average and {check['largest']:.1g} at most"
