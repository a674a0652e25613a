"""The `sgqn` command: one module per subcommand, found automatically; heavy imports stay inside the functions."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import sgqn
from sgqn import plugins
from sgqn.cli.command import COMMANDS, Parser, first_line
from sgqn.errors import Interrupted, InvalidValueError, SgqnError, UnknownNameError
from sgqn.registry import import_submodules


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sgqn`; returns the exit code: 0, 2 for errors that the user can fix, 130 when interrupted."""
    try:
        _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except Interrupted as stop:
        print(f"\n{stop}", file=sys.stderr)
        return stop.code
    except SgqnError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `sgqn data | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a full disk, a folder that may not be written to
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(args: list[str]) -> None:
    """Find the command that the first one or two words name, and call it with the rest."""
    args = _load_plugins(args)
    for path in (Path(arg) for arg in args if not arg.startswith("-")):
        if path.is_dir():
            _load_plugins_of(path)
    import_submodules("sgqn.cli")
    words = 2 if " ".join(args[:2]) in COMMANDS else 1
    name = " ".join(args[:words])
    if name in ("", "-h", "--help"):
        _print_help()
    elif name == "--version":
        print(f"sgqn {sgqn.__version__}")
    elif name in COMMANDS:
        Parser(name).call(args[words:])()
    else:
        raise UnknownNameError("command", name, {known.split()[0] for known in COMMANDS})


def _load_plugins(args: list[str]) -> list[str]:
    """Import the modules that `--plugin MODULE` names, anywhere on the command line; returns the other arguments."""
    left, modules, rest = [], [], iter(args)
    for arg in rest:
        if arg == "--plugin":
            if not (module := next(rest, "")):
                raise InvalidValueError("--plugin needs the name of a module, such as --plugin my_module")
            modules.append(module)
        elif arg.startswith("--plugin="):
            modules.append(arg.partition("=")[2])
        else:
            left.append(arg)
    plugins.load(modules)
    return left


def _load_plugins_of(path: Path) -> None:
    """Import what a run, checkpoint or exported agent on the command line needs, so that options can name it.

    What is wrong with it is reported when it is loaded.
    """
    run = path.parent.parent if path.parent.name == "checkpoints" else path
    for file in (run / "config.json", path / "agent.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, SgqnError):
            values = json.loads(file.read_text())
            plugins.load(map(str, list(values.get("config", values)["plugins"])))


def _print_help() -> None:
    print("usage: sgqn [--plugin MODULE] COMMAND [OPTIONS]\n")
    print("Visual reinforcement learning that works in scenes it never saw.\n\ncommands:")
    for name, command in sorted(COMMANDS.items(), key=lambda item: item[1].order):
        print(f"  {name:<10}  {first_line(command.function)}")
    print("\n--plugin MODULE imports a module that registers agents, attributions, augmentations or task families.")
    print("`sgqn COMMAND --help` explains a command; `sgqn --version` prints the version.")


__all__ = ["COMMANDS", "main"]
