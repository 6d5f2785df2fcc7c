"""The options of commands that let a policy play tasks: which policy, how, and on which desktops."""

from __future__ import annotations

import argparse
from pathlib import Path

from arpo_verl.tools.cli.options import add_environment_options


def add_playing_options(parser: argparse.ArgumentParser, temperature: float = 0.6) -> None:
    """Add the options.

    Args:
        temperature: the default of `--temperature`.
    """
    policy = parser.add_argument_group("the policy, one of these")
    policy.add_argument(
        "--model", type=Path, metavar="PATH", help="a model's folder, or a checkpoint of veRL's (merged first)"
    )
    policy.add_argument(
        "--endpoint", metavar="URL", help="an OpenAI-compatible server, such as http://127.0.0.1:8000/v1"
    )
    model = parser.add_argument_group("with --model")
    model.add_argument(
        "--engine",
        choices=("vllm", "transformers"),
        help="vllm: `vllm serve` as a child, on GPUs; transformers: ours, on the CPU (default: vllm if there is a GPU)",
    )
    model.add_argument(
        "--vllm", default="", metavar="OPTIONS", help="options of `vllm serve`, such as '--tensor-parallel-size 4'"
    )
    endpoint = parser.add_argument_group("with --endpoint")
    endpoint.add_argument("--model-name", metavar="NAME", help="default: the server's only model")
    endpoint.add_argument(
        "--api-key-env",
        default="OPENAI_API_KEY",
        metavar="VARIABLE",
        help="environment variable with the key (default: OPENAI_API_KEY)",
    )
    endpoint.add_argument(
        "--processor",
        type=Path,
        metavar="FOLDER",
        help="a model's folder, whose processor sets how screenshots are resized (default: as usual in the model's "
        "family)",
    )
    play = parser.add_argument_group("how it plays")
    play.add_argument(
        "--recipe",
        metavar="NAME",
        help="use a recipe's sections gui_agent and environment, its limits on pixels and its validation tasks (a name "
        "from `arpo-verl recipes list`, or a YAML file); options given here win",
    )
    play.add_argument("--tasks", metavar="WHICH", help="'embedded', 'embedded_long', or task files, folders or indices")
    play.add_argument(
        "--agent",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of a recipe's section gui_agent, such as model_family=qwen25_vl; may be repeated",
    )
    play.add_argument("--max-steps", type=_budgets, metavar="N[,N]", help="turn budgets (default: the recipe's, or 15)")
    words = f"0 takes the likeliest token (default: {temperature:g})"
    play.add_argument("--temperature", type=float, default=temperature, help=words)
    play.add_argument("--top-p", type=float, default=1.0, help="default: 1")
    play.add_argument("--seed", type=int, default=0, help="seed of the sampling (default: 0)")
    play.add_argument(
        "--context", type=int, metavar="N", help="most tokens of an episode (default: the model's or server's limit)"
    )
    play.add_argument("--min-pixels", type=int, metavar="N", help="least pixels of a screenshot for the model")
    play.add_argument("--max-pixels", type=int, metavar="N", help="most pixels; give both or neither")
    desktops = parser.add_argument_group("desktops")
    desktops.add_argument("--desktops", type=int, metavar="N", help="episodes at once (default: 8, or the recipe's)")
    add_environment_options(desktops)
    parser.set_defaults(provider=None)


def _budgets(text: str) -> tuple[int, ...]:
    try:
        budgets = tuple(int(part) for part in text.split(","))
    except ValueError:
        budgets = ()
    if not budgets or min(budgets) < 1:
        raise argparse.ArgumentTypeError(f"turn budgets must be numbers from 1 such as 15,50,100, got {text!r}")
    return budgets
