"""What turns a function into a subcommand, and command lines into calls."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from sgqn.errors import InvalidValueError, UnknownNameError

if TYPE_CHECKING:
    from rich.progress import TaskID

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
Function = Callable[..., None]


class Names(typing.NamedTuple):
    """Marks options whose values are registered names: help, checks and completion list them."""

    names: Callable[[], Iterable[str]]


def _shifts() -> Iterable[str]:
    from sgqn.envs.families import all_shifts

    return all_shifts()


def _methods() -> Iterable[str]:
    from sgqn.attribution import METHODS

    return METHODS


def _renderers() -> Iterable[str]:
    from sgqn.envs.families import all_renderers

    return (*all_renderers(), "auto")


Shift = Annotated[str, Names(_shifts)]
Method = Annotated[str, Names(_methods)]
Renderer = Annotated[str, Names(_renderers)]


@dataclass(frozen=True)
class Command:
    """A subcommand. `parse` takes the place of reading the function's signature."""

    function: Function
    order: int
    parse: Callable[[list[str]], Callable[[], None]] | None = None


COMMANDS: dict[str, Command] = {}


def command(
    name: str, order: int, parse: Callable[[list[str]], Callable[[], None]] | None = None
) -> Callable[[Function], Function]:
    """Make a function the subcommand `name`, which may be two words. Its signature becomes the options.

    `order` is its place in `sgqn --help`.
    """

    def register(function: Function) -> Function:
        COMMANDS[name] = Command(function, order, parse)
        return function

    return register


def first_line(function: Function) -> str:
    return (inspect.getdoc(function) or "").splitlines()[0]


class Parser:
    """Reads the command line of one subcommand."""

    def __init__(self, name: str):
        self.name, self.command = name, COMMANDS[name]

    def call(self, args: list[str]) -> Callable[[], None]:
        """The call that the arguments ask for; made outside of tyro, which would hide its ValueErrors."""
        if self.command.parse is not None:
            return self.command.parse(args)
        function = self.command.function

        @functools.wraps(function)
        def bind(*positional: Any, **named: Any) -> Any:
            return functools.partial(_checked, function, *positional, **named)

        del bind.__wrapped__  # tyro is to read the annotations below
        hints = typing.get_type_hints(function, include_extras=True)
        bind.__annotations__ = {name: with_choices(hint, args) for name, hint in hints.items()}
        bind.__signature__ = inspect.signature(function).replace(  # type: ignore[attr-defined]
            parameters=[
                parameter.replace(annotation=bind.__annotations__[parameter.name])
                for parameter in inspect.signature(function).parameters.values()
            ]
        )
        call: Callable[[], None] = run_tyro(self.name, bind, args, lists_tasks="task" in hints)
        return call


def _checked(function: Function, *positional: Any, **named: Any) -> None:
    """Call a command, unless it could not write its output."""
    if isinstance(out := named.get("out"), Path):
        check_target(out)
    function(*positional, **named)


def check_target(path: Path) -> None:
    """Refuse an output path that cannot be written: a loop of symbolic links, a name that is too long or no text."""
    try:
        str(path).encode()
        path.stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # the latter for a null character, or bytes that are not UTF-8
        raise InvalidValueError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


def literal(names: Iterable[str], args: list[str]) -> Any:
    """A literal type of the names, and of those arguments that are names too without being listed: methods may come
    with arguments of their own, as in `smoothgrad:samples=4`."""
    listed = tuple(names)
    values = (arg.partition("=")[2] if arg.startswith("--") else arg for arg in args)
    return Literal[(*listed, *(value for value in values if value not in listed and value in names))]


def with_choices(hint: Any, args: list[str]) -> Any:
    """A type hint in which strings marked by `Names` are literals of the names."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        base, *marks = parts
        names = next((mark for mark in marks if isinstance(mark, Names)), None)
        others = tuple(mark for mark in marks if mark is not names)
        inner = with_choices(base, args) if names is None else literal(names.names(), args)
        return Annotated[(inner, *others)] if others else inner
    if not parts or origin is Literal:
        return hint
    changed = tuple(with_choices(part, args) for part in parts)
    if origin in (typing.Union, type(int | None)):
        return typing.Union[changed]  # noqa: UP007 (made of a tuple)
    return origin[changed] if changed != parts else hint


def run_tyro(name: str, what: Any, args: list[str], lists_tasks: bool = False, **options: Any) -> Any:
    """`tyro.cli`, its boxed error messages as one line; `lists_tasks` adds the tasks to the help."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message), _INTEGERS:
            return tyro.cli(what, prog=f"sgqn {name}", args=args, **options)
    except SystemExit as stop:
        if not stop.code:  # --help
            if lists_tasks:
                print_tasks()
            raise
        line = _one_line(message.getvalue())
        if choice := re.search(r"invalid choice '(.*?)' for argument '--(\S+)'\. Expected one of \((.*?)\)", line):
            names = [known for known in re.findall(r"'([^']*)'", choice[3]) if known != "None"]
            raise UnknownNameError(choice[2].replace("-", " "), choice[1], names) from None
        raise InvalidValueError(f"{line} (see `sgqn {name} --help`)") from None


_INTEGERS = tyro.constructors.ConstructorRegistry()


@_INTEGERS.primitive_rule
def _integers(about: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Integers may be written as 500000, 500_000 or 5e5."""
    if about.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda args: to_integer(args[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def to_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = Decimal(text) if re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d{1,2}", text) else None
        if number is None or number != int(number):
            raise ValueError(f"{text!r} is not an integer") from None
        return int(number)


def print_tasks() -> None:
    """The tasks of all families, for the help of commands that take one."""
    from sgqn.envs.families import families

    for family in families():
        text = f"tasks of {family.name}: {', '.join(filter(None, (*family.tasks, family.open_tasks))) or 'any'}"
        print(textwrap.fill(text, width=80, subsequent_indent="  ", break_on_hyphens=False))


def _one_line(box: str) -> str:
    """The text of tyro's boxed message, without its frame and its pointer to the help."""
    text = " ".join(re.sub(r"^[│|]?(.*?)[│|]?$", r"\1", line) for line in box.splitlines() if line[:1] not in "╭╰+")
    parts = [" ".join(part.split()) for part in re.split(r"[─-]{8,}", text)]
    return "; ".join(part for part in parts if part and not part.startswith("For full helptext"))


def has(args: list[str], option: str) -> bool:
    return any(arg == option or arg.startswith(option + "=") for arg in args)


def peek(args: list[str], option: str, default: str) -> str:
    """The value of an option before the arguments are parsed."""
    for i, arg in enumerate(args):
        if arg == option and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(option + "="):
            return arg.partition("=")[2]
    return default


@contextlib.contextmanager
def bars(unit: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Progress bars on a terminal, one for each kind of work that `report(what, done, total)` names.

    They show the time left, and the rate if it has a unit.
    """
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    shown: dict[str, TaskID] = {}
    console = Console(stderr=True)
    columns = [*Progress.get_default_columns(), TextColumn("{task.fields[rate]}")]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def report(what: str, done: int, total: int) -> None:
            if what not in shown:
                shown[what] = progress.add_task(what, rate="")
            progress.update(shown[what], completed=done, total=total)
            speed = progress.tasks[shown[what]].speed
            if unit and speed:
                progress.update(shown[what], rate=f"{speed:,.0f} {unit}")

        yield report
