"""`sgqn completion`"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import tyro

from sgqn.cli.command import COMMANDS, command, with_choices

Options = dict[str, list[str]]
"""By option, the values that it takes; empty where these cannot be listed."""

_BASH = """\
# Completion of sgqn, for bash and zsh.
[ -n "$ZSH_VERSION" ] && autoload -U +X bashcompinit && bashcompinit
_sgqn() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words="" name=${COMP_WORDS[1]} option=""
  local i
  for ((i = 2; i < COMP_CWORD; i++)); do case ${COMP_WORDS[i]} in --*) option=${COMP_WORDS[i]} ;; esac; done
  if [ "$COMP_CWORD" -eq 1 ]; then words="@COMMANDS@"; else
    case $name in
@CASES@
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _sgqn sgqn
"""
_CASE = """\
      {name})
        case $word in -*) words="{options}" ;; *) case $option in
{values}
        esac ;; esac ;;"""


@command("completion", order=20)
def completion(
    shell: Annotated[tyro.conf.Positional[Literal["bash", "zsh", "fish"]], tyro.conf.arg(metavar="SHELL")],
) -> None:
    """Print a script that completes commands, options and names in your shell.

    bash: sgqn completion bash > ~/.local/share/bash-completion/completions/sgqn. zsh: source the printed script in
    ~/.zshrc. fish: sgqn completion fish > ~/.config/fish/completions/sgqn.fish.

    Args:
        shell: Shell to complete in: bash, zsh or fish.
    """
    known: dict[str, Options] = {}
    for name in COMMANDS:  # some are two words
        known[name.split()[0]] = {**known.get(name.split()[0], {}), **options_of(name)}
    print(_fish(known) if shell == "fish" else _bash(known), end="")


def options_of(name: str) -> Options:
    """The options of a command; for `train`, those of all agents."""
    found = _options_of_training() if COMMANDS[name].parse else _options_of_function(COMMANDS[name].function)
    if "--task" in found:
        from sgqn.envs.families import families

        found["--task"] = [task for family in families() for task in family.tasks]
    return {**found, "--help": []}


def _options_of_function(function: Callable[..., Any]) -> Options:
    hints = typing.get_type_hints(function, include_extras=True)
    del hints["return"]
    named = {name: hint for name, hint in hints.items() if _POSITIONAL not in _marks(hint)}
    return {_option(name, hint): _literals(with_choices(hint, [])) for name, hint in named.items()}


def _options_of_training() -> Options:
    from sgqn.agents import AGENTS
    from sgqn.config import TrainConfig, TrainOptions
    from sgqn.envs.families import all_renderers, all_shifts
    from sgqn.loggers import LOGGERS

    own: dict[str, Iterable[str]] = {
        "logger": LOGGERS,
        "agent": AGENTS,
        "renderer": (*all_renderers(), "auto"),
        "evaluate_shifts": all_shifts(),
    }
    found: Options = {}
    for kind in (TrainOptions, TrainConfig, *(AGENTS[agent].settings for agent in AGENTS)):
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            names = own.get(field.name) or field.metadata.get("names", tuple)()
            found[_option(field.name)] = [*names] or _literals(hints[field.name])
            if hints[field.name] is bool:
                found[f"--no-{_option(field.name)[2:]}"] = []
    return {option: values for option, values in found.items() if option not in ("--config-file", "--settings")}


def _option(name: str, hint: Any = None) -> str:
    """The option of a parameter, whose type hint may give it another name."""
    given = [mark.name for mark in _marks(hint) if isinstance(getattr(mark, "name", None), str)]
    return "--" + (given or [name])[0].replace("_", "-")


def _marks(hint: Any) -> tuple[Any, ...]:
    return hint.__metadata__ if typing.get_origin(hint) is Annotated else ()


_POSITIONAL = _marks(typing.cast(Any, tyro.conf.Positional)[int])[0]


def _literals(hint: Any) -> list[str]:
    """The strings that a type hint allows, if it lists them."""
    if typing.get_origin(hint) is Literal:
        return [str(one) for one in typing.get_args(hint)]
    return [one for part in typing.get_args(hint) for one in _literals(part)]


def _bash(known: dict[str, Options]) -> str:
    cases = [
        _CASE.format(name=name, options=" ".join(options), values="\n".join(_values(options)))
        for name, options in known.items()
    ]
    return _BASH.replace("@COMMANDS@", f"{' '.join(known)} --help --version").replace("@CASES@", "\n".join(cases))


def _values(options: Options) -> Iterable[str]:
    for option, values in options.items():
        if values:
            yield f'          {option}) words="{" ".join(values)}" ;;'


def _fish(known: dict[str, Options]) -> str:
    lines = ["# Completion of sgqn, for fish."]
    for name, options in known.items():
        lines.append(f"complete -c sgqn -n __fish_use_subcommand -f -a {name}")
        for option, values in options.items():
            listed = f" -x -a '{' '.join(values)}'" if values else ""
            lines.append(f"complete -c sgqn -n '__fish_seen_subcommand_from {name}' -l {option[2:]}{listed}")
    return "\n".join(lines) + "\n"
