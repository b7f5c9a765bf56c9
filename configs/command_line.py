"""From command-line arguments to a recipe's config, with one clear message for each mistake."""

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
NEEDS = {  # where absl says nothing itself
    "bool": "True or False",
    "tuple": "a tuple, as (2, 2)",
}
SIMILAR = 0.6  # difflib's ratio above which a field is suggested


def optimizers() -> list[str]:
    """Returns the names of the recipe files in configs/, yours included."""
    is_recipe = re.compile(r"^def get_config\(", re.MULTILINE).search
    return sorted(p.stem for p in FOLDER.glob("*.py") if is_recipe(p.read_text("utf-8")))


def recipe_path(recipe: str) -> str:
    """'lars:digits' -> the value of --config for it.

    Raises:
      UserError: no file for that optimizer; the message lists those there are.
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
        "Recipe file and variant, as configs/shampoo.py:readme; any field is overridden by "
        "--config.FIELD=VALUE.",
        flag_values=flag_values,
        sys_argv=None if argv is None else list(argv),
    )


def joined(argv: Sequence[str]) -> list[str]:
    """`--config FILE` as `--config=FILE`."""
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
      UserError: one message that names the argument, the rule and what is known.
    """
    sys.modules.pop("config_config", None)  # else ml_collections runs the file in the last one's
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
    except Exception as e:  # a recipe is a program: anything can go wrong in it
        raise UserError(f"--config: {_root_message(e)}") from e
    if config is None:
        raise UserError(
            "--config: missing; give a recipe file, as --config=configs/shampoo.py:readme"
        )
    try:
        config.recipe  # a file that failed to load raises here  # noqa: B018
    except OSError as e:
        raise UserError(_unloadable(argv, e)) from e
    if remaining[1:]:
        raise UserError(f"argument {remaining[1]}: not understood; options begin with --")
    return config


def load(recipe: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """The config of a recipe such as 'lars:digits', with overrides such as '--config.seed=3'.

    Raises:
      UserError: as `parse`.
    """
    argv = ["config", f"--config={recipe_path(recipe)}", *overrides]
    flag_values = flags.FlagValues()
    define_config_flag(flag_values, argv)
    return parse(argv, flag_values)


def _root_message(error: BaseException) -> str:
    """The message of a recipe's own UserError, if one lies beneath; else the flag's, in a line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError) and str(cause).startswith("variant="):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())


def _wrong_type(flag_values: flags.FlagValues, error: Exception) -> str | None:
    """What a flag needs whose value cannot be read; None where the error is the recipe's own."""
    found = re.match(r"flag --(\S+?)=(.*?): ", str(error))
    if not found or found[1] == "config" or found[1] not in flag_values:
        return None
    parser = flag_values[found[1]].parser
    kind = parser.syntactic_help or NEEDS.get(parser.flag_type())
    return f"--{found[1]}={found[2]}: needs {kind}" if kind else None


def _unloadable(argv: Sequence[str], error: OSError) -> str:
    path = next((a.partition("=")[2] for a in argv if a.startswith("--config=")), "")
    known = ", ".join(f"configs/{name}.py" for name in optimizers())
    missing = not pathlib.Path(path.partition(":")[0]).is_file()
    return f"--config={path}: {'no such file' if missing else error.__cause__}; known: {known}"


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
