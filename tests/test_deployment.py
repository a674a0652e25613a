"""Agents as ONNX graphs: they act and predict masks as the agents in PyTorch do."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import sgqn
from sgqn import deployment
from sgqn.cli import main
from sgqn.deployment import OnnxAgent
from sgqn.errors import DataError, SgqnError
from sgqn.export.onnx import OPSET, convert
from sgqn.inspect import Subject, attribute
from sgqn.inspect.episode import environment, roll
from tests.agents.small import NAMES, small
from tests.helpers import fails, untrained_run

pytest.importorskip("onnxscript")
QUICK = ("dqn", "drqv2", "ppo", "rad", "sac", "sgdqn", "sgppo", "sgqn")
"""One agent of every kind; the others have the same networks."""
EXAMPLE = Path(sgqn.__file__).parent.parent / "examples" / "onnx_policy.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_run(tmp_path_factory.mktemp("runs") / "cartpole-swingup" / "sgqn" / "0")


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "agent"
    assert main(["export", str(run), "--format", "onnx", "--out", str(folder)]) == 0
    return folder


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_actions_and_masks_are_those_of_the_agent(name: str) -> None:
    """On 200 observations, in batches of other sizes than the traced one."""
    agent = small(name).eval()
    size = agent.spec.render_size
    obs = torch.randint(256, (200, 9, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    graph = OnnxAgent(deployment.open_session(convert(agent, {})), agent.spec)
    assert graph.predicts_masks == agent.predicts_masks
    for part in (obs[:1], obs[1:68], obs[68:]):
        expected = agent.policy(part, True)
        found = graph.policy(part, True)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
        if agent.predicts_masks:
            torch.testing.assert_close(
                graph.mask_probabilities(part, found), agent.mask_probabilities(part, expected), atol=1e-4, rtol=0
            )


def test_the_encoder_is_computed_once() -> None:
    """Action and mask are of the same features: the graph has the convolutions of one encoder and of the decoder."""
    import onnx

    agent = small("sgqn")
    model = onnx.load_from_string(convert(agent, {"task": "x"}))
    operations = [node.op_type for node in model.graph.node]
    assert operations.count("Conv") == len(agent.learner.encoder.convs) + 1
    assert operations.count("ConvTranspose") == 2
    assert [one.version for one in model.opset_import if one.domain == ""] == [OPSET]
    assert {one.key: one.value for one in model.metadata_props}["task"] == "x"


def test_a_graph_is_evaluated_like_its_run(run: Path, exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    returns = []
    for path in (run, exported, exported / "model.onnx"):
        options = ["--shift", "train", "video_hard", "--episodes", "10", "--renderer", "warp", "--json"]
        assert main(["evaluate", str(path), *options]) == 0
        returns.append([line["returns"] for line in json.loads(capsys.readouterr().out)])
    np.testing.assert_allclose(returns[1], returns[0], rtol=1e-3, atol=0.05)
    assert returns[2] == returns[1]


def test_what_a_graph_says_about_itself(exported: Path) -> None:
    session = deployment.open_session(exported / "model.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert (about["task"], about["agent"], about["action_repeat"]) == ("cartpole-swingup", "sgqn", "50")
    assert (about["frame_stack"], about["image_size"], about["step"]) == ("3", "24", "24")
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape[1:]) == ("observation", "tensor(uint8)", [9, 24, 24])
    card = (exported / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n")
    assert "| `mask` | output | float32 (batch, 9, 24, 24)" in card
    loaded = sgqn.load_agent(exported)
    assert (loaded.task, loaded.action_repeat) == ("cartpole-swingup", 50)


def test_an_agent_that_crops_is_given_whole_images() -> None:
    """`explain` and the others show agents what their networks see; the graph takes what the environment shows."""
    agent = small("rad").eval()
    graph = OnnxAgent(deployment.open_session(convert(agent, {})), agent.spec)
    seen = torch.randint(256, (3, 9, agent.spec.image_size, agent.spec.image_size), dtype=torch.uint8)
    torch.testing.assert_close(graph.policy(seen, True), agent.policy(seen, True), atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", ["occlusion", "rise"])
def test_methods_without_gradients_explain_a_graph(run: Path, exported: Path, method: str) -> None:
    agent, graph = sgqn.load_agent(run), sgqn.load_agent(exported)
    obs = torch.randint(256, (2, 9, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    action = agent.policy(obs, True)
    found = attribute(graph, obs, action, method)
    assert found.shape == obs.shape
    assert found.isfinite().all()
    with pytest.raises(SgqnError, match="no gradients: choose a method without"):
        attribute(graph, obs, action, "guided_backprop")


def test_explain_takes_a_graph(exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "figure.png"
    assert main(["explain", str(exported), "--shift", "train", "--renderer", "warp", "--out", str(out)]) == 0
    assert out.stat().st_size > 10_000


def test_demo_takes_a_graph(exported: Path, tmp_path: Path) -> None:
    options = ["--steps", "3", "--renderer", "warp", "--out", str(tmp_path / "demo")]
    assert main(["demo", "--run", str(exported), *options]) == 0
    assert (tmp_path / "demo" / "index.html").is_file()


def test_a_copy_acts_the_same(exported: Path) -> None:
    """The live view looks into a copy, while the agent plays."""
    agent = sgqn.load_agent(exported)
    obs = np.random.default_rng(0).integers(0, 256, (9, 24, 24), dtype=np.uint8)
    assert np.array_equal(copy.deepcopy(agent).act(obs), agent.act(obs))


def test_the_example_needs_numpy_and_onnxruntime_alone(run: Path, exported: Path, tmp_path: Path) -> None:
    """It plays the frames of an episode with the actions of the agent in PyTorch."""
    subject = Subject.load(run)
    env = environment(subject, "train", renderer="warp")
    shown = [found.obs.copy() for found in roll(env, subject.agent.act, seed=0)]
    env.close()
    np.save(tmp_path / "frames.npy", np.stack([obs[-3:].transpose(1, 2, 0) for obs in shown]))
    block = "import sys, runpy; sys.modules |= dict.fromkeys(['torch', 'sgqn', 'gymnasium', 'mujoco'])"
    arguments = [str(exported / "model.onnx"), str(tmp_path / "frames.npy"), str(tmp_path / "actions.npy")]
    code = f"{block}; sys.argv = ['', *{arguments!r}]; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{len(shown)} actions of sgqn on cartpole-swingup: 1 numbers from -1 to 1\n"
    expected = np.stack([subject.agent.act(obs) for obs in shown])
    np.testing.assert_allclose(np.load(tmp_path / "actions.npy"), expected, atol=1e-4)


def with_notes(exported: Path, tmp_path: Path) -> Path:
    copy = shutil.copytree(exported, tmp_path / "copy")
    (copy / "notes.txt").write_text("weeks")
    return copy


def test_bad_input_is_one_line(run: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.onnx"
    text.write_text("not a graph")
    assert "not an ONNX model" in fails(capsys, "evaluate", str(text))
    assert "does not exist" in fails(capsys, "evaluate", str(tmp_path / "missing.onnx"))
    foreign = tmp_path / "foreign.onnx"
    foreign.write_bytes(convert(small("sac"), {}))
    assert "not written by `sgqn export --format onnx`" in fails(capsys, "evaluate", str(foreign))
    export = ("export", str(run), "--format", "onnx", "--out")
    assert "names a folder" in fails(capsys, *export, str(tmp_path / "agent.onnx"))
    assert "no exported graph" in fails(capsys, *export, str(run))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "model.onnx").write_bytes(foreign.read_bytes())
    assert "no exported graph to replace" in fails(capsys, *export, str(mine))
    assert "no exported graph, notes.txt" in fails(capsys, *export, str(with_notes(exported, tmp_path)))
    assert (tmp_path / "copy" / "notes.txt").exists()
    assert "--precision" in fails(capsys, *export, str(tmp_path / "x"), "--precision", "half")
    again = ("export", str(exported), "--format", "onnx", "--out", str(tmp_path / "again"))
    assert "is an ONNX graph already" in fails(capsys, *again)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "foreign.onnx", "mine", "text.onnx"]


def test_what_to_install_is_said(run: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SgqnError, match=r"pip install 'sgqn\[onnx\]'"):
        sgqn.load_agent(exported)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(SgqnError, match=r"pip install 'sgqn\[onnx\]'"):
        convert(sgqn.load_agent(run), {})


def test_damaged_metadata_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(convert(small("sac"), {"sgqn": '{"format": 1}'}))
    with pytest.raises(DataError, match="metadata is damaged"):
        deployment.load(path)
