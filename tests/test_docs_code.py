"""What the documentation names exists, and its Python code runs as written."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import sgqn.agents.sgqn
import sgqn.config_file
import sgqn.watch
from sgqn import pretrained, run_folder
from sgqn.agents import AGENTS
from sgqn.augmentations import center_crop
from sgqn.cli.command import COMMANDS, Parser
from sgqn.registry import import_submodules
from sgqn.sweep.plan import plan
from tests.agents.small import batch_for, small
from tests.helpers import MICRO, tiny_config, untrained_run, write_clip, write_colors

ROOT = Path(sgqn.__file__).parent.parent
EXAMPLES = ("mine", "ddpg")
"""Agents that pages register."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def code(page: str) -> list[str]:
    """The indented blocks of a page."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"(?:^|\n\n)((?: {4}[^\n]*\n|\n(?= {4}))+)", text)
    return [textwrap.dedent(block) for block in blocks]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_agents_named_in_the_docs_exist(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"pretrained:[\w-]+(?:/\w+)?", text):
        assert pretrained.find(name) is not None, name
    if page.name == "extend.md":  # its agents are its own
        return
    for line in text.splitlines():
        if "--plugin" in line:
            continue
        for agent in re.findall(r"--agent[ =](\w+)", line):
            if "demo" in line or page.name == "demo.md":
                task = re.search(r"--task[ =]([\w-]+)", line)
                assert pretrained.find(f"pretrained:{task[1] if task else 'walker-walk'}/{agent}") is not None, line
            else:
                assert agent in (*AGENTS, *EXAMPLES) or agent.isupper(), line


def test_the_algorithm_next_to_the_code_of_sgqn() -> None:
    page = (ROOT / "docs" / "agents" / "sgqn.md").read_text()
    _, rows = re.split(r"\| algorithm \| code \|\n\|---\|---\|\n", page)
    table = rows[: rows.index("\n\n")].splitlines()
    cells = [re.fullmatch(r"\| .+ \| (?:`(.+)` )?\|", row) for row in table]
    assert all(cells)
    shown = [cell[1].replace(r"\|", "|") for cell in cells if cell and cell[1]]
    lines = iter(line.strip() for line in inspect.getsource(sgqn.agents.sgqn).splitlines())
    for line in shown:
        assert line in lines, f"{line}: not a line of sgqn/agents/sgqn.py, or not in this order"  # consumes up to it


def test_the_agent_of_the_readme_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AGENTS, "_things", dict(AGENTS))
    monkeypatch.setattr(AGENTS, "_origins", {name: AGENTS.origin(name) for name in AGENTS})
    (block,) = re.findall(r"(?ms)^```python\n(.*?)^```", (ROOT / "README.md").read_text())
    exec(block, {"__name__": "my_agents"})
    agent = small("huber")
    assert agent.update(batch_for(agent)).keys() >= {"loss/critic", "loss/consistency", "loss/mask"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the pages' code runs in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_for(here: Path, agent: str, **changes: Any) -> dict[str, Any]:
    """The run that the pages name, of any agent; observations and actions for it."""
    folder = here / "runs" / "walker-walk" / "sgqn" / "0"
    untrained_run(folder, tiny_config(agent, task="walker-walk", action_repeat=250, **changes), action_dim=6)
    obs = torch.randint(0, 256, (2, 9, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return {"obs": center_crop(obs, 24), "action": torch.zeros(2, 6)}


@pytest.mark.parametrize("agent", ["sgqn", "sac", "drq", "rad", "svea"])
def test_attribution_code(here: Path, agent: str) -> None:
    names = run_for(here, agent)
    (block,) = [block for block in code("attribution.md") if "load_agent" in block]
    exec(block, names)
    assert names["heat"].shape == names["mask"].shape == names["obs"].shape
    assert names["mask"].dtype == torch.bool


@pytest.mark.slow
def test_the_environment_of_the_page_is_a_task(here: Path) -> None:
    page = (ROOT / "docs" / "gym.md").read_text()
    (module,) = re.findall(r"(?ms)^```python\n(.*?)^```", page)
    (commands,) = re.findall(r"(?ms)^```\n(sgqn.*?)^```", page)
    (here / "my_env.py").write_text(module)
    for line in commands.splitlines():
        args = shlex.split(line)[1:]
        small = [*MICRO[4:], "--action-repeat", "1"] if args[0] == "train" else []
        command = [sys.executable, "-P", "-m", "sgqn.cli", *args, *small]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert {file.name for file in here.iterdir()} >= {"preview.png", "runs", "look.png"}


def test_saliency_code(here: Path) -> None:
    names = run_for(here, "sgqn")
    for block in code("saliency.md"):
        if "import" in block:
            exec(block, names)
    assert names["found"].episodes == 5
    assert names["curve"].values.shape == (2, 21)


def test_explain_code(here: Path) -> None:
    names = run_for(here, "sgqn")
    (block,) = [block for block in code("explain.md") if "import" in block]
    exec(block, names)
    assert (here / "look.png").is_file()
    assert len(names["look"].attribution) == 4  # of the episode's four steps


def test_demo_code(here: Path) -> None:
    run_for(here, "sgqn")
    other = here / "runs" / "walker-walk" / "sac" / "0"
    untrained_run(other, tiny_config("sac", task="walker-walk", action_repeat=250), action_dim=6)
    blocks = "\n".join(block for block in code("demo.md") if "demo(" in block)
    exec(blocks.replace("pretrained:walker-walk", "runs/walker-walk/sgqn/0"), names := {})
    assert names["shown"].page == Path("demo/index.html")
    assert [len(agent.scenes) for agent in names["pair"].agents] == [len(names["shown"].scenes)] * 2


def test_watch_code(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [block for block in code("watch.md") if "import" in block]
    signature, calls = inspect.signature(sgqn.watch.watch), []
    monkeypatch.setattr(sgqn.watch, "watch", lambda *args, **options: calls.append(signature.bind(*args, **options)))
    exec(block.split("curl")[0], {})
    assert [call.arguments["port"] for call in calls] == [0]


def test_data_code(here: Path, store: Path) -> None:
    source = here / "clone"
    write_clip(source / "video_hard" / "video0.mp4")
    write_colors(source / "color_easy.json")
    (block,) = [block for block in code("data.md") if "import" in block]
    exec(block.replace("path/to/a/clone", str(source)), {})
    assert (store / "dmcgb" / "video_hard" / "video0.mp4").is_file()


def test_report_code(here: Path) -> None:
    run_for(here, "sgqn")
    (block,) = [block for block in code("report.md") if "import" in block]
    exec(block, names := {})
    assert len(names["found"].runs) == 1
    assert (here / "report" / "index.html").is_file()


@pytest.mark.parametrize(
    ("section", "library"),
    [
        ("Rendering", "gymnasium"),
        ("Gymnasium", "gymnasium"),
        ("Stable-Baselines3", "stable_baselines3"),
        ("torchrl", "torchrl"),
    ],
)
def test_environments_code(section: str, library: str) -> None:
    pytest.importorskip(library)
    page = (ROOT / "docs" / "environments.md").read_text()
    _, text = re.split(rf"(?m)^## {section}$", page)
    (block,) = re.findall(r"(?ms)^```python\n(.*?)^```", text.partition("\n## ")[0])
    for written, used in (
        ("n_steps=64", "n_steps=8, batch_size=8, n_epochs=1"),
        ("learn(10_000)", "learn(32)"),
        ("4, renderer=", "2, num_workers=0, action_repeat=250, renderer="),
        ("episodes=4", "episodes=1, action_repeat=250"),
        ("rollout(10,", "rollout(5,"),
    ):
        block = block.replace(written, used)
    names: dict[str, Any] = {}
    exec(block, names)
    if "image" in names:
        assert names["image"].shape == (360, 480, 3)


# ---------------------------------------------------------------- the README, and commands of all pages


def indented(page: Path) -> list[str]:
    """The indented blocks of a page, without its fenced ones."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    return [textwrap.dedent(block) for block in re.findall(r"(?:^|\n\n)((?: {4}[^\n]*\n|\n(?= {4}))+)", text)]


