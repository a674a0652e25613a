"""The `sgqn` command: one module per subcommand, found automatically; heavy imports stay inside the functions."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import sgqn
from sgqn import plugins
from sgqn.cli.command import COMMANDS, Parser, first_line
from sgqn.errors import Interrupted, InvalidValueError, SgqnError, UnknownNameError
from sgqn.registry import import_submodules

_CONFIG_LIMIT = 1 << 22  # bytes; a configuration has some thousand
LEVELS = ("debug", "info", "warning", "error")


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
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):  # as torch says it
            raise
        print(f"error: not enough memory: {' '.join(str(error).split()) or 'choose smaller values'}", file=sys.stderr)
        return 2
    return 0


def _run(args: list[str]) -> None:
    """Find the command named by the first one or two words, and call it with the rest."""
    args, modules = _taken(args, "--plugin", "the name of a module, such as --plugin my_module")
    args, levels = _taken(args, "--log-level", f"one of {', '.join(LEVELS)}")
    with _logging(levels[-1] if levels else "warning"):
        plugins.load(modules)
        _dispatch(args)


def _dispatch(args: list[str]) -> None:
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


def _taken(args: list[str], option: str, value: str) -> tuple[list[str], list[str]]:
    """Take an option of all commands from anywhere on the command line: the other arguments, and its values."""
    left, values, rest = [], [], iter(args)
    for arg in rest:
        name, equals, given = arg.partition("=")
        if name != option:
            left.append(arg)
        elif not (given := given if equals else next(rest, "")):
            raise InvalidValueError(f"{option} needs {value}")
        else:
            values.append(given)
    return left, values


@contextlib.contextmanager
def _logging(level: str) -> Iterator[None]:
    """Print the package's log messages of this level and above as plain lines on stderr."""
    if level not in LEVELS:
        raise UnknownNameError("log level", level, LEVELS)
    logger, handler = logging.getLogger("sgqn"), _Lines()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False  # other packages may have set up the root logger
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """On the current stderr, which a progress bar may have replaced."""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        print(level + " ".join(record.getMessage().split()), file=sys.stderr)


def _load_plugins_of(path: Path) -> None:
    """Import what a run, checkpoint or exported agent on the command line needs, so that options can name it.

    Errors are reported when it is loaded.
    """
    run = path.parent.parent if path.parent.name == "checkpoints" else path
    for file in (run / "config.json", path / "agent.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SgqnError):
            if not file.is_file() or file.stat().st_size > _CONFIG_LIMIT:  # reading a pipe would wait for ever
                continue
            values = json.loads(file.read_text())
            plugins.load(map(str, list(values.get("config", values)["plugins"])))


def _print_help() -> None:
    print("usage: sgqn [--plugin MODULE] [--log-level LEVEL] COMMAND [OPTIONS]\n")
    print("Visual reinforcement learning that generalizes to unseen scenes.\n\ncommands:")
    for name, command in sorted(COMMANDS.items(), key=lambda item: item[1].order):
        print(f"  {name:<10}  {first_line(command.function)}")
    print("\n--plugin MODULE imports a module that registers agents, attributions, augmentations or task families.")
    print(f"--log-level is one of {', '.join(LEVELS)}; warning by default.")
    print("Run `sgqn COMMAND --help` for the options of a command, `sgqn --version` for the version.")


__all__ = ["COMMANDS", "main"]
