"""Parses command-line arguments into a config, with a one-line error for each mistake."""

import difflib
import pathlib
import re
import sys
from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

from configs import base
from errors import UserError

FOLDER = pathlib.Path(__file__).parent
NEEDS = {  # types for which absl has no help text
    "bool": "True or False",
    "tuple": "a tuple such as (2, 2)",
}
SIMILAR = 0.6  # difflib's ratio above which a field is suggested


def optimizers() -> list[str]:
    """Returns the names of the recipe files in configs/, yours included."""
    is_recipe = re.compile(r"^def get_config\(", re.MULTILINE).search
    return sorted(p.stem for p in FOLDER.glob("*.py") if is_recipe(p.read_text("utf-8")))


def recipe_path(recipe: str) -> str:
    """Returns the value of --config for a recipe such as "lars:digits".

    Raises:
      UserError: the optimizer has no recipe file. The message lists the valid names.
    """
    optimizer, _, variant = recipe.partition(":")
    if optimizer not in optimizers():
        raise UserError(
            f"recipe={recipe}: no recipe file {optimizer}.py in configs/; "
            f"known optimizers: {', '.join(optimizers())}"
        )
    return f"{FOLDER / optimizer}.py" + (f":{variant}" if variant else "")


def define_config_flag(flag_values: flags.FlagValues, argv: Sequence[str] | None = None) -> None:
    """Defines --config=configs/OPTIMIZER.py:VARIANT and its overrides --config.FIELD=VALUE."""
    config_flags.DEFINE_config_file(
        "config",
        None,
        "Recipe file and variant, such as configs/shampoo.py:readme. Override any field with "
        "--config.FIELD=VALUE.",
        flag_values=flag_values,
        sys_argv=None if argv is None else list(argv),
    )


def joined(argv: Sequence[str]) -> list[str]:
    """Returns the arguments with `--config FILE` written as `--config=FILE`."""
    result: list[str] = []
    for argument in argv:
        if result and result[-1] == "--config":
            result[-1] = f"--config={argument}"
        else:
            result.append(argument)
    return result


def parse(argv: Sequence[str], flag_values: flags.FlagValues) -> ConfigDict:
    """Parses argv (program name first) and returns the config with its overrides.

    Raises:
      UserError: an argument is wrong. The message names it and the valid values.
    """
    sys.modules.pop("config_config", None)  # else ml_collections reuses the module of the last file
    try:
        remaining = flag_values(list(argv))
        config = flag_values["config"].value
    except (AttributeError, KeyError) as e:
        if "config_config" in str(e) and "get_config" in str(e):
            raise UserError(
                "--config: the file has no function get_config; see configs/lars.py"
            ) from e
        raise UserError(_unknown_field(argv) or f"--config: {_root_message(e)}") from e
    except flags.IllegalFlagValueError as e:
        raise UserError(_wrong_type(flag_values, e) or f"--config: {_root_message(e)}") from e
    except Exception as e:  # a recipe is a program and can raise anything
        raise UserError(f"--config: {_root_message(e)}") from e
    if config is None:
        raise UserError(
            "--config: missing; give a recipe file, such as --config=configs/shampoo.py:readme"
        )
    try:
        config.recipe  # raises if the file failed to load  # noqa: B018
    except OSError as e:
        raise UserError(_unloadable(argv, e)) from e
    if remaining[1:]:
        raise UserError(f"argument {remaining[1]}: not understood; options start with --")
    return config


def load(recipe: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Returns the config of a recipe such as "lars:digits", with overrides ("--config.seed=3").

    Raises:
      UserError: see `parse`.
    """
    argv = ["config", f"--config={recipe_path(recipe)}", *overrides]
    flag_values = flags.FlagValues()
    define_config_flag(flag_values, argv)
    return parse(argv, flag_values)


def _root_message(error: BaseException) -> str:
    """Returns the message of a recipe's UserError that caused `error`, else its own on one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError) and str(cause).startswith("variant="):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())


def _wrong_type(flag_values: flags.FlagValues, error: Exception) -> str | None:
    """Returns the message for a value of the wrong type, or None if the recipe raised the error."""
    match = re.match(r"flag --(\S+?)=(.*?): ", str(error))
    if not match or match[1] == "config" or match[1] not in flag_values:
        return None
    parser = flag_values[match[1]].parser
    kind = parser.syntactic_help or NEEDS.get(parser.flag_type())
    return f"--{match[1]}={match[2]}: needs {kind}" if kind else None


def _unloadable(argv: Sequence[str], error: OSError) -> str:
    path = next((a.partition("=")[2] for a in argv if a.startswith("--config=")), "")
    names = ", ".join(f"configs/{name}.py" for name in optimizers())
    missing = not pathlib.Path(path.partition(":")[0]).is_file()
    return f"--config={path}: {'no such file' if missing else error.__cause__}; known: {names}"


def _unknown_field(argv: Sequence[str]) -> str | None:
    """Returns the message for the first override of a field that the recipe does not have."""
    if not any(a.startswith("--config.") for a in argv):
        return None
    without_overrides = [argv[0], *(a for a in argv if a.startswith("--config="))]
    flag_values = flags.FlagValues()
    define_config_flag(flag_values, without_overrides)
    recipe = parse(without_overrides, flag_values)
    for argument in argv:
        if not argument.startswith("--config."):
            continue
        path = argument.partition("=")[0].removeprefix("--config.")
        section, prefix = recipe, ""
        for part in path.split("."):
            if not isinstance(section, ConfigDict) or part not in section:
                names = ", ".join(section.keys()) if isinstance(section, ConfigDict) else "none"
                return (
                    f"--config.{path}: no such field; {_suggestion(path, recipe)}"
                    f"fields of config{prefix}: {names}"
                )
            section, prefix = section[part], f"{prefix}.{part}"
    return None


def _suggestion(path: str, recipe: ConfigDict) -> str:
    """Returns "did you mean ...? " with up to three fields whose name or last part is similar."""
    names = {name: [name, name.rpartition(".")[2]] for name in base.flatten(recipe)}
    last = path.rpartition(".")[2]
    scores = {
        name: max(
            difflib.SequenceMatcher(None, given, form).ratio()
            for form in forms
            for given in (path, last)
        )
        for name, forms in names.items()
    }
    enough = max(SIMILAR, max(scores.values()) - 0.1)
    nearest = sorted((n for n in scores if scores[n] >= enough), key=lambda name: -scores[name])
    return f"did you mean {' or '.join(nearest[:3])}? " if nearest else ""
