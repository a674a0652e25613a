from __future__ import annotations

from pathlib import Path

import pytest

from sgqn.files import write_atomically, written_atomically


def test_a_file_is_replaced_when_the_block_succeeds(tmp_path: Path) -> None:
    target = tmp_path / "a.png"
    target.write_text("old")
    with written_atomically(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".png"  # writers that go by the suffix write the right format
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_is_left_when_the_block_fails(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "a"
    target.write_text("old")

    def fail() -> None:
        with written_atomically(target) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_text_and_bytes(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "é")
    write_atomically(tmp_path / "b", b"\x00")
    assert (tmp_path / "a").read_bytes() == "é".encode()
    assert (tmp_path / "b").read_bytes() == b"\x00"
    assert len(list(tmp_path.iterdir())) == 2