def changed(block: str, **written: str) -> str:
    """The block with smaller sizes; each must be there."""
    for old, new in written.items():
        assert old in block, old
        block = block.replace(old, new)
    return block


def test_the_environments_of_the_readme() -> None:
    (block,) = [block for block in indented(ROOT / "README.md") if "sgqn.make(" in block]
    names: dict[str, Any] = {}
    exec(changed(block, **{"num_envs=16": "num_envs=2, num_workers=0"}), names)
    assert names["obs"].shape == (9, 84, 84)
    assert names["info"]["mask"].shape == (3, 84, 84)
    assert names["envs"].reset()[0].shape == (2, 9, 84, 84)
    names["envs"].close()
    names["env"].close()


def test_the_agents_of_the_readme(here: Path) -> None:
    names = {**run_for(here, "sgqn"), "sgqn": sgqn, "my_policy": lambda obs: torch.zeros(len(obs), 6).numpy()}
    names["q"], names["attribution"] = (lambda obs, action: obs.float().flatten(1).sum(1, keepdim=True)), names["obs"]
    (block,) = [block for block in indented(ROOT / "README.md") if "sgqn.record" in block]
    small = "image_size=24, action_repeat=250, num_workers=0"
    block = changed(
        block,
        **{
            'shift="video_hard", episodes=30, seed=0)': f'shift="video_hard", episodes=1, seed=0, {small})',
            '(my_policy, "walker-walk")': f'(my_policy, "walker-walk", episodes=1, {small})',
            'name="mine", task="walker-walk")': 'name="mine", task="walker-walk", shifts=["train"], episodes=1, '
            "image_size=24, action_repeat=250)",
            'measure(agent, "walker-walk", shift="video_hard")': 'measure(agent, "walker-walk", shift="video_hard", '
            "episodes=1, num_workers=0, action_repeat=250, curves=False)",
            'sgqn.configure(task="walker-walk"), callbacks=[...]': "config, callbacks=[]",
        },
    )
    sizes = {"steps": 12, "num_envs": 2, "warmup_steps": 8, "evaluate_every": 0, "images_every": 0}
    names["config"] = tiny_config(task="walker-walk", seed=1, **{**sizes, "action_repeat": 250})
    exec(block, names)
    assert names["mask"].shape == names["obs"].shape
    assert names["scores"].episodes == 1
    assert (here / "runs" / "walker-walk" / "mine").is_dir()
    assert (here / "runs" / "walker-walk" / "sgqn" / "1").is_dir()


