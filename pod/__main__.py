"""Plans all published recipes: python -m pod [--topology=v3:16x8] [--out=results/pod_plan] [--page]

Writes a JSON for each, then the page and its figure. --page writes only the latter anew.
"""

import json
import pathlib
import sys
from collections.abc import Sequence

import pod_plan
from configs import command_line
from errors import DONE, USER_ERROR, OneLineParser, UserError
from pod import document, predict, summary, topologies

RECIPES = (
    "lars:mlperf_v07",
    "nesterov:nado",
    "sm3:untuned",
    "shampoo:readme",
    "shampoo:mlperf_v1",
    "shampoo:mlperf_v1_64k",
)


def folder(topology: str) -> pathlib.Path:
    """Where the plans of a topology lie: what is predicted elsewhere is of the published one's."""
    plans = pathlib.Path("results/pod_plan")
    return plans if topology == predict.PUBLISHED_TOPOLOGY else plans / topology.replace(":", "_")


def main(argv: Sequence[str]) -> int:
    parser = OneLineParser(prog="python -m pod", description=__doc__.split("\n")[0])
    parser.add_argument("--topology", default=predict.PUBLISHED_TOPOLOGY)
    parser.add_argument(
        "--out", type=pathlib.Path, help="results/pod_plan; of another topology, a folder there"
    )
    parser.add_argument("--recipes", nargs="+", default=RECIPES, choices=RECIPES)
    parser.add_argument("--page", action="store_true", help="only the page, of the plans there")
    options = parser.parse_args(argv)
    try:
        topology = topologies.parse(options.topology)
        out = options.out or folder(options.topology)
        out.mkdir(parents=True, exist_ok=True)
        for recipe in [] if options.page else options.recipes:
            config = command_line.recipe_path(recipe)
            figures = pod_plan.figures(config, [], topology)
            print(summary.text(figures), flush=True)
            file = out / f"{recipe.replace(':', '-')}.json"
            file.write_text(json.dumps(figures, indent=1) + "\n")
        found = [out / f"{recipe.replace(':', '-')}.json" for recipe in RECIPES]
        plans = [json.loads(file.read_text()) for file in found if file.exists()]
        speed = topology.generation.interconnect_bytes_per_second / 1e9
        document.write(out, plans, speed)
    except (UserError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
