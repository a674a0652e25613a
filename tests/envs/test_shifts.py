"""Colours and green screens against the benchmark's own way: edit the suite's XML and compile it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import mujoco
import numpy as np
import pytest

from sgqn.envs.families import find_task
from sgqn.envs.families.suite import (
    KEY_COLOR,
    SCREENS,
    SuiteSimulation,
    appearance,
    find_shift,
    generated_colors,
    suite,
)
from sgqn.envs.gl import GLRenderer, Painter
from sgqn.envs.shifts import Appearance, Shift
from sgqn.errors import InvalidValueError
from sgqn.results.paper import TASKS as PAPER_TASKS
from tests.envs import load

SETTING = {
    "grid_rgb1": (0.31, 0.02, 0.57),
    "grid_rgb2": (0.41, 0.12, 0.67),
    "self_rgb": (0.15, 0.8, 0.35),
    "skybox_rgb": (0.9, 0.33, 0.12),
}


def compiled_by_hand(domain: str, colors: dict) -> tuple[str, dict[str, bytes]]:
    """The domain's XML and its assets with the colours written into materials.xml and skybox.xml."""
    suite()
    from dm_control.suite import common

    def text(name: str) -> str:
        raw = common.ASSETS[name]
        return raw.decode() if isinstance(raw, bytes) else raw

    def set_attribute(xml: str, element: str, attribute: str, color: tuple) -> str:
        start = xml.index(element)
        end = xml.index("/>", start)
        rgba = " ".join(map(str, color)) + (" 1" if attribute == "rgba" else "")
        return xml[:start] + re.sub(rf'{attribute}="[^"]*"', f'{attribute}="{rgba}"', xml[start:end]) + xml[end:]

    materials, skybox = text("./common/materials.xml"), text("./common/skybox.xml")
    for name, color in colors.items():
        if name == "self_rgb":
            materials = set_attribute(materials, '<material name="self"', "rgba", color)
        elif name.startswith("grid"):
            materials = set_attribute(materials, '<texture name="grid"', name.removeprefix("grid_"), color)
        else:
            attribute = {"skybox_rgb": "rgb1", "skybox_rgb2": "rgb2", "skybox_markrgb": "markrgb"}[name]
            skybox = set_attribute(skybox, '<texture name="skybox"', attribute, color)
    assets = {name: text(name).encode() for name in common.ASSETS}
    assets["./common/materials.xml"], assets["./common/skybox.xml"] = materials.encode(), skybox.encode()
    return common.read_model(f"{domain}.xml"), assets


@pytest.mark.parametrize("domain", sorted({name.split("-")[0] for name in PAPER_TASKS}))
@pytest.mark.parametrize("kind", ["color", "video_easy", "video_hard"])
def test_painted_model_equals_the_compiled_one(domain: str, kind: str) -> None:
    colors = SCREENS.get(kind, SETTING)
    simulation = load(next(task for task in PAPER_TASKS if task.startswith(domain)))
    Painter(simulation.model).paint(appearance(colors))
    xml, assets = compiled_by_hand(domain, colors)
    if domain == "cartpole":
        from dm_control.suite import cartpole

        xml = cartpole.get_model_and_assets(num_poles=1)[0]
    oracle = mujoco.MjModel.from_xml_string(xml, assets)
    assert np.array_equal(simulation.model.tex_data, oracle.tex_data)
    assert np.array_equal(simulation.model.mat_rgba, oracle.mat_rgba)


@pytest.mark.usefixtures("gl")
@pytest.mark.parametrize("kind", ["color", "video_hard"])
def test_gl_pixels_equal_a_reload_of_the_edited_xml(kind: str) -> None:
    """Painting and uploading a texture gives the pixels of a model that was compiled so, also the second time."""
    other = {**SETTING, "skybox_rgb": (0.0, 0.9, 0.0)}
    settings = [SETTING, other] if kind == "color" else [SCREENS[kind]]
    shift = Shift(kind, [appearance(colors) for colors in settings])
    simulation = SuiteSimulation(find_task("walker-walk"), shift)
    renderer = GLRenderer(simulation, 84)
    for episode in (0, 1, 2):
        simulation.reset(episode)
        renderer.start()
        frame = renderer.frame()
        colors = settings[shift.draw(0, episode)]
        env = suite().load("walker", "walk")
        env.physics.reload_from_xml_string(*compiled_by_hand("walker", colors))
        with env.physics.reset_context():
            env.physics.data.qpos[:] = simulation.data.qpos
        assert np.array_equal(env.physics.render(84, 84, camera_id=0), frame)
        env.physics.free()


def test_green_screen_covers_sky_and_in_hard_also_the_floor() -> None:
    green = tuple(round(255 * c) for c in KEY_COLOR)
    easy, hard = (find_shift(kind).appearance(0, 0).textures for kind in ("video_easy", "video_hard"))
    assert set(easy) == {"skybox"}
    assert set(hard) == {"skybox", "grid"}
    for make in (*easy.values(), *hard.values()):
        assert np.abs(make().astype(int) - green).max() <= 1


def test_colours_of_episode_k_are_the_benchmarks_kth_draw() -> None:
    shift = Shift("color_hard", [Appearance(i) for i in range(100)])
    draws = np.random.RandomState(7)
    expected = [int(draws.randint(100)) for _ in range(20)]
    assert [shift.draw(7, k) for k in range(20)] == expected
    assert shift.appearance(7, 13).key == expected[13]  # in any order


def test_clips_follow_in_order_from_the_second() -> None:
    assert [Shift("video_hard").clip(k, 4) for k in range(6)] == [1, 2, 3, 0, 1, 2]


def test_generated_colours_are_fixed_and_say_so() -> None:
    for kind in ("color_easy", "color_hard"):
        shift = find_shift(kind)
        assert shift.source == "generated"
        assert len(shift.appearances) == 100
        values = np.array([list(setting.values()) for setting in generated_colors(kind)])
        assert values.min() >= 0
        assert values.max() <= 1
    assert find_shift("color_easy").appearances != find_shift("color_hard").appearances


def test_colour_file_of_the_data_directory_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dmcgb").mkdir()
    (tmp_path / "dmcgb" / "color_easy.json").write_text(json.dumps([SETTING] * 3))
    monkeypatch.setenv("SGQN_DATA", str(tmp_path))
    shift = find_shift.__wrapped__("color_easy")
    assert shift.source == "dmcgb:color_easy (3 settings)"
    assert shift.appearances[0].materials == {"self": SETTING["self_rgb"]}


def test_what_an_appearance_does_not_name_looks_as_before() -> None:
    model = load("walker-walk").model
    colors, textures = model.mat_rgba.copy(), model.tex_data.copy()
    painter = Painter(model)
    assert len(painter.paint(appearance(SETTING))) == 2
    assert painter.paint(appearance(SETTING)) == []
    assert not np.array_equal(model.tex_data, textures)
    assert len(painter.paint(Appearance("body", {"self": (0, 0, 1), "no such material": (0, 0, 0)}))) == 2
    assert np.array_equal(model.tex_data, textures)
    painter.paint(Appearance())
    assert np.array_equal(model.mat_rgba, colors)
    with pytest.raises(InvalidValueError, match=r"\(2, 2, 3\)"):
        painter.paint(Appearance("small", textures={"grid": lambda: np.zeros((2, 2, 3), np.uint8)}))