@pytest.mark.slow  # three runs
def test_training_code(here: Path) -> None:
    names: dict[str, Any] = {}
    blocks = indented(ROOT / "docs" / "training.md")
    toml, loop, callback = (block for block in blocks if re.search(r"(?m)^\w+ =|^class", block))
    (here / "mine.toml").write_text(toml)
    assert sgqn.config_file.read(here / "mine.toml").settings.rho == 0.9
    sizes = "steps=8, warmup_steps=6, num_envs=2, action_repeat=250, image_size=24, images_every=0, evaluate_every=0, "
    sizes += "encoder_layers=2, encoder_filters=4, hidden_dim=16, embedding_dim=8, decoder_filters=(4, 4), "
    exec(changed(loop, **{"seed=0,": f"seed=0, {sizes}", "steps=1200": "steps=10"}), names)
    assert names["folder"] == Path("runs/cartpole-swingup/sgqn/0")
    names["config"] = dataclasses.replace(names["config"], seed=1)
    exec(callback, names)
    assert Path("runs/cartpole-swingup/sgqn/1").is_dir()


def test_the_file_of_the_sweeps_page(here: Path) -> None:
    (block,) = [block for block in indented(ROOT / "docs" / "sweeps.md") if block.startswith("task =")]
    runs = plan(tomllib.loads(changed(block, **{'["sgqn", "svea"]': '["sgqn", "sgdrqv2"]'})))
    assert len(runs) == 2 * 2 * 3 * 2 + 1
    assert runs[-1].config.agent == "sac"


def test_names_of_the_environments_page() -> None:
    (block,) = [block for block in indented(ROOT / "docs" / "environments.md") if "all_tasks" in block]
    exec(block, names := {"sgqn": sgqn})
    assert names["task"].shifts[0] == "train"
    first = next(block for block in indented(ROOT / "docs" / "environments.md") if "make_vec" in block)
    names |= {"gymnasium": gymnasium}
    exec(
        changed(first, **{'num_envs=16, shift="train"': 'num_envs=1, num_workers=0, shift="train"', "cuda": "cpu"}),
        names,
    )
    for env in (names["env"], names["envs"]):
        env.close()


def test_pretrained_code() -> None:
    blocks = indented(ROOT / "docs" / "pretrained.md")
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("agent = ")]
    exec("\n".join(lines), names := {"sgqn": sgqn})
    assert names["agent"].predicts_masks


def commands_of(page: Path) -> list[str]:
    """The `sgqn` command lines of a page's code blocks."""
    text = page.read_text()
    blocks = [*indented(page), *re.findall(r"(?ms)^```\w*\n(.*?)^```", text)]
    lines = [line for block in blocks for line in block.splitlines()]
    found = (re.match(r"(?:.* && )?(?:\.venv/bin/)?(sgqn (?:-|[a-z]).*?)(?:\s+#.*)?$", line) for line in lines)
    return [match[1] for match in found if match]


@pytest.mark.parametrize("page", [page for page in PAGES if "notes" not in page.parts], ids=lambda page: page.name)
def test_commands_of_the_docs_are_understood(page: Path, here: Path) -> None:
    """Their names, options and values, as far as they can be checked without running them."""
    import_submodules("sgqn.cli")
    (here / "mine.toml").write_text("steps = 1000\n")
    run = here / "runs" / "walker-walk" / "sgqn" / "0"
    run.mkdir(parents=True)
    run_folder.write_config(run, tiny_config(task="walker-walk"))
    for line in commands_of(page):
        args = shlex.split(line)[1:]
        if re.search(r"--plugin|--help|gym:|--(?:task|agent) [A-Z]|\[|\.\.\.", line) or page.name == "extend.md":
            continue  # needs modules, which tests/test_plugins.py and the test of gym.md have, or is a form to fill in
        words = 2 if " ".join(args[:2]) in COMMANDS else 1
        assert Parser(" ".join(args[:words])).call(args[words:]), line
