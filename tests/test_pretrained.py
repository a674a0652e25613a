from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import sgqn
from sgqn import checkpoint, evaluation, explain, inspect, pretrained, run_folder, training
from sgqn import export as exporting
from sgqn.agents import AGENTS, Spec, build_agent
from sgqn.cli import main
from sgqn.config import TrainConfig, preset, settings_for
from sgqn.errors import DataError, InvalidValueError
from sgqn.export import TOLERANCE, card, export
from sgqn.pretrained import package
from sgqn.results import looking
from sgqn.results.runs import find_runs
from sgqn.saliency import Saliency
from tests.helpers import MICRO, fails, tiny_config, untrained_run

BRIEF = ("--steps", "24", "--evaluate-every", "0", "--images-every", "0", "--no-save-replay", "--renderer", "auto")
RETURNS = [
    {"step": 12, "shift": "video_hard", "renderer": "gl", "backgrounds": "generated", "returns": [1.0, 2.0]},
    {"step": 24, "shift": "train", "renderer": "gl", "backgrounds": "none", "returns": [100.0, 200.0]},
    {"step": 24, "shift": "train", "renderer": "gl", "backgrounds": "none", "returns": [7.0]},
    {"step": 24, "shift": "train", "renderer": "warp", "backgrounds": "none", "returns": [110.0]},
    {"step": 48, "shift": "train", "renderer": "gl", "backgrounds": "none", "returns": [999.0]},
]
SAME = {"observations": 40, "shifts": ["train", "video_hard"], "mean": 0.001, "largest": 0.002, "masks": 1.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of a second, and one as if it had been trained; with evaluations written by hand."""
    out = tmp_path_factory.mktemp("runs")
    assert main(["train", *MICRO, *BRIEF, "--out", str(out)]) == 0
    found = {"sgqn": out / "cartpole-swingup" / "sgqn" / "0"}
    small = run_folder.read_config(found["sgqn"])
    values = dataclasses.asdict(small.settings)
    config = dataclasses.replace(small, agent="sac", settings=settings_for("sac", small.task, **values))
    found["sac"] = run_folder.folder_of(config, out)
    untrained_run(found["sac"], config)
    for line in RETURNS:
        for folder in found.values():
            run_folder.append_line(folder / run_folder.EVALUATIONS, {"task": "cartpole-swingup", "seed": 0, **line})
    return found


@pytest.fixture(scope="module")
def registry(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents where the package has its own."""
    folder = tmp_path_factory.mktemp("registry")
    export(trained["sgqn"], folder / "cartpole-swingup" / "sgqn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "compare", lambda *_: SAME)
        export(trained["sac"], folder / "cartpole-swingup" / "sac")
    return folder


@pytest.fixture
def packaged(registry: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pretrained, "FOLDER", registry)
    return registry / "cartpole-swingup" / "sgqn"


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports without playing."""
    monkeypatch.setattr(exporting, "compare", lambda *_: SAME)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def half(tensor: torch.Tensor) -> torch.Tensor:
    """Matrices rounded to half precision, by numpy."""
    if tensor.ndim < 2:
        return tensor
    return torch.from_numpy(tensor.numpy().astype(np.float16).astype(np.float32))


# There and back


def test_the_loaded_weights_are_the_trained_ones_rounded_to_half(trained: dict[str, Path], packaged: Path) -> None:
    before = checkpoint.load(checkpoint.find(trained["sgqn"])).weights
    after = sgqn.load_agent(packaged).state_dict()
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        source = name.replace("target.", "critic.").replace("heads.q2.", "heads.q1.")
        assert torch.equal(tensor, half(before[source])), name
    stored = load_file(packaged / package.WEIGHTS)
    assert {name for name in before if "target." not in name and "heads.q2." not in name} == stored.keys()
    assert {tensor.dtype for tensor in stored.values() if tensor.ndim > 1} == {torch.float16}
    assert {tensor.dtype for tensor in stored.values() if tensor.ndim < 2} == {torch.float32}


def test_both_know_what_they_were_trained_on_and_are_ready_to_act(trained: dict[str, Path], packaged: Path) -> None:
    for folder in (trained["sgqn"], packaged):
        agent = sgqn.load_agent(folder)
        assert (agent.task, agent.action_repeat, agent.training) == ("cartpole-swingup", 50, False)


def test_weights_that_do_not_fit_are_told_of_both(trained: dict[str, Path], packaged: Path, tmp_path: Path) -> None:
    loaded = checkpoint.load(checkpoint.find(trained["sgqn"]))
    other = {**loaded.weights, "stranger": torch.zeros(1)}
    checkpoint.save(tmp_path, 1, weights=other, state={}, metadata=loaded.metadata)
    with pytest.raises(DataError, match="step_000000001: the weights do not fit the configuration"):
        sgqn.load_agent(tmp_path)
    packed = package.read(packaged)
    with pytest.raises(DataError, match="sgqn: the weights do not fit the configuration"):
        dataclasses.replace(packed, weights={**packed.weights, "stranger": torch.zeros(1)}).build()


def test_it_acts_looks_and_predicts_as_the_trained_one(trained: dict[str, Path], packaged: Path) -> None:
    subject = inspect.Subject.load(trained["sgqn"])
    other = inspect.Subject.load("pretrained:cartpole-swingup")
    assert (other.step, other.config.task, other.config.seed) == (24, "cartpole-swingup", 0)
    assert other.config.episode_steps == subject.config.episode_steps
    episode = inspect.play(subject, "color_hard")
    seen, actions = episode.seen, episode.actions
    assert (other.agent.act(seen) - subject.agent.act(seen)).abs().mean() < TOLERANCE["half"]
    masks = [s.agent.predict_mask(seen, actions) for s in (subject, other)]
    assert torch.allclose(*masks, atol=0.01)
    assert not torch.equal(*masks)
    values = [s.agent.value(seen, actions) for s in (subject, other)]
    assert torch.allclose(*values, atol=0.02)


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("precision", ["half", "int8"])
def test_every_agent_can_be_packed(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "LARGE", 64)
    config = tiny_config(name)
    spec = run_folder.spec_of(config, 2, discrete=AGENTS[name].actions == "discrete")
    agent = build_agent(name, spec, config.settings, seed=1).eval()
    with torch.no_grad():
        for tensor in agent.parameters():  # unlike those of a fresh agent
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=agent.generator))
    loaded = package.Package(config, spec, 0, package.pack(agent.state_dict(), precision, agent.left_out()), {}).build()
    obs = torch.randint(0, 256, (4, 9, spec.render_size, spec.render_size), dtype=torch.uint8)
    if spec.discrete:
        action = torch.arange(4) % 2
        difference = (loaded.value(obs, action) - agent.value(obs, action)).abs().max()
    else:
        difference = (loaded.act(obs) - agent.act(obs)).abs().max()
    assert 0 < difference < {"half": 2e-3, "int8": 0.05}[precision]
    assert not loaded.training


def test_an_agent_with_discrete_actions_can_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("sgdqn", task="gym:sgqn/Catch-v0", action_repeat=None)
    run, spec = tmp_path / "run", run_folder.spec_of(config, 3, discrete=True)
    agent = build_agent("sgdqn", spec, config.settings, seed=0)
    metadata = {"config": config.to_dict(), "spec": dataclasses.asdict(spec)}
    checkpoint.save(run, 24, weights=agent.state_dict(), state={}, metadata=metadata)
    run_folder.write_config(run, config)

    check = export(run, tmp_path / "out").check
    assert 0 <= check["mean"] <= check["largest"] <= 1
    found = sgqn.load_agent(tmp_path / "out")
    assert found.spec.discrete
    text = (tmp_path / "out" / package.CARD).read_text()
    assert f"the actions differ from those of the trained weights on {check['mean']:.1%} of them" in text

    monkeypatch.setattr(exporting, "compare", lambda *_: {**SAME, "mean": 0.2})
    with pytest.raises(DataError, match="would differ in a share of"):
        export(run, tmp_path / "refused")


def test_eight_bits_are_half_a_step_away_at_most() -> None:
    weights = {"large": torch.randn(300, 400) * torch.logspace(-6, 3, 300)[:, None], "bias": torch.randn(70_000)}
    weights["large"][7] = 0
    packed = package.pack(weights, "int8")
    assert packed["large"].dtype == torch.int8
    assert sum(tensor.nbytes for tensor in packed.values()) < 0.26 * weights["large"].nbytes + weights["bias"].nbytes
    back = package.unpacked(packed)
    assert back.keys() == weights.keys()
    step = weights["large"].abs().amax(dim=1, keepdim=True) / 127
    assert ((back["large"] - weights["large"]).abs() <= 0.5001 * step).all()
    assert torch.equal(back["bias"], weights["bias"])


def test_what_half_precision_cannot_hold_stays_whole() -> None:
    weights = {"wide": torch.tensor([[1e5, 1.0]]), "narrow": torch.tensor([[1e4, 1.0]])}
    packed = package.pack(weights)
    assert (packed["wide"].dtype, packed["narrow"].dtype) == (torch.float32, torch.float16)


@pytest.mark.parametrize(("target", "kept"), [("q1", False), ("mean", True)])
def test_the_second_critic_is_kept_where_the_attribution_reads_it(target: str, kept: bool) -> None:
    config = tiny_config(settings={"attribution_target": target})
    agent = build_agent("sgqn", run_folder.spec_of(config, 1), config.settings)
    packed = package.pack(agent.state_dict(), left_out=agent.left_out())
    assert any("heads.q2." in name for name in packed) == kept
    assert any("heads.q1." in name for name in packed)
    assert not any("target." in name for name in packed)


# The folder


def test_what_the_folder_tells(trained: dict[str, Path], packaged: Path) -> None:
    assert sorted(path.name for path in packaged.iterdir()) == ["README.md", "agent.json", "weights.safetensors"]
    about = json.loads((packaged / package.ABOUT).read_text())
    weights = (packaged / package.WEIGHTS).read_bytes()
    assert about["weights"] == {"size": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
    assert about["step"] == 24
    assert about["spec"] == dataclasses.asdict(Spec(1, 9, 24, 24))
    assert TrainConfig.from_dict(about["config"]) == run_folder.read_config(trained["sgqn"])
    assert about["versions"]["torch"] == torch.__version__
    assert about["pictures"] == "generated"
    assert about["precision"] == "half"
    assert about["check"]["observations"] == 40  # two episodes of 20 steps
    assert 0 < about["check"]["mean"] <= about["check"]["largest"] < 0.01
    assert about["check"]["masks"] > 0.8
    kept = [(line["shift"], line["renderer"], line["step"], line["mean"]) for line in about["returns"]]
    assert kept == [("train", "gl", 24, 150.0), ("train", "warp", 24, 110.0), ("video_hard", "gl", 12, 1.5)]


def test_the_model_card(packaged: Path) -> None:
    text = (packaged / package.CARD).read_text()
    facts, _, text = text.removeprefix("---\n").partition("---\n\n")
    assert "library_name: sgqn\n" in facts
    assert '  - "cartpole-swingup"\n' in facts
    assert text.startswith("# sgqn on cartpole-swingup\n")
    assert "24 agent steps, seed 0" in text
    assert "| train | 150 ± 50 | 2 | gl | none | single | 24 |" in text
    assert "| video_hard | 2 ± 0 | 2 | gl | generated | single | 12 |" in text
    assert "999" not in text
    for words in ("not the benchmark's", "overlay images: generated", "MIT", "float16", "sgqn.load_agent"):
        assert words in text, words
    env = next(line for line in text.splitlines() if "sgqn.make" in line)
    assert "image_size=24" in env
    assert "action_repeat=50" in env


def test_the_card_says_how_often_a_task_was_solved(packaged: Path) -> None:
    packed = package.read(packaged)
    config = dataclasses.replace(packed.config, task="robot-reach")
    line = {**packed.about["returns"][0], "mean": -0.25, "std": 1.0}
    others = {**line, "shift": "test1", "success_rate": 0.5}
    text = card.write(dataclasses.replace(packed, config=config, about={**packed.about, "returns": [line, others]}))
    assert "| shift | return | solved | episodes |" in text
    assert f"| {line['shift']} | -0.2 ± 1.0 |  | {line['episodes']} |" in text
    assert f"| test1 | -0.2 ± 1.0 | 50% | {line['episodes']} |" in text


def test_the_card_s_command_repeats_the_run(
    trained: dict[str, Path], packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = next(line for line in (packaged / package.CARD).read_text().splitlines() if "sgqn train" in line)
    told: list[TrainConfig] = []
    monkeypatch.setattr(training, "train", lambda config, *_: told.append(config) or tmp_path)
    assert main(shlex.split(line)[1:]) == 0
    assert told == [run_folder.read_config(trained["sgqn"])]


def test_a_run_by_the_paper_has_a_short_command() -> None:
    config = dataclasses.replace(preset("paper", "walker-walk", "svea"), seed=3, action_repeat=4)
    assert card.command(config) == "sgqn train --task walker-walk --agent svea --seed 3"


# Packing an exported agent again


def test_an_exported_agent_can_be_packed_in_fewer_bits(
    trained: dict[str, Path], packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "LARGE", 64)
    made = export(packaged, tmp_path / "small", "int8")
    before, after = package.read(packaged), package.read(tmp_path / "small")
    assert (after.config, after.spec, after.step) == (before.config, before.spec, before.step)
    assert after.about["packed_from"] == {"precision": "half", "check": before.about["check"]}
    for name in ("returns", "curve", "pictures", "machine", "versions"):
        assert after.about[name] == before.about[name], name
    # The same bits as if the rounded weights had been packed at once.
    at_once = package.pack(package.unpacked(before.weights), "int8")
    assert all(torch.equal(tensor, at_once[name]) for name, tensor in after.weights.items())
    assert after.weights.keys() == at_once.keys()
    assert made.check["mean"] > before.about["check"]["mean"]
    text = (tmp_path / "small" / package.CARD).read_text()
    assert f"{made.check['mean']:.1g} on average" in text
    assert f"{before.about['check']['mean']:.1g} on average" in text


def test_an_unchecked_export_plays_no_episode(
    trained: dict[str, Path], packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr("sgqn.export.compare", lambda *_: pytest.fail("an episode was played"))
        done = export(trained["sgqn"], tmp_path / "half", unchecked=True)
    assert done.check is None
    text = (tmp_path / "half" / package.CARD).read_text()
    assert "Actions were not compared with those of the trained weights." in text
    same, other = package.read(packaged), package.read(tmp_path / "half")
    assert all(torch.equal(tensor, other.weights[name]) for name, tensor in same.weights.items())
    monkeypatch.setattr(package, "LARGE", 64)
    again = export(tmp_path / "half", tmp_path / "small", "int8")  # compared with half precision
    assert again.check is not None
    assert "differ from those of the weights in half precision" in (tmp_path / "small" / package.CARD).read_text()


def test_packing_again_in_the_same_precision_changes_no_weight(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "compare", None)  # nothing to compare
    export(packaged, tmp_path / "copy")
    assert snapshot(tmp_path / "copy") == snapshot(packaged)


def test_records_come_from_the_kept_runs(trained: dict[str, Path], packaged: Path, tmp_path: Path) -> None:
    own, other, foreign = (tmp_path / "kept" / name for name in "abc")
    for folder, seed in ((own, 0), (other, 1)):
        shutil.copytree(trained["sgqn"], folder, ignore=shutil.ignore_patterns("checkpoints", "events*"))
        config = json.loads((folder / run_folder.CONFIG).read_text())
        (folder / run_folder.CONFIG).write_text(json.dumps({**config, "seed": seed}))
        (folder / run_folder.METRICS).unlink()
        for step in range(1, 21):
            line = {"step": step, "seconds": 1.0, "episode/return": 10.0 * step + seed}
            run_folder.append_line(folder / run_folder.METRICS, line)
    shutil.copytree(trained["sac"], foreign)
    line = {"task": "cartpole-swingup", "seed": 0, "step": 24, "shift": "color_hard", "renderer": "gl"}
    line |= {"backgrounds": "none", "returns": [5.0], "weights": "int8"}
    run_folder.append_line(own / run_folder.EVALUATIONS, line)

    export(packaged, tmp_path / "out", runs=tmp_path / "kept")
    about = package.read(tmp_path / "out").about
    assert about["chosen_from"] == [
        {"seed": 0, "steps": 20, "training_return": 195.0},  # the mean of the steps 19 and 20
        {"seed": 1, "steps": 20, "training_return": 196.0},
    ]
    assert about["curve"][-1] == [20, 200.0]
    assert [entry["mean"] for entry in about["returns"] if entry["weights"] == "int8"] == [5.0]
    text = (tmp_path / "out" / package.CARD).read_text()
    assert "## Selection\n\nNot the best, which is seed 1," in text
    assert "| 1 | 20 | 196 |" in text
    assert "| color_hard | 5 ± 0 | 1 | gl | none | int8 | 24 |" in text
    shutil.rmtree(other)
    export(tmp_path / "out", tmp_path / "out", runs=tmp_path / "kept")  # in its own place
    text = (tmp_path / "out" / package.CARD).read_text()
    assert "The best of the kept seeds" in text
    assert "| 1 | 20 | 196 |" not in text


# Runs kept without their weights


def test_a_kept_run_finds_its_agent_in_the_package(
    trained: dict[str, Path], packaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept" / "0"
    shutil.copytree(trained["sgqn"], kept, ignore=shutil.ignore_patterns("checkpoints", "events*"))
    assert find_runs(trained["sgqn"]).runs[0].weights == checkpoint.find(trained["sgqn"])
    assert find_runs(kept).runs[0].weights == packaged
    assert main(["report", str(kept), "--shift", "train", "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "images" / "look-cartpole-swingup-train.png").exists()
    # An agent of other settings, or of a step that the run has left behind, is not this run's.
    config = json.loads((kept / run_folder.CONFIG).read_text())
    (kept / run_folder.CONFIG).write_text(json.dumps({**config, "seed": 1}))
    assert find_runs(kept).runs[0].weights is None
    (kept / run_folder.CONFIG).write_text(json.dumps(config))
    run_folder.append_line(kept / run_folder.METRICS, {"step": 30, "seconds": 1.0})
    assert find_runs(kept).runs[0].weights is None


# Damage


@pytest.mark.parametrize("where", [0, 0.3, 0.99])
def test_one_altered_byte_of_the_weights_is_found(
    packaged: Path, tmp_path: Path, where: float, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(packaged, tmp_path / "copy")
    data = bytearray((folder / package.WEIGHTS).read_bytes())
    data[int(where * len(data))] ^= 1
    (folder / package.WEIGHTS).write_bytes(data)
    with pytest.raises(
        DataError, match=r"weights\.safetensors: (altered, its checksum differs|not a safetensors file)"
    ):
        sgqn.load_agent(folder)
    assert "weights.safetensors: " in fails(capsys, "evaluate", str(folder))


def test_other_damage_is_found(packaged: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(packaged, tmp_path / "copy")
    about = (folder / package.ABOUT).read_text()

    def says(text: str) -> str:
        (folder / package.ABOUT).write_text(text)
        with pytest.raises(DataError) as error:
            sgqn.load_agent(folder)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "altered" in says(about.replace('"rho": 0.98', '"rho": 0.5'))
    assert "truncated" in says(about[:-20])
    assert "truncated" in says("[]")
    assert "format 7" in says(about.replace('"format": 1', '"format": 7'))
    (folder / package.ABOUT).write_text(about)
    (folder / package.WEIGHTS).unlink()
    with pytest.raises(DataError, match=r"weights\.safetensors: missing"):
        sgqn.load_agent(folder)


# Names


def test_names(packaged: Path) -> None:
    for name in ("pretrained:cartpole-swingup", "pretrained:cartpole-swingup/sgqn", packaged, str(packaged)):
        assert hasattr(sgqn.load_agent(name), "decoder")
    assert not hasattr(sgqn.load_agent("pretrained:cartpole-swingup/sac"), "decoder")


def test_an_unknown_name_lists_what_is_there(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = "there are cartpole-swingup/sac, cartpole-swingup"
    for name in ("walker-walk", "cartpole-swingup/svea", ""):
        with pytest.raises(InvalidValueError, match=f"no pretrained agent '{name}': {there}"):
            sgqn.load_agent(f"pretrained:{name}")
    for command in ("evaluate", "explain"):
        assert there in fails(capsys, command, "pretrained:walker-walk")
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    with pytest.raises(InvalidValueError, match="this installation has none"):
        sgqn.load_agent("pretrained:walker-walk")


def test_list(packaged: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["pretrained", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found] == ["pretrained:cartpole-swingup/sac", "pretrained:cartpole-swingup"]
    assert found[1]["bytes"] == sum(path.stat().st_size for path in packaged.iterdir())
    assert main(["pretrained"]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.split()[:1] == ["cartpole-swingup"]).split()
    assert row[1:] == ["24", "150", "2*"]
    monkeypatch.setattr(pretrained, "FOLDER", packaged / "none")
    assert main(["pretrained"]) == 0
    assert "no pretrained agents" in capsys.readouterr().out


# In place of a run


def test_commands_take_it_and_leave_it_as_it_is(
    trained: dict[str, Path],
    packaged: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = snapshot(packaged)
    name = "pretrained:cartpole-swingup"
    here = functools.partial(evaluation.evaluate, num_workers=0)
    monkeypatch.setattr(evaluation, "evaluate", here)
    assert main(["evaluate", name, "--shift", "color_easy", "--episodes", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)[0]
    played = inspect.play(inspect.Subject.load(trained["sgqn"]), "color_easy")
    assert (result["step"], result["weights"]) == (24, "half")
    assert result["returns"] == pytest.approx([played.rewards.sum()], abs=0.5)

    kept = tmp_path / "runs"
    options = ["--shift", "color_easy", "--episodes", "1", "--out", str(kept)]
    assert main(["evaluate", name, *options]) == 0
    assert capsys.readouterr().out
    (run,) = find_runs(kept).runs
    assert run.path == kept / "cartpole-swingup" / "sgqn" / "0"
    assert run.evaluations[0].returns == tuple(result["returns"])
    own = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**own, "num_envs": 3}))
    assert "has another configuration (num_envs is 3 there, " in fails(capsys, "evaluate", name, *options)
    message = fails(capsys, "evaluate", str(trained["sgqn"]), *options)
    assert f"--out {kept} is for exported agents: results of this agent are kept in {trained['sgqn']}" in message

    sheet = tmp_path / "a.png"
    assert main(["explain", name, str(packaged), "--frames", "2", "--out", str(sheet)]) == 0
    blocks = np.split(np.asarray(Image.open(sheet))[:, explain.MARGIN : -explain.MARGIN], 2, axis=1)
    assert capsys.readouterr().out
    middle = slice(explain.TITLE + explain.HEADER, -explain.FOOTER)
    width = explain.block_width(explain.COLUMNS)
    assert np.array_equal(blocks[0][middle, :width], blocks[1][middle, -width:])

    nothing = Saliency("", "", 0, "", "", "", 0.9, "", 1, 1, (), {}, {}, {})
    monkeypatch.setattr(looking, "measure", lambda *_, **__: nothing)
    assert main(["saliency", name, "--json", "--out", str(tmp_path / "others")]) == 0
    assert (tmp_path / "others" / "cartpole-swingup" / "sgqn" / "0" / "saliency.jsonl").is_file()
    line = json.loads(capsys.readouterr().out)[0]
    assert (line["step"], line["weights"]) == (24, "half")
    assert snapshot(packaged) == before


# Exporting


def test_export_says_what_it_wrote(
    trained: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], unseen: None
) -> None:
    out = tmp_path / "new" / "agent"
    assert main(["export", str(trained["sgqn"]), "--out", str(out), "--precision", "int8"]) == 0
    said = capsys.readouterr().out
    assert "changed actions by 0.001 on average and 0.002 at most on 40 observations" in said
    assert main(["export", str(trained["sac"]), "--out", str(out)]) == 0  # replaces it
    assert json.loads((out / package.ABOUT).read_text())["config"]["agent"] == "sac"
    assert os.listdir(tmp_path / "new") == ["agent"]


def test_export_refuses(
    trained: dict[str, Path],
    packaged: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    unseen: None,
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years")
    good = str(trained["sgqn"])
    assert "no exported agent" in fails(capsys, "export", good, "--out", str(mine))
    assert "not a folder" in fails(capsys, "export", good, "--out", str(mine / "thesis.tex"))
    beside = shutil.copytree(packaged, tmp_path / "beside")
    (beside / "notes.txt").write_text("weeks")
    assert "no exported agent, notes.txt" in fails(capsys, "export", good, "--out", str(beside))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / package.ABOUT).write_text('{"name": "somebody else\'s"}')
    assert "no exported agent to replace" in fails(capsys, "export", good, "--out", str(foreign))
    assert [(beside / "notes.txt").read_text(), os.listdir(foreign)] == ["weeks", [package.ABOUT]]
    small = tmp_path / "small"
    export(trained["sgqn"], small, "int8")
    said = fails(capsys, "export", str(small), "--out", str(tmp_path / "b"), "--precision", "half")
    assert "has weights in int8: half cannot restore them" in said
    said = fails(capsys, "export", str(packaged), "--out", str(tmp_path / "b"), "--runs", str(trained["sac"]))
    assert "has the configuration of" in said
    assert "no such folder" in fails(capsys, "export", str(tmp_path / "none"), "--out", str(tmp_path / "b"))
    assert "--out" in fails(capsys, "export", good)
    kept = shutil.copytree(packaged, tmp_path / "kept")
    before = snapshot(tmp_path)
    monkeypatch.setitem(SAME, "mean", 1.01 * TOLERANCE["int8"])
    message = fails(capsys, "export", good, "--out", str(kept), "--precision", "int8")
    assert "actions would differ" in message
    assert "use --precision half" in message
    assert snapshot(tmp_path) == before


def test_a_failure_while_writing_leaves_the_old_agent(
    trained: dict[str, Path], packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unseen: None
) -> None:
    kept = shutil.copytree(packaged, tmp_path / "kept")
    before = snapshot(tmp_path)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        export(trained["sgqn"], kept)
    assert snapshot(tmp_path) == before
    assert os.listdir(tmp_path) == ["kept"]


# Agents that share weights with a pretrained one


@pytest.fixture(scope="module")
def restored_run(registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of an agent made from a packaged one."""
    out = tmp_path_factory.mktemp("restored")
    restored = ("--agent", "sgqn_restored", "--start-from", "pretrained:cartpole-swingup", "--views", "1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "FOLDER", registry)
        assert main(["train", *MICRO, *restored, *BRIEF, "--out", str(out)]) == 0
    return out / "cartpole-swingup" / "sgqn_restored" / "0"


@pytest.mark.parametrize("precision", ["half", "int8"])
def test_weights_of_the_base_are_left_out(
    restored_run: Path, packaged: Path, tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch, unseen: None
) -> None:
    monkeypatch.setattr(package, "LARGE", 64)
    whole, part, name = tmp_path / "whole", tmp_path / "part", "pretrained:cartpole-swingup"
    assert main(["export", str(restored_run), "--out", str(whole), "--precision", precision]) == 0
    assert main(["export", str(restored_run), "--out", str(part), "--precision", precision, "--base", name]) == 0
    stored = load_file(part / package.WEIGHTS)
    assert {key.split(".")[0] for key in stored} == {"restorer"}
    first, second = (sgqn.load_agent(folder).state_dict() for folder in (whole, part))
    if precision == "half":  # as the base: then nothing is rounded twice
        assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())
    assert json.loads((part / package.ABOUT).read_text())["base"]["name"] == name
    assert f"also those of `{name}`" in (part / package.CARD).read_text()
    export(part, tmp_path / "again")
    assert snapshot(tmp_path / "again") == snapshot(part)
    assert evaluation.evaluate(sgqn.load_agent(part), "cartpole-swingup", episodes=1).mean >= 0


def test_an_exported_agent_gets_the_weights_of_its_base_back(
    restored_run: Path, packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unseen: None
) -> None:
    """Those of a base in 8 bits are not the same in half precision."""
    monkeypatch.setattr(package, "LARGE", 64)
    registry = shutil.copytree(packaged.parent.parent, tmp_path / "registry")
    monkeypatch.setattr(pretrained, "FOLDER", registry)
    name, base = "pretrained:cartpole-swingup", registry / "cartpole-swingup" / "sgqn"
    shutil.rmtree(base)
    export(packaged, base, "int8", unchecked=True)
    brief = ("--agent", "sgqn_restored", "--start-from", name, "--views", "1", *BRIEF)
    assert main(["train", *MICRO, *brief, "--out", str(tmp_path / "runs")]) == 0
    run = tmp_path / "runs" / "cartpole-swingup" / "sgqn_restored" / "0"
    for folder, given, with_base in (("direct", run, name), ("whole", run, None), ("later", tmp_path / "whole", name)):
        export(given, tmp_path / folder, "half", base=with_base, unchecked=True)
    assert {key.split(".")[0] for key in load_file(tmp_path / "later" / package.WEIGHTS)} == {"restorer"}
    first, second = (sgqn.load_agent(tmp_path / folder).state_dict() for folder in ("direct", "later"))
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())


def test_a_base_that_does_not_fit_is_an_error(
    restored_run: Path,
    packaged: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    unseen: None,
) -> None:
    monkeypatch.setattr(package, "LARGE", 64)
    run, part = str(restored_run), tmp_path / "part"
    export(run, part, base="pretrained:cartpole-swingup")
    out = ("--out", str(tmp_path / "other"))
    for base, message in (
        ("walker-walk", "base must be a pretrained agent (pretrained:NAME), not 'walker-walk'"),
        ("pretrained:walker-walk", "no pretrained agent 'walker-walk'"),
        ("pretrained:cartpole-swingup/sac", "has no weights of pretrained:cartpole-swingup/sac"),
    ):
        assert message in fails(capsys, "export", run, *out, "--base", base)
    assert "already has a base" in fails(capsys, "export", str(part), *out, "--base", "pretrained:cartpole-swingup")
    said = fails(capsys, "export", run, *out, "--format", "onnx", "--base", "pretrained:cartpole-swingup")
    assert "--base and --unchecked are for --format safetensors" in said
    registry = shutil.copytree(packaged.parent.parent, tmp_path / "registry")
    monkeypatch.setattr(pretrained, "FOLDER", registry)
    shutil.copytree(part, registry / "cartpole-swingup" / "sgqn_restored")
    chain = fails(capsys, "export", run, *out, "--base", "pretrained:cartpole-swingup/sgqn_restored")
    assert "an agent with all of its weights" in chain
    export(packaged, registry / "cartpole-swingup" / "sgqn", "int8")
    with pytest.raises(DataError, match="another version of pretrained:cartpole-swingup"):
        sgqn.load_agent(part)
    shutil.rmtree(registry / "cartpole-swingup" / "sgqn")
    with pytest.raises(DataError, match="lacks weights that it shares with pretrained:cartpole-swingup"):
        sgqn.load_agent(part)
    about = json.loads((part / package.ABOUT).read_text())
    for broken in ({"name": "pretrained:x"}, {"name": "x", "sha256": "0" * 64}, {"name": "pretrained:x", "sha256": 1}):
        changed = {**about, "base": broken}
        changed["sha256"] = package._digest({key: value for key, value in changed.items() if key != "sha256"})
        (part / package.ABOUT).write_text(json.dumps(changed))
        with pytest.raises(DataError, match="base"):
            sgqn.load_agent(part)


# What the package brings


def test_the_packages_own_agents_are_whole() -> None:
    found = pretrained.available()
    for name, folder in found.items():
        packed = package.read(folder)
        assert name == f"{packed.config.task}/{packed.config.agent}"
        assert packed.about["returns"]
        agent = packed.build()
        size = agent.spec.render_size
        assert agent.act(np.zeros((agent.spec.channels, size, size), np.uint8)).shape
        assert (folder / package.CARD).read_text() == card.write(packed)
    assert sum(path.stat().st_size for folder in found.values() for path in folder.iterdir()) <= 52_000_000
